"""The tree-structured Parzen estimator, evaluated exactly over the free configs."""

from __future__ import annotations

import numpy as np

from moetune.search._base import PoolSampler, Seen
from moetune.search.design import Floats, Ints, positions
from moetune.space import Pool

_GOOD = 0.15  # share of what was timed that counts as good
_SAME = 0.6  # probability that a kernel keeps an axis value; the rest falls off with the distance in steps
_PRIOR = 1.0  # weight of the uniform density over the pool, in configs


class TpeSampler(PoolSampler):
    """Ranks free configs by the density of the good ones over that of the others.

    Both are mixtures over the configs seen of a product of kernels, one an axis (multivariate, as in Falkner,
    Klein and Hutter 2018); scoring the enumerated pool needs no draws, hence no duplicates and no infeasible ones.
    Failed and pending configs count among the others.
    """

    def __init__(self, pool: Pool, seed: int, name: str) -> None:
        super().__init__(pool, seed, name)
        self._where = positions(pool)
        self._kernels = [_kernel(len(values)) for values in pool.axes.values()]

    def choose(self, seen: Seen, free: Ints) -> int:
        """Return the free config of the largest ratio; draw one while nothing has been timed."""
        if not len(seen.ok):
            return int(self.random(seen).choice(free))
        ranked = seen.ok[np.argsort(seen.values, kind="stable")]
        good = max(1, round(_GOOD * len(ranked)))
        others = np.concatenate([ranked[good:], seen.failed, seen.pending])
        ratio = np.log(self._density(ranked[:good], free)) - np.log(self._density(others, free))
        return int(free[np.argmax(ratio)])

    def _density(self, centres: Ints, at: Ints) -> Floats:
        """Return the mixture's density at pool indices `at`, up to a constant."""
        weights = np.ones((len(centres), len(at)))
        for axis, kernel in enumerate(self._kernels):
            weights *= kernel[self._where[centres, axis][:, None], self._where[at, axis][None, :]]
        density: Floats = (weights.sum(axis=0) + _PRIOR / len(self.pool.configs)) / (len(centres) + _PRIOR)
        return density


def _kernel(values: int) -> Floats:
    """Return the probability of moving from each value of an axis to each, [values, values]."""
    steps = np.abs(np.arange(values)[:, None] - np.arange(values)[None, :])
    away = np.where(steps > 0, 0.5**steps, 0.0)
    if values == 1:
        return np.ones((1, 1))
    found: Floats = np.where(steps == 0, _SAME, (1.0 - _SAME) * away / away.sum(axis=1, keepdims=True))
    return found
