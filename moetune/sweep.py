"""A sweep: which problems, on which devices, in which order, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shlex
import signal
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moetune import __version__
from moetune.board import Board
from moetune.device.child import Stopped
from moetune.device.compiling import CompilePool, Job, compile_workers
from moetune.device.lane import Deadlines, Lane
from moetune.device.machine import Device
from moetune.errors import Interrupted, MoetuneError, OutputError, SweepFailed
from moetune.holding import caught_signals, hold
from moetune.kernel import Kernel
from moetune.lanes import attend, finish, told
from moetune.ledger import NAME, Ledger, Records, read_ledger
from moetune.model.policy import Policy
from moetune.model.problem import Problem
from moetune.model.progress import Current
from moetune.model.target import Target
from moetune.model.verdict import Decision, Verdict
from moetune.search import Known, StageSearch
from moetune.space import enumerate_pool
from moetune.tuning import tune
from moetune.workbench import Bench, Effort, start

_BUSY = 0.1  # a spread above this share of the median is no quiet device's


@dataclass(frozen=True)
class Order:
    """What to sweep and how; everything that decides it is recorded in the ledger's header."""

    problems: tuple[Problem, ...]
    kernels: dict[str, Kernel]
    devices: tuple[Device, ...]
    target: Target
    out: Path
    effort: Effort = field(default_factory=Effort)
    policy: Policy = field(default_factory=Policy)
    minutes: float | None = None
    fresh: bool = False
    start_from: tuple[Known, ...] = ()
    timer: str = ""
    deadlines: Deadlines = field(default_factory=Deadlines)
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a sweep ended: its verdicts in the order of the problems, and the error that stopped it, if one did."""

    verdicts: tuple[Verdict, ...]
    seconds: float
    error: MoetuneError | None = None


def run(order: Order, watch: Callable[[Board, int], None]) -> Ended:
    """Sweep; `watch(board, binaries compiled)` is called at 4 Hz from this thread.

    Raises OutputError or MachineError where it cannot begin. What stops it later is the error of what it returns:
    Interrupted by a signal, OutputError where the disk is full, SweepFailed where a problem has no correct default.
    The ledger holds all that was measured.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold(order.out, order.devices))
        ledger, records = open_ledger(order)
        stack.callback(ledger.close)
        ledger.header(_header(order))
        board = Board(order.problems, order.effort, order.start_from, ledger, records)
        if records is not None and records.torn:
            board.tally.warnings.append(f"{ledger.path}: its torn last line was dropped")
        signals = stack.enter_context(caught_signals())
        compilers = _start_compilers(order)
        lanes = [
            Lane(
                device, order.out / "worker.log", _environment(order),
                timer=order.timer, policy=order.policy, deadlines=order.deadlines,
            )
            for device in order.devices
        ]  # fmt: skip
        threads = [threading.Thread(target=_drive, args=(lane, order, board, compilers), daemon=True) for lane in lanes]
        begun = time.monotonic()
        try:
            attend(threads, signals, lambda: watch(board, compilers.compiled if compilers is not None else 0))
        finally:
            board.stop()
            finish(threads, lanes, compilers)
        watch(board, compilers.compiled if compilers is not None else 0)
        verdicts = tuple(board.verdicts[p.key] for p in order.problems if p.key in board.verdicts)
        return Ended(verdicts, time.monotonic() - begun, _error(order, board, signals, verdicts))


def _error(order: Order, board: Board, signals: list[int], verdicts: tuple[Verdict, ...]) -> MoetuneError | None:
    resume = f"resume with: {resume_command(order)}"
    if signals:
        return Interrupted(f"stopped by {signal.Signals(signals[0]).name}; {resume}", signals[0])
    if board.failure is not None:
        return type(board.failure)(f"{board.failure}; {resume}")
    failed = [v for v in verdicts if v.decision is Decision.FAILED]
    if not failed:
        return None
    first = f"{failed[0].problem}: {failed[0].reason}"
    return SweepFailed(f"{len(failed)} of {len(verdicts)} problems have no row; first: {first}")


def resume_command(order: Order) -> str:
    """Return the command that goes on where a sweep stopped."""
    words = [word for word in order.command if word != "--fresh"]
    return shlex.join(words) if words else f"the same command with --out {shlex.quote(str(order.out))}"


def _header(order: Order) -> dict[str, Any]:
    device = order.devices[0]
    return {
        "moetune": __version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": list(order.command),
        "effort": dataclasses.asdict(order.effort),
        "policy": dataclasses.asdict(order.policy),
        "deadlines": dataclasses.asdict(order.deadlines),
        "minutes": order.minutes,
        "timer": order.timer,
        "machine": {"product": device.product, "arch": device.arch, "cu_num": device.cu_num},
        "devices": len(order.devices),
        "problems": [p.facts() for p in order.problems],
        "kernels": {name: kernel.source_hash() for name, kernel in order.kernels.items()},
    }


