"""One device as the driver sees it: its worker, deadlines, and restarts after a fault."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moetune.device.answers import Attempt, Entrant, Facts, Prepared, Run
from moetune.device.child import LOST, Child, ChildDied, ChildError, ChildTimeout, Stopped
from moetune.device.machine import Device, sm_clock_mhz
from moetune.errors import MachineError
from moetune.model.config import Config
from moetune.model.policy import Policy
from moetune.model.problem import Problem
from moetune.model.trial import Outcome, Phase, Timing

WORKER = "moetune.device.worker:Worker"


@dataclass(frozen=True)
class Deadlines:
    """The longest each call may take, in seconds; `first` is for a candidate that compiles at its launch.

    Far above what a working device takes (importing torch 10 s, the largest problem 20 s), so that only a hang ends
    by them.
    """

    start: float = 180.0
    prepare: float = 300.0
    attempt: float = 20.0
    first: float = 140.0
    final: float = 300.0


@dataclass(frozen=True)
class _Load:
    problem: Problem
    seed: int
    defaults: tuple[Config, ...]
    tile_rows: int


class Lane:
    """Drives the worker of one device from one thread; a lost worker is replaced before the next call."""

    def __init__(
        self,
        device: Device,
        log: Path,
        environment: Mapping[str, str],
        *,
        timer: str,
        policy: Policy,
        deadlines: Deadlines,
    ) -> None:
        self.device = device
        self.deadlines = deadlines
        self._policy = policy
        self._log = log
        self._environment = environment
        self._timer = timer
        self._stop = threading.Event()
        self._child: Child | None = None
        self._kernel = ""
        self._measure = False
        self._load: _Load | None = None

    def start(self, kernel: str, *, measure_rates: bool) -> Facts:
        """Start the worker for a kernel, in a new process unless one runs; raise MachineError if it cannot."""
        self._kernel, self._measure, self._load = kernel, measure_rates, None
        try:
            return self._start()
        except LOST as error:
            self._check_stop()
            raise MachineError(
                f"{self.device.name} ({self.device.product}): the worker does not start: {error}; see {self._log}"
            ) from error

    def _start(self) -> Facts:
        if self._child is None:
            self._check_stop()
            self._child = Child(WORKER, self._log, self._environment)
        facts: Facts = self._call(
            "start",
            self._kernel,
            self.device.name,
            self._timer,
            self._policy,
            self._measure,
            timeout_s=self.deadlines.start,
        )
        return facts

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        self._check_stop()
        assert self._child is not None
        try:
            return self._child.call(method, *arguments, timeout_s=timeout_s)
        except (ChildDied, ChildTimeout):
            self._child = None
            self._check_stop()
            raise

    def prepare(self, problem: Problem, seed: int, defaults: Sequence[Config], tile_rows: int) -> Prepared:
        """Load a problem; raise ChildError, ChildDied or ChildTimeout where its default cannot even run."""
        self._load = _Load(problem, seed, tuple(defaults), tile_rows)
        if self._child is None:
            self._start()
        return self._prepare()

    def _prepare(self) -> Prepared:
        load = self._load
        assert load is not None
        prepared: Prepared = self._call(
            "prepare",
            load.problem,
            load.seed,
            load.defaults,
            load.tile_rows,
            timeout_s=self.deadlines.prepare,
        )
        return prepared

    def _ready(self) -> None:
        """Replace a lost worker, check that the device answers, and load the problem again."""
        for again in (True, False):
            if self._child is not None:
                return
            try:
                self._start()
                self._prepare()
            except LOST as error:
                self.lose()
                if not again:
                    raise MachineError(
                        f"{self.device.name} ({self.device.product}) does not come back after a fault: {error}; "
                        f"see {self._log}, then run the same command again to resume"
                    ) from error

    def attempt(self, stage: int, config: Config, give_up_us: float | None, *, compiles: bool) -> Attempt:
        """Check and time a candidate; a death of the worker or a hang is the candidate's outcome."""
        self._ready()
        timeout_s = self.deadlines.first if compiles else self.deadlines.attempt
        try:
            attempt: Attempt = self._call("attempt", stage, config, give_up_us, timeout_s=timeout_s)
        except ChildTimeout:
            return Attempt(Phase.CHECK, Outcome.TIMEOUT, f"no result within {timeout_s:.0f} s; the worker was killed")
        except (ChildDied, ChildError) as error:
            self.lose()
            return Attempt(Phase.CHECK, Outcome.RUNTIME_ERROR, str(error))
        if attempt.lost:
            self.lose()
        return attempt

    def stage_final(self, stage: int, configs: Sequence[Config]) -> list[Timing]:
        """Re-time configs of a stage, interleaved; raise one of LOST, after which the worker is replaced."""
        timings: list[Timing] = self._final("stage_final", stage, list(configs))
        return timings

    def products_final(self, pairs: Sequence[tuple[Config, ...]]) -> list[Timing]:
        """Time the stages of pairs together, interleaved; raise one of LOST, after which the worker is replaced."""
        timings: list[Timing] = self._final("products_final", list(pairs))
        return timings

    def rivals(self, configs: tuple[Config, ...]) -> list[str]:
        """Return the names of the kernel's other ways to compute the layer; raise one of LOST."""
        names: list[str] = self._final("rivals", configs)
        return names

    def layer_final(self, entrants: Sequence[Entrant]) -> list[Run]:
        """Time and check whole layers, interleaved; raise one of LOST, after which the worker is replaced."""
        runs: list[Run] = self._final("layer_final", list(entrants))
        return runs

    def verify(self, pairs: Sequence[tuple[Config, ...]]) -> list[str]:
        """Check pairs on other draws; raise one of LOST, after which the worker is replaced."""
        reasons: list[str] = self._final("verify", list(pairs))
        return reasons

    def _final(self, method: str, *arguments: Any) -> Any:
        self._ready()
        try:
            return self._call(method, *arguments, timeout_s=self.deadlines.final)
        except ChildError:
            self.lose()  # the device may be left in any state
            raise

    def compiled(self) -> int:
        """Return how many binaries the worker had to compile itself since last asked; 0 where it is lost."""
        if self._child is None:
            return 0
        try:
            return int(self._call("compiled", timeout_s=self.deadlines.attempt))
        except LOST:
            return 0

    def clock_mhz(self) -> int | None:
        """Return the SM clock now, where NVML tells it."""
        return sm_clock_mhz(self.device.uuid) if self.device.arch != "cpu" else None

    def lose(self) -> None:
        """Kill the worker; the next call starts another."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def stop(self) -> None:
        """End the worker for good; a call under way in the lane's thread raises Stopped."""
        self._stop.set()
        child = self._child
        if child is not None:
            child.signal_kill()
