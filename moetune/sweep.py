"""A sweep: which problems, on which devices, in which order, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shlex
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from moetune import __version__
from moetune.device.compiling import CompilePool, Job
from moetune.device.lane import Deadlines, Lane, Stopped
from moetune.device.machine import Device
from moetune.errors import Interrupted, MachineError, MoetuneError, OutputError, SweepFailed
from moetune.kernel import Kernel
from moetune.ledger import NAME, Ledger, Records, read_ledger
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.model.trial import Decision, Final, Trial, Verdict
from moetune.search.starts import Known, starting_configs
from moetune.space import Pool, enumerate_pool
from moetune.tuning import Bench, Effort, identity_of, job_of, tune


@dataclass(frozen=True)
class Order:
    """What to sweep and how; everything that decides it is recorded in the ledger's header."""

    problems: tuple[Problem, ...]
    kernels: dict[str, Kernel]
    devices: tuple[Device, ...]
    target: Target
    out: Path
    effort: Effort = field(default_factory=Effort)
    minutes: float | None = None
    fresh: bool = False
    start_from: tuple[Known, ...] = ()
    timer: str = ""
    deadlines: Deadlines = field(default_factory=Deadlines)
    workers: int = 0
    command: tuple[str, ...] = ()


@dataclass
class Tally:
    """What a sweep has done so far, for whoever watches; guarded by the board's lock."""

    total: int
    kept: int = 0
    done: int = 0
    compiled: int = 0
    timed: int = 0
    census: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    current: dict[str, tuple[str, str, float | None, float | None, float | None]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Ended:
    """How a sweep ended: its latest verdicts in the order of the problems."""

    verdicts: tuple[Verdict, ...]
    seconds: float


class Board:
    """The state that lanes share: what is to do, what is known, and the ledger, under one lock."""

    def __init__(self, order: Order, ledger: Ledger, records: Records | None) -> None:
        self.order = order
        self.tally = Tally(len(order.problems))
        self.failure: MoetuneError | None = None
        self.verdicts: dict[str, Verdict] = {}
        self._ledger = ledger
        self._changed = threading.Condition(threading.RLock())
        self._todo = list(order.problems)
        self._running: set[str] = set()
        self._stopped = False
        self._trials: dict[tuple[str, str, int, Config], Trial] = {}
        self._past: dict[str, Verdict] = {}
        if records is not None:
            for trial in records.trials:
                self._trials[trial.problem, trial.identity, trial.stage, trial.config] = trial
            self._past = {v.problem: v for v in records.verdicts}
        self.tally.kept = len(self._trials)

    def __enter__(self) -> Board:
        self._changed.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._changed.release()

    def known(self, problem: str, identity: str, stage: int, config: Config) -> Trial | None:
        """Return the trial already made, or None."""
        with self._changed:
            return self._trials.get((problem, identity, stage, config))

    def trial(self, trial: Trial) -> None:
        """Write and remember a trial."""
        with self._changed:
            self._ledger.trials([trial])
            self._trials[trial.problem, trial.identity, trial.stage, trial.config] = trial
            tally = self.tally
            tally.timed += trial.timing is not None
            tally.census[trial.outcome] = tally.census.get(trial.outcome, 0) + 1
            if trial.reason:
                tally.notes.append(f"{trial.outcome}: {trial.config}: {trial.reason}")

    def final(self, final: Final) -> None:
        """Write a final."""
        with self._changed:
            self._ledger.final(final)

    def past(self, problem: Problem, identity: str) -> Verdict | None:
        """Return the verdict of an earlier session with the same measurement and effort, or None."""
        verdict = self._past.get(problem.key)
        same = verdict is not None and verdict.identity == identity
        return verdict if same and verdict.search == dataclasses.asdict(self.order.effort) else None  # type: ignore[union-attr]

    def next(self) -> Problem | None:
        """Return a problem whose neighbours are done, waiting for one; None when nothing is left or all stops."""
        with self._changed:
            while not self._stopped and self._todo:
                for problem in self._todo:
                    if not any(n.key in self._running or n in self._todo for n in self.neighbours(problem)):
                        self._todo.remove(problem)
                        self._running.add(problem.key)
                        return problem
                self._changed.wait(0.5)
            return None

    def neighbours(self, problem: Problem) -> list[Problem]:
        """Return the problems that give starting configs: the next smaller bucket, and the same at the TP before."""
        same = [p for p in self.order.problems if p.chain == problem.chain and p.tokens < problem.tokens]
        beside = [
            p for p in self.order.problems if dataclasses.replace(p, tp=problem.tp) == problem and p.tp < problem.tp
        ]
        return [*same[-1:], *beside[-1:]]

    def done(self, problem: Problem, verdict: Verdict, *, fresh: bool) -> None:
        """Keep a verdict, and write it unless it stood in the ledger."""
        with self._changed:
            if fresh:
                self._ledger.verdict(verdict)
            self.verdicts[problem.key] = verdict
            self._running.discard(problem.key)
            self.tally.done += 1
            self._changed.notify_all()

    def stop(self, failure: MoetuneError | None = None) -> None:
        """Let no lane take another problem."""
        with self._changed:
            self.failure = self.failure or failure
            self._stopped = True
            self._changed.notify_all()

    def starting(self, problem: Problem, identity: str, stage: int, pool: Pool) -> list[Config]:
        """Return the starting configs of a stage from done neighbours and the user's file."""
        with self._changed:
            near = {n.key: n for n in self.neighbours(problem)}
            known = [
                Known(near[t.problem].facts(), t.stage, t.config, t.timing.median_us)
                for t in self._trials.values()
                if t.problem in near and t.stage == stage and t.ok and t.timing
            ]
        return starting_configs(problem, stage, pool, [*known, *self.order.start_from])


def run(order: Order, watch: Any) -> Ended:
    """Sweep; `watch(board)` is called at 4 Hz from this thread.

    Raises OutputError or MachineError where it cannot go on, Interrupted on a signal, SweepFailed where a
    problem has no correct default; the ledger holds all that was measured.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold(order.out, order.devices))
        ledger, records = open_ledger(order)
        stack.callback(ledger.close)
        ledger.header(_header(order))
        board = Board(order, ledger, records)
        signals = stack.enter_context(caught_signals())
        pool = _start_pool(order)
        if pool is not None:
            stack.callback(pool.close)
        log = order.out / "worker.log"
        environment = _environment(order)
        lanes = [Lane(d, log, environment, timer=order.timer, deadlines=order.deadlines) for d in order.devices]
        threads = [threading.Thread(target=_drive, args=(lane, board, pool), daemon=True) for lane in lanes]
        begun = time.monotonic()
        try:
            for thread in threads:
                thread.start()
            while any(t.is_alive() for t in threads) and not signals:
                for thread in threads:
                    thread.join(0.25 / len(threads))
                board.tally.compiled = pool.compiled if pool is not None else 0
                watch(board)
        finally:
            board.stop()
            for lane in lanes:
                lane.stop()
            for thread in threads:
                thread.join(30)
        watch(board)
        verdicts = tuple(board.verdicts[p.key] for p in order.problems if p.key in board.verdicts)
        if signals:
            name = signal.Signals(signals[0]).name
            raise Interrupted(f"stopped by {name}; resume with: {resume_command(order)}", signals[0])
        if board.failure is not None:
            message = f"{board.failure}; resume with: {resume_command(order)}"
            raise type(board.failure)(message) from board.failure
        return Ended(verdicts, time.monotonic() - begun)


def _header(order: Order) -> dict[str, Any]:
    device = order.devices[0]
    return {
        "moetune": __version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": list(order.command),
        "effort": dataclasses.asdict(order.effort),
        "minutes": order.minutes,
        "machine": {"product": device.product, "arch": device.arch, "cu_num": device.cu_num},
        "devices": len(order.devices),
        "problems": [p.facts() for p in order.problems],
        "kernels": {name: kernel.source_hash() for name, kernel in order.kernels.items()},
    }


def failures(ended: Ended) -> SweepFailed | None:
    """Return the error of a sweep some of whose problems have no row."""
    failed = [v for v in ended.verdicts if v.decision is Decision.FAILED]
    if not failed:
        return None
    return SweepFailed(
        f"{len(failed)} of {len(ended.verdicts)} problems have no row; first: {failed[0].problem}: {failed[0].reason}"
    )


def resume_command(order: Order) -> str:
    """Return the command that goes on where a sweep stopped."""
    words = [w for w in order.command if w != "--fresh"]
    return shlex.join(words) if words else f"the same command with --out {order.out}"


def _start_pool(order: Order) -> CompilePool | None:
    if not any(k.compiles_ahead for k in order.kernels.values()):
        return None
    workers = order.workers or compile_workers()
    return CompilePool(workers, _environment(order), order.out / "compile.log")


def compile_workers() -> int:
    """Return how many processes compile: every core but two, where there are more than four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores - 2 if cores > 4 else cores


def _environment(order: Order) -> dict[str, str]:
    return {"TRITON_CACHE_DIR": str((order.out / "cache").resolve())}


@contextlib.contextmanager
def hold(out: Path, devices: Sequence[Device]) -> Iterator[None]:
    """Hold the output folder and the GPUs; raise OutputError or MachineError where another sweep does."""
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(out / ".lock", timeout=0))
        except Timeout:
            raise OutputError(f"{out}: another sweep writes here; wait for it or choose another --out") from None
        except OSError as error:
            raise OutputError(f"{out}: cannot be written ({error.strerror}); choose another --out") from error
        for device in devices:
            if device.arch == "cpu":
                continue
            path = Path(tempfile.gettempdir()) / f"moetune-{device.uuid}.lock"
            try:
                stack.enter_context(FileLock(path, timeout=0, mode=0o666))
            except Timeout:
                raise MachineError(
                    f"{device.name} ({device.product}): another sweep uses it; wait for it or name others with --gpus"
                ) from None
            except OSError as error:
                raise OutputError(f"{path}: cannot be locked ({error.strerror}); remove the file") from error
        yield


