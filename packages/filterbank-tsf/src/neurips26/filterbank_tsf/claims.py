"""One function a headline claim."""
