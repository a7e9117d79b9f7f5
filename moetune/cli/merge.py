"""The command `moetune merge`."""


def merge() -> None:
    """Being written."""
