"""The configs to try first: what did well on problems nearby."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moetune.kernel import BOTH
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.space import Pool

_SIZES = ("model_dim", "inter_dim", "experts", "topk", "ep")


@dataclass(frozen=True)
class Known:
    """A config that ran on a problem and stage, in `us` microseconds; `facts` has the keys of `Problem.facts`.

    Tables of other tools may lack facts (no shape's name) and axes (no prefetch).
    """

    facts: Mapping[str, Any]
    stage: int
    config: Config
    us: float


def starting_configs(
    problem: Problem, stage: int, pool: Pool, known: Sequence[Known], *, few: int = 4, limit: int = 10
) -> list[Config]:
    """Return at most `limit` configs of the pool: the `few` fastest of each problem known, nearest problem first.

    Each is moved to the nearest feasible config where this pool lacks it.
    """
    if not pool.configs:
        return []
    wanted = problem.facts()
    sources: dict[tuple[Any, ...], list[Known]] = {}
    for item in known:
        if item.stage == stage or BOTH in (item.stage, stage):
            sources.setdefault(_source(item.facts), []).append(item)
    found: dict[Config, None] = {}
    for items in sorted(sources.values(), key=lambda items: distance(wanted, items[0].facts)):
        for item in sorted(items, key=lambda item: item.us)[:few]:
            found.setdefault(nearest_feasible(pool, item.config))
    return list(found)[:limit]


def distance(wanted: Mapping[str, Any], facts: Mapping[str, Any]) -> float:
    """Return how far a known problem is from the one wanted: 0 for the same, about 1 for the next token bucket.

    A doubling of tokens counts 1 (a little more where the known bucket is the larger: its tiles may be too tall),
    a doubling of a size of the layer 2, hence so does the next TP or EP; another kernel 8, another routing 1.
    """
    total = 2.0 * sum(abs(_doublings(wanted, facts, name)) for name in _SIZES)
    tokens = _doublings(wanted, facts, "tokens")
    total += abs(tokens) + (0.25 if tokens > 0 else 0.0)
    for name, weight in (("kernel", 8.0), ("format", 4.0), ("routing", 1.0), ("shape", 0.125)):
        total += weight * (facts.get(name) != wanted[name])
    return total


def nearest_feasible(pool: Pool, config: Mapping[str, int]) -> Config:
    """Return the config of the pool that differs in the fewest axes, then by the fewest steps along them.

    Values that an axis lacks are moved to its nearest, and axes that the config lacks are free.
    """
    steps = {
        axis: {value: abs(i - _nearest(values, config[axis])) for i, value in enumerate(values)}
        for axis, values in pool.axes.items()
        if axis in config
    }

    def cost(other: Config) -> tuple[int, int]:
        moved = [steps[axis][value] for axis, value in other.items_ if axis in steps]
        return sum(map(bool, moved)), sum(moved)

    return min(pool.configs, key=cost)


def _source(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(facts.get(name) for name in (*_SIZES, "tokens", "kernel", "format", "routing", "shape"))


def _doublings(wanted: Mapping[str, Any], facts: Mapping[str, Any], name: str) -> float:
    """Return log2 of a known number over the wanted one; a number not known counts as 4 doublings."""
    return math.log2(facts[name] / wanted[name]) if facts.get(name) else 4.0


def _nearest(values: Sequence[int], value: int) -> int:
    """Return the position of the value nearest on a log scale, the smaller of two."""
    return min(range(len(values)), key=lambda i: abs(math.log2((values[i] + 1) / (max(value, 0) + 1))))
