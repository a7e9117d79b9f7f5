"""How far kernels pad a dimension that no tile divides."""

from __future__ import annotations


def padded(extent: int, multiple: int = 128) -> int:
    """Return the extent rounded up to a multiple."""
    return -(-extent // multiple) * multiple
