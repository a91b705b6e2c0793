def main(argv: list[str]) -> int:
    """Verbs of this paper."""
    return 0