def open_ledger(order: Order) -> tuple[Ledger, Records | None]:
    """Open the ledger of the output folder, with what it holds; `fresh` moves an old one aside."""
    path = order.out / NAME
    try:
        if path.exists() and order.fresh:
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(path.stat().st_mtime))
            names = (path.with_name(f"ledger-{stamp}{f'-{n}' if n else ''}.jsonl") for n in itertools.count())
            path.rename(next(name for name in names if not name.exists()))
    except OSError as error:
        raise OutputError(f"{path}: cannot be moved aside ({error.strerror}); choose another --out") from error
    records = read_ledger(path) if path.exists() and path.stat().st_size else None
    return Ledger(path, keep=records.size if records is not None and records.torn else None), records


def _start_compilers(order: Order) -> CompilePool | None:
    if not any(kernel.compiles_ahead for kernel in order.kernels.values()):
        return None
    return CompilePool(compile_workers(), _environment(order), order.out / "compile.log")


def _environment(order: Order) -> dict[str, str]:
    return {"TRITON_CACHE_DIR": str((order.out / "cache").resolve())}


def _drive(lane: Lane, order: Order, board: Board, compilers: CompilePool | None) -> None:
    """Take problems until none is left; the body of a lane's thread."""
    try:
        _take_all(lane, order, board, compilers)
    except Stopped:
        pass
    except Exception as error:  # a fault of moetune's own must stop the sweep with a message, not a dead thread
        board.stop(told(error, lane, order.out))
    finally:
        lane.lose()


def _take_all(lane: Lane, order: Order, board: Board, compilers: CompilePool | None) -> None:
    bench: Bench | None = None
    began = time.monotonic()
    while (problem := board.next()) is not None:
        kernel = order.kernels[problem.kernel]
        if bench is None or bench.kernel is not kernel:
            bench = _bench(lane, order, board, compilers, kernel)
        past = board.past(problem, bench.identity(problem), bench.defaults(problem))
        if past is not None:
            board.done(problem, past, fresh=False)
            continue
        if order.minutes is not None:
            left_s = max(began + order.minutes * 60 - time.monotonic(), 0.0)
            share_s = left_s * len(order.devices) / board.left()
            bench.deadline = time.monotonic() + share_s
        verdict = tune(problem, bench)
        missed = lane.compiled() if kernel.compiles_ahead else 0
        with board:
            board.tally.current.pop(lane.device.name, None)
            if verdict.us and verdict.spread_us > _BUSY * verdict.us:
                board.tally.warnings.append(
                    f"{problem.key}: samples spread widely; is the device busy with other work?"
                )
            if missed:
                board.tally.warnings.append(f"{problem.key}: its worker compiled {missed} binaries itself")
        board.done(problem, verdict, fresh=True)


def _bench(lane: Lane, order: Order, board: Board, compilers: CompilePool | None, kernel: Kernel) -> Bench:
    target, facts, machine = start(lane, kernel, order.target)
    device = lane.device
    board.header({
        "kernel": kernel.name, "machine": machine, "timing": facts.policy, "timer_floor_us": facts.timer_floor_us,
        "rates": {"bandwidth": target.bandwidth, **target.peaks},
    })  # fmt: skip

    def watch(current: Current) -> None:
        with board:
            board.tally.current[device.name] = dataclasses.replace(
                current, gpu=device.name if len(order.devices) > 1 else ""
            )

    bench = Bench(
        kernel, target, facts, machine, lane, compilers, board, order.effort, order.policy, shlex.join(order.command),
        board.starting, watch,
    )  # fmt: skip
    if compilers is not None and kernel.compiles_ahead:
        threading.Thread(target=_compile_ahead, args=(bench, order, board, compilers), daemon=True).start()
    return bench


def _compile_ahead(bench: Bench, order: Order, board: Board, compilers: CompilePool) -> None:
    """Queue for idle compile workers each search's first round, and pools of which it will try a good part anyway."""
    mine = [
        p
        for p in order.problems
        if p.kernel == bench.kernel.name and board.past(p, bench.identity(p), bench.defaults(p)) is None
    ]
    effort = order.effort
    jobs: dict[int, dict[Hashable, Job]] = {stage: {} for stage in bench.kernel.stages}
    for problem in mine:
        for stage, found in jobs.items():
            pool = enumerate_pool(bench.kernel, stage, problem, bench.target)
            search = StageSearch(
                pool, bench.kernel.default(stage, problem, bench.target), (),
                problem=problem.key, budget=effort.trials, sampler=effort.sampler, seed=effort.seed,
            )  # fmt: skip
            compilers.ahead([bench.job(stage, config, problem) for config in search.ask()])
            for config in pool.configs:
                job = bench.job(stage, config, problem)
                found.setdefault(job.key, job)
    asked = len(mine) * order.effort.trials
    wanted = [list(found.values()) for found in jobs.values() if asked >= len(found)]
    compilers.ahead(job for row in itertools.zip_longest(*wanted) for job in row if job is not None)
