"""The least time the hardware allows a problem."""

from __future__ import annotations

from dataclasses import dataclass

from moetune.model.target import Target


@dataclass(frozen=True)
class Traffic:
    """What one stage must move and compute.

    `bytes` at stored width: weights and scales of the experts drawn, input once, output once. `operations`
    are 2 x rows x n x k for the useful rows. `rate` is the key of the target's peak.
    """

    bytes: int
    operations: int
    rate: str


def floor_us(stages: list[Traffic], target: Target, *, padding: float = 1.0) -> float | None:
    """Return the floor in microseconds: per stage max(bytes / bandwidth, operations / peak), summed.

    `padding` multiplies the operations by the rows that the tiles really compute over the useful rows (the
    padded floor). None where the target states no bandwidth or no peak for the rate.
    """
    total = 0.0
    for stage in stages:
        peak = target.peaks.get(stage.rate)
        if not peak or not target.bandwidth:
            return None
        total += max(stage.bytes / target.bandwidth, padding * stage.operations / peak)
    return total * 1e6


def padded_rows(rows_per_expert: list[int], tile_m: int) -> int:
    """Return the rows that tiles of `tile_m` compute: the sum over experts of ceil(rows / tile_m) x tile_m."""
    return sum(-(-rows // tile_m) * tile_m for rows in rows_per_expert)
