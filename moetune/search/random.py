"""Uniform choice: the control that the guided samplers must beat."""

from __future__ import annotations

from moetune.search._base import PoolSampler, Seen
from moetune.search.design import Ints


class RandomSampler(PoolSampler):
    """Draws from the free configs."""

    def choose(self, seen: Seen, free: Ints) -> int:
        """Draw one."""
        return int(self.random(seen).choice(free))