def open_ledger(order: Order) -> tuple[Ledger, Records | None]:
    """Open the ledger of the output folder, with what it holds; `fresh` moves an old one aside."""
    path = order.out / NAME
    if path.exists() and order.fresh:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(path.stat().st_mtime))
        number = 0
        while (aside := path.with_name(f"ledger-{stamp}{f'-{number}' if number else ''}.jsonl")).exists():
            number += 1
        path.rename(aside)
    records = read_ledger(path) if path.exists() and path.stat().st_size else None
    return Ledger(path, keep=records.size if records is not None and records.torn else None), records


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list; a second one ends the process at once."""
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            os.write(2, b"\x1b[?25h" if os.isatty(2) else b"")  # the live view has hidden the cursor
            os._exit(128 + number)
        seen.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    old = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _drive(lane: Lane, board: Board, pool: CompilePool | None) -> None:
    """Take problems until none is left; the body of a lane's thread."""
    try:
        _take_all(lane, board, pool)
    except Stopped:
        pass
    except MoetuneError as error:
        board.stop(error)
    except Exception as error:  # a fault of moetune's own must stop the sweep with a message, not a dead thread
        import traceback

        traceback.print_exc()
        board.stop(MoetuneError(f"internal fault on {lane.device.name}: {error!r}"))
    finally:
        lane.lose()


