"""How a budget of trials is cut into rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moetune.errors import UsageError, nearest
from moetune.search import SAMPLERS

ROUND_SIZE = 8
EXHAUSTIVE_ROUND_SIZE = 32
_DESIGN_SHARE = 4  # a quarter of the budget is laid out before anything is known
_POLISH_SHARE = 10  # a tenth refines the best two at the end
GUIDED = ("gp", "tpe")
"""Samplers that learn; they begin with a design and end with a polish."""


class Round(NamedTuple):
    """The size of a round, and what chooses its configs: `start`, `guide` or `polish`."""

    phase: str
    size: int


def resolve(sampler: str, pool_size: int, budget: int) -> str:
    """Return the sampler that `auto` stands for: exhaustive where the pool fits the budget, else gp."""
    if sampler not in SAMPLERS:
        raise UsageError(f"--sampler {sampler!r}: {nearest(sampler, SAMPLERS)}")
    if sampler != "auto":
        return sampler
    return "exhaustive" if pool_size <= budget else "gp"


def next_round(sampler: str, done: int, total: int, fixed: int, round_size: int) -> Round | None:
    """Return the round after `done` of `total` trials, or None at the end.

    The first round holds the `fixed` configs (the default and the starting ones) and, for a guided sampler, an
    initial design up to a quarter of `total`. Later rounds are of nearly equal size, at most `round_size`.
    """
    left = total - done
    if left <= 0:
        return None
    guided = sampler in GUIDED
    size = EXHAUSTIVE_ROUND_SIZE if sampler == "exhaustive" else round_size
    if done == 0:
        wanted = max(fixed, -(-total // _DESIGN_SHARE)) if guided else max(fixed, size)
        return Round("start", min(wanted, left))
    polish = total // _POLISH_SHARE if guided else 0
    phase, part = ("guide", left - polish) if left > polish else ("polish", left)
    return Round(phase, -(-part // -(-part // size)))


def rounds(sampler: str, total: int, fixed: int, round_size: int = ROUND_SIZE) -> Iterator[Round]:
    """Yield every round of a search that is never interrupted."""
    done = 0
    while following := next_round(sampler, done, total, fixed, round_size):
        yield following
        done += following.size
