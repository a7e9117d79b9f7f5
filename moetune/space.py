"""The feasible configs of a stage, and a reason for each that is not."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from moetune.kernel import Constraint, Kernel, rules_of
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target


@dataclass(frozen=True)
class Exclusion:
    """A config left out, the constraint that left it out, and why."""

    config: Config
    constraint: str
    reason: str


@dataclass(frozen=True)
class Pool:
    """The feasible configs of one stage of one problem, in enumeration order."""

    stage: int
    axes: Mapping[str, tuple[int, ...]]
    configs: tuple[Config, ...]
    exclusions: tuple[Exclusion, ...]

    @cached_property
    def index(self) -> dict[Config, int]:
        """Position of each feasible config."""
        return {config: i for i, config in enumerate(self.configs)}

    def __contains__(self, config: object) -> bool:
        return config in self.index

    def census(self) -> dict[str, int]:
        """Return how many configs each constraint left out, most first."""
        return dict(Counter(e.constraint for e in self.exclusions).most_common())

    def coordinates(self, config: Config) -> tuple[int, ...]:
        """Return the position of each value on its axis."""
        return tuple(values.index(config[axis]) for axis, values in self.axes.items())

    def neighbours(self, config: Config) -> list[Config]:
        """Return the feasible configs that differ in one axis."""
        return [
            other
            for axis, values in self.axes.items()
            for value in values
            if value != config[axis] and (other := config.replace(**{axis: value})) in self.index
        ]


def exclusion(kernel: Kernel, stage: int, config: Config, problem: Problem, target: Target) -> Exclusion | None:
    """Return why a config is not feasible, by the first constraint that says so."""
    return _first(rules_of(kernel, stage), config, problem, target)


def _first(constraints: tuple[Constraint, ...], config: Config, problem: Problem, target: Target) -> Exclusion | None:
    for constraint in constraints:
        reason = constraint.check(config, problem, target)
        if reason is not None:
            return Exclusion(config, constraint.name, reason)
    return None


def enumerate_pool(kernel: Kernel, stage: int, problem: Problem, target: Target) -> Pool:
    """Enumerate the axes of a stage and sort each config into the pool or the exclusions."""
    axes, constraints = dict(kernel.axes(stage)), rules_of(kernel, stage)
    feasible: list[Config] = []
    excluded: list[Exclusion] = []
    for values in itertools.product(*axes.values()):
        config = Config(tuple(zip(axes, values, strict=True)))
        found = _first(constraints, config, problem, target)
        if found is None:
            feasible.append(config)
        else:
            excluded.append(found)
    return Pool(stage, axes, tuple(feasible), tuple(excluded))
