"""Where a device stands in its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Current:
    """What one device works on: a problem's key, `stage` (``stage 1``, ``stage 2``, ``finals``) and times so far.

    `best_us`, `default_us` and `floor_us` are those of the stage named, None while not known.
    """

    problem: str
    stage: str
    best_us: float | None = None
    default_us: float | None = None
    floor_us: float | None = None
    gpu: str = ""
