"""The search of one problem and stage: rounds of configs out, trials in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import optuna
from optuna.trial import TrialState

from moetune.errors import KernelError
from moetune.model.config import Config
from moetune.model.trial import Trial
from moetune.search._base import PoolSampler
from moetune.search.design import spread
from moetune.search.exhaustive import ExhaustiveSampler
from moetune.search.gp import GpSampler
from moetune.search.random import RandomSampler
from moetune.search.schedule import GUIDED, ROUND_SIZE, next_round, resolve
from moetune.search.tpe import TpeSampler
from moetune.space import Pool

_SAMPLERS: dict[str, type[PoolSampler]] = {
    "gp": GpSampler,
    "tpe": TpeSampler,
    "random": RandomSampler,
    "exhaustive": ExhaustiveSampler,
}
_POLISHED = 2  # how many of the best have their neighbours tried at the end


class StageSearch:
    """Asks for rounds of configs and is told their trials; an optuna study in memory keeps what is known.

    A round's proposals are a pure function of the pool, the random seed, the problem, the policy (sampler, budget,
    starting configs) and the trials of earlier rounds. So a search resumes by being asked from round 0 again and told
    the trials that are known. `round` counts the rounds completed; `sampler` is what `auto` stood for. Starting
    configs outside the pool are left out.
    """

    def __init__(
        self,
        pool: Pool,
        default: Config,
        starting: Sequence[Config],
        *,
        problem: str,
        budget: int,
        sampler: str,
        seed: int,
        round_size: int = ROUND_SIZE,
    ) -> None:
        """Raise KernelError where the default is not in the pool, UsageError on an unknown sampler."""
        if default not in pool:
            raise KernelError(f"{problem}: the default of stage {pool.stage} ({default}) {why_not(pool, default)}")
        self.pool = pool
        self.sampler = resolve(sampler, len(pool.configs), budget)
        self.round = 0
        self._fixed = list(dict.fromkeys([default, *(config for config in starting if config in pool)]))
        self._total = min(budget, len(pool.configs))
        self._seed = seed
        self._round_size = round_size
        self._chooser = _SAMPLERS[self.sampler](pool, seed, problem)
        self._asked: dict[Config, optuna.trial.Trial] = {}
        self._told: dict[Config, float | None] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(sampler=self._chooser)

    def ask(self) -> list[Config]:
        """Return the configs of the round to run, the same until it is told; none when budget or pool is spent."""
        if not self._asked:
            following = next_round(self.sampler, len(self._told), self._total, len(self._fixed), self._round_size)
            if following is None:
                return []
            if following.phase == "start":
                for config in self._start(following.size):
                    self._ask(among=[self.pool.index[config]])
            among = self._near_best() if following.phase == "polish" else []
            while len(self._asked) < following.size:
                self._ask(among)
        return list(self._asked)

    def tell(self, trials: Iterable[Trial]) -> None:
        """Take the results of the round asked for, in any order; raise ValueError where one is missing."""
        results = {trial.config: trial for trial in trials}
        missing = [config for config in self.ask() if config not in results]
        if missing:
            raise ValueError(f"round {self.round} is not complete: no trial of {missing[0]}")
        for config, asked in self._asked.items():
            self._record(results[config], asked)
        self.round += 1
        self._asked = {}

    def _start(self, size: int) -> list[Config]:
        """Return the first round's configs that no sampler chooses."""
        configs = dict.fromkeys(self._fixed)
        if self.sampler in GUIDED:
            for index in spread(self.pool, size, self._seed):
                configs.setdefault(self.pool.configs[index])
        return list(configs)[:size]

    def _ask(self, among: Sequence[int]) -> None:
        self._chooser.among = among
        asked = self._study.ask(fixed_distributions=self._chooser.distributions)
        self._asked[Config(tuple((axis, asked.params[axis]) for axis in self.pool.axes))] = asked

    def _near_best(self) -> list[int]:
        """Return the pool indices one axis away from the best configs."""
        timed = [(value, self.pool.index[config]) for config, value in self._told.items() if value is not None]
        best = [self.pool.configs[index] for _, index in sorted(timed)[:_POLISHED]]
        return [self.pool.index[near] for config in best for near in self.pool.neighbours(config)]

    def _record(self, trial: Trial, asked: optuna.trial.Trial) -> None:
        """Tell the study one result, as log microseconds or as failed."""
        value = math.log(trial.timing.median_us) if trial.ok and trial.timing else None
        self._told[trial.config] = value
        self._study.tell(asked, value, TrialState.FAIL if value is None else TrialState.COMPLETE)


def why_not(pool: Pool, config: Config) -> str:
    """Return why a config is not in a pool."""
    if set(config) != set(pool.axes):
        return f"does not have the axes {', '.join(pool.axes)}"
    for axis, values in pool.axes.items():
        if config[axis] not in values:
            return f"has {axis} {config[axis]}, which is not one of {', '.join(map(str, values))}"
    reasons = [excluded.reason for excluded in pool.exclusions if excluded.config == config]
    return f"is excluded: {reasons[0]}" if reasons else "is not in the pool"
