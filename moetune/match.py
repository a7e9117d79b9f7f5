"""A match: a contest for every claim, on the devices of their kernels."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moetune.claims import Claims
from moetune.device.child import Stopped
from moetune.device.compiling import CompilePool, Job, compile_workers
from moetune.device.lane import Deadlines, Lane
from moetune.device.machine import Device
from moetune.errors import BenchFailed, Interrupted, KernelError, MoetuneError
from moetune.holding import caught_signals, hold
from moetune.lanes import attend, finish, told
from moetune.model.config import Config
from moetune.model.contest import Claim, Contest
from moetune.model.policy import Policy
from moetune.model.target import Target
from moetune.model.trial import Final, Trial
from moetune.referee import judge, pairs_of
from moetune.workbench import Bench, Effort, start


@dataclass(frozen=True)
class Match:
    """What to re-time and where: `targets` and `devices` are by the kernel's name."""

    claims: Claims
    targets: dict[str, Target]
    devices: dict[str, Device]
    out: Path
    policy: Policy = field(default_factory=Policy)
    deadlines: Deadlines = field(default_factory=Deadlines)
    timer: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """The contests held, in the order of the claims, and the error that stopped them or that they found, if any."""

    contests: tuple[Contest, ...]
    error: MoetuneError | None = None


def hold_contests(match: Match, tell: Callable[[Contest], None]) -> Ended:
    """Hold a contest for every claim; `tell` hears of each as it ends, from this thread.

    Nothing but logs and compiled binaries is written to `match.out`. Raises OutputError or MachineError where it cannot
    begin. What it returns ends in BenchFailed where a row does not hold, in Interrupted where a signal came.
    """
    devices = {device.name: device for device in match.devices.values()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold(match.out, list(devices.values())))
        signals = stack.enter_context(caught_signals())
        environment = {"TRITON_CACHE_DIR": str((match.out / "cache").resolve())}
        ahead = [c for c in match.claims.claims if match.claims.kernels[c.problem.kernel].compiles_ahead]
        jobs = 2 * 3 * len(ahead)  # row, default and fixed default, two stages each
        pool = CompilePool(min(compile_workers(), jobs), environment, match.out / "compile.log") if ahead else None
        lanes = {
            name: Lane(
                device, match.out / "worker.log", environment,
                timer=match.timer, policy=match.policy, deadlines=match.deadlines,
            )
            for name, device in devices.items()
        }  # fmt: skip
        held: list[Contest] = []
        failures: list[MoetuneError] = []
        heard: list[Contest] = []

        def look() -> None:
            for contest in held[len(heard) :]:
                heard.append(contest)
                tell(contest)

        thread = threading.Thread(target=_drive, args=(match, lanes, pool, held, failures), daemon=True)
        try:
            attend([thread], signals, look)
        finally:
            finish([thread], list(lanes.values()), pool)
        look()
        contests = sorted(held, key=lambda contest: contest.claim.number)  # they were held kernel by kernel
        return Ended(tuple(contests), _error(match, contests, failures, signals))


def _error(
    match: Match, held: Sequence[Contest], failures: Sequence[MoetuneError], signals: Sequence[int]
) -> MoetuneError | None:
    if signals:
        again = shlex.join(match.command) or "the same command"
        count = f"{len(held)} of {len(match.claims.claims)} rows timed"
        return Interrupted(f"stopped by {signal.Signals(signals[0]).name}, {count}; again: {again}", signals[0])
    if failures:
        return failures[0]
    bad = [contest for contest in held if not contest.standing.holds]
    if not bad:
        return None
    names = ", ".join(str(contest.claim.number) for contest in bad)
    return BenchFailed(
        f"{len(bad)} of {len(held)} rows do not hold (row {names}); "
        f"first: {bad[0].claim.name}: {bad[0].standing}: {bad[0].reason}"
    )


def _drive(
    match: Match, lanes: dict[str, Lane], pool: CompilePool | None, held: list[Contest], failures: list[MoetuneError]
) -> None:
    """Judge the claims, kernel by kernel; the body of the thread that owns the children."""
    lane = next(iter(lanes.values()))
    try:
        for name, kernel in match.claims.kernels.items():
            claims = [claim for claim in match.claims.claims if claim.problem.kernel == name]
            if not claims:
                continue
            lane = lanes[match.devices[name].name]
            target, facts, machine = start(lane, kernel, match.targets[name])
            bench = Bench(
                kernel, target, facts, machine, lane, pool, Unrecorded(), Effort(), match.policy,
                shlex.join(match.command), lambda *_: (), lambda _: None,
            )  # fmt: skip
            if pool is not None and kernel.compiles_ahead:
                pool.want(job for claim in claims if not claim.fault for job in _jobs(claim, bench))
            for claim in claims:
                held.append(judge(claim, bench))
    except Stopped:
        pass
    except Exception as error:  # a fault of moetune's own must end in a message, not in a dead thread
        failures.append(told(error, lane, match.out))
    finally:
        for each in lanes.values():
            each.lose()


class Unrecorded:
    """A record that keeps nothing: what a contest measures is for its report alone."""

    def known(self, problem: str, identity: str, stage: int, config: Config) -> None:
        """Return None: everything is measured anew."""

    def trial(self, trial: Trial) -> None:
        """Keep nothing."""

    def final(self, final: Final) -> None:
        """Keep nothing."""


def _jobs(claim: Claim, bench: Bench) -> Iterator[Job]:
    with contextlib.suppress(KernelError):  # a default that does not exist is told when the claim is judged
        for pair in pairs_of(claim, bench).values():
            for stage, config in zip(bench.kernel.stages, pair, strict=True):
                yield bench.job(stage, config, claim.problem)
