"""What tuning a problem needs of its surroundings: device, compilers, memory, effort."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from moetune.device.answers import Facts
from moetune.device.compiling import CompilePool, Job
from moetune.device.lane import Lane
from moetune.kernel import Kernel
from moetune.model.config import Config
from moetune.model.policy import Policy
from moetune.model.problem import Problem
from moetune.model.progress import Current
from moetune.model.target import Target
from moetune.model.trial import Final, Trial
from moetune.space import Pool


@dataclass(frozen=True)
class Effort:
    """How hard to search; what changes none of the measurements. `start_from` is a hash of the user's configs."""

    trials: int = 100
    sampler: str = "auto"
    seed: int = 0
    coupling: str = "none"
    start_from: str = ""


class Record(Protocol):
    """Where trials are remembered and written; safe to call from several lanes."""

    def known(self, problem: str, identity: str, stage: int, config: Config) -> Trial | None:
        """Return the trial already made, or None."""

    def trial(self, trial: Trial) -> None:
        """Keep a trial."""

    def final(self, final: Final) -> None:
        """Keep a final."""


@dataclass
class Bench:
    """One kernel on one lane, with what is shared between lanes.

    `machine` is what a measurement is identified by. `starting` returns the starting configs of a stage, `watch` is
    told where the work stands. `deadline` (monotonic seconds) bounds the search of the
    problem at hand, its stages sharing what is left. `seconds` and
    `complete` are of the problem at hand.
    """

    kernel: Kernel
    target: Target
    facts: Facts
    machine: dict[str, Any]
    lane: Lane
    compilers: CompilePool | None
    record: Record
    effort: Effort
    policy: Policy
    command: str
    starting: Callable[[Problem, int, Pool], Sequence[Config]]
    watch: Callable[[Current], None]
    deadline: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    complete: bool = True

    def identity(self, problem: Problem) -> str:
        """Return the hash of all that must agree for a measurement to be used again."""
        policy = {**self.facts.policy, **asdict(self.policy)}
        return identity_of(problem, self.machine, policy, self.effort.seed)

    def defaults(self, problem: Problem) -> tuple[Config, ...]:
        """Return the default config of each stage the kernel has."""
        return tuple(self.kernel.default(stage, problem, self.target) for stage in self.kernel.stages)

    def job(self, stage: int, config: Config, problem: Problem) -> Job:
        """Return the compilation that a config of a problem needs."""
        binary = self.kernel.binary(stage, config, problem)
        return Job(self.kernel.implementation, stage, config, problem, self.target, binary)

    def spend(self, part: str, begun: float) -> None:
        """Add the time since `begun` (monotonic seconds) to a part of the problem's time."""
        self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - begun


def start(lane: Lane, kernel: Kernel, target: Target) -> tuple[Target, Facts, dict[str, Any]]:
    """Start a lane's worker for a kernel; raise MachineError where it does not start.

    Returns the target, with measured rates where it states none, what the worker tells, and what a measurement is
    identified by.
    """
    facts = lane.start(kernel.name, measure_rates=not target.bandwidth)
    if facts.rates:
        target = replace(target, bandwidth=facts.rates["bandwidth"], peaks={"bf16": facts.rates["bf16"]})
    device = lane.device
    where = {"product": device.product, "arch": device.arch, "cu_num": device.cu_num}
    return target, facts, {**where, **facts.software, "kernel_hash": kernel.source_hash()}


def identity_of(problem: Problem, machine: Mapping[str, Any], policy: Mapping[str, Any], seed: int) -> str:
    """Hash product, versions, kernel sources, problem, random seed and policy, 16 hexadecimal digits."""
    text = json.dumps([problem.facts(), dict(machine), dict(policy), seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def tile_rows(kernel: Kernel) -> int:
    """Return the most rows or columns that one tile spans, for the guard zones."""
    extents = ("tile_m", "tile_n", "tile_k")
    axes = [kernel.axes(stage) for stage in kernel.stages]
    return max((max(found[axis]) for found in axes for axis in extents if axis in found), default=256)
