"""Every config of the pool, in an order that problems with equal pools share."""

from __future__ import annotations

import numpy as np

from moetune.search._base import PoolSampler, Seen
from moetune.search.design import Ints
from moetune.space import Pool


class ExhaustiveSampler(PoolSampler):
    """Walks a seeded permutation of the pool, so that a walk cut short is a fair sample."""

    def __init__(self, pool: Pool, seed: int, name: str) -> None:
        super().__init__(pool, seed, name)
        self.rank = np.empty(len(pool.configs), dtype=np.int64)
        self.rank[np.random.default_rng([seed, pool.stage]).permutation(len(self.rank))] = np.arange(len(self.rank))

    def choose(self, seen: Seen, free: Ints) -> int:
        """Return the free config that comes first."""
        return int(free[np.argmin(self.rank[free])])
