"""What the neurips26 packages share. Import the rooms by name: ``from neurips26.shared import stats``."""
