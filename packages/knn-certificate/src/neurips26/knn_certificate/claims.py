"""The paper's claims and how each is tested."""