def _take_all(lane: Lane, board: Board, pool: CompilePool | None) -> None:
    order = board.order
    bench: Bench | None = None
    began = time.monotonic()
    while (problem := board.next()) is not None:
        kernel = order.kernels[problem.kernel]
        if bench is None or bench.kernel is not kernel:
            bench = _bench(lane, board, pool, kernel)
        identity = bench.identity(problem)
        past = board.past(problem, identity)
        if past is not None:
            board.done(problem, past, fresh=False)
            continue
        if order.minutes is not None:
            left = began + order.minutes * 60 - time.monotonic()
            share = max(left, 0.0) * len(order.devices) / max(1, board.tally.total - board.tally.done)
            bench.deadline = time.monotonic() + share / len(kernel.stages)
        verdict = tune(problem, bench)
        missed = lane.compiled() if kernel.compiles_ahead else 0
        with board:
            board.tally.current.pop(lane.device.name, None)
            if missed:
                board.tally.warnings.append(
                    f"{problem.key}: the worker compiled {missed} binaries not found compiled ahead"
                )
        board.done(problem, verdict, fresh=True)


def _bench(lane: Lane, board: Board, pool: CompilePool | None, kernel: Kernel) -> Bench:
    order = board.order
    target = order.target
    facts = lane.start(kernel.name, measure_rates=not target.bandwidth)
    if facts.rates:
        target = dataclasses.replace(target, bandwidth=facts.rates["bandwidth"], peaks={"bf16": facts.rates["bf16"]})
    machine = {
        "product": lane.device.product,
        "arch": lane.device.arch,
        "cu_num": lane.device.cu_num,
        **facts.software,
        "kernel_hash": kernel.source_hash(),
    }

    def watch(key: str, stage: str, best: float | None, default: float | None, floor: float | None) -> None:
        with board:
            board.tally.current[lane.device.name] = (key, stage, best, default, floor)

    bench = Bench(
        kernel, target, facts, machine, lane, pool, board, order.effort, shlex.join(order.command),
        lambda p, stage, feasible: board.starting(p, identity_of(p, machine, facts.policy), stage, feasible), watch,
    )  # fmt: skip
    if pool is not None and kernel.compiles_ahead:
        threading.Thread(target=_compile_ahead, args=(bench, board, pool), daemon=True).start()
    return bench


def _compile_ahead(bench: Bench, board: Board, pool: CompilePool) -> None:
    """Queue whole pools for idle compile workers where the sweep will try a good part of them anyway."""
    mine = [p for p in board.order.problems if p.kernel == bench.kernel.name]
    jobs: dict[int, dict[Any, Job]] = {stage: {} for stage in bench.kernel.stages}
    for problem in mine:
        for stage, found in jobs.items():
            for config in enumerate_pool(bench.kernel, stage, problem, bench.target).configs:
                job = job_of(bench, stage, config, problem)
                found.setdefault(job.key, job)
    asked = len(mine) * board.order.effort.trials
    wanted = [list(found.values()) for found in jobs.values() if asked >= len(found)]
    pool.ahead(job for row in itertools.zip_longest(*wanted) for job in row if job is not None)
