"""The claims of the abstract and how they are tested."""
