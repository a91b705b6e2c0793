"""Command line."""


def main(argv: list[str]) -> int:
    """Run a verb."""
    return 0
