"""What the samplers share: an optuna sampler that only ever answers with a free config of the pool."""

from __future__ import annotations

import abc
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from moetune.model.config import Config
from moetune.search.design import Floats, Ints
from moetune.space import Pool


@dataclass(frozen=True)
class Seen:
    """What is known of a pool, as indices into it, ascending.

    `ok` ran and took exp(`values`) microseconds, `failed` ran wrong, `pending` was proposed and is not told yet;
    the last is in the order proposed.
    """

    ok: Ints
    values: Floats
    failed: Ints
    pending: Ints


class PoolSampler(BaseSampler):  # type: ignore[misc]  # optuna is imported untyped
    """Chooses among the free configs of an enumerated pool: no config twice, none that is infeasible.

    A choice is a pure function of the random seed, `name` and what is seen, never of the order of results.
    """

    def __init__(self, pool: Pool, seed: int, name: str) -> None:
        self.pool = pool
        self.seed = [seed, pool.stage, zlib.crc32(name.encode())]
        self.among: Sequence[int] = ()  # pool indices preferred while any of them is free
        self.distributions: dict[str, BaseDistribution] = {
            axis: CategoricalDistribution(values) for axis, values in pool.axes.items()
        }

    @abc.abstractmethod
    def choose(self, seen: Seen, free: Ints) -> int:
        """Return one of the `free` pool indices (ascending, never empty)."""

    def random(self, seen: Seen) -> np.random.Generator:
        """Return the generator that belongs to this state of knowledge."""
        return np.random.default_rng([*self.seed, len(seen.ok) + len(seen.failed) + len(seen.pending)])

    def seen(self, study: Study) -> Seen:
        """Read a study's trials."""
        ok, failed, pending = {}, [], []
        for trial in study.get_trials(deepcopy=False):
            if len(trial.params) < len(self.pool.axes):
                continue  # the trial being asked for
            index = self.pool.index[Config(tuple((axis, trial.params[axis]) for axis in self.pool.axes))]
            if trial.state is TrialState.COMPLETE:
                ok[index] = trial.value
            elif trial.state is TrialState.FAIL:
                failed.append(index)
            else:
                pending.append(index)
        order = sorted(ok)
        return Seen(
            np.array(order, dtype=np.int64),
            np.array([ok[index] for index in order], dtype=np.float64),
            np.array(sorted(failed), dtype=np.int64),
            np.array(pending, dtype=np.int64),
        )

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return every axis: configs are chosen whole."""
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Choose a free config; raise ValueError where none is left."""
        seen = self.seen(study)
        taken = {*seen.ok.tolist(), *seen.failed.tolist(), *seen.pending.tolist()}
        free = [index for index in self.among if index not in taken]
        free = free or [index for index in range(len(self.pool.configs)) if index not in taken]
        if not free:
            raise ValueError("the pool is spent")
        index = free[0] if len(free) == 1 else self.choose(seen, np.array(sorted(free), dtype=np.int64))
        return dict(self.pool.configs[index])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: an axis by itself has no feasible values."""
        raise ValueError(f"{param_name} is not an axis of the pool")
