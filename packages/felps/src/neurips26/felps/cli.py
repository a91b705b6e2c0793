"""Verbs of ``neurips26 felps``."""


def main(argv: list[str]) -> int:
    """Run one verb."""
    print("no verbs yet")
    return 0
