"""A pool of CPU processes, without a device context, that compile candidates."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future, TimeoutError, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from moetune.device.child import Stopped, die_with_parent, first_line
from moetune.device.machine import usable_cores
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.model.trial import Outcome, Resources

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
DEADLINE_S = 120.0
"""The longest one candidate may compile."""


@dataclass(frozen=True)
class Compiled:
    """What became of one compilation; `disk` says that the disk failed, not the candidate."""

    outcome: Outcome
    reason: str = ""
    resources: Resources | None = None
    seconds: float = 0.0
    disk: bool = False


@dataclass(frozen=True)
class Job:
    """One binary to compile: a config of a stage of a problem, by the implementation at a path.

    `binary` is what the kernel says decides the binary: jobs that agree in it are compiled once.
    """

    implementation: str
    stage: int
    config: Config
    problem: Problem
    target: Target
    binary: Hashable

    @property
    def key(self) -> Hashable:
        """The binary's identity."""
        return self.implementation, self.stage, self.binary


def compile_job(job: Job) -> Compiled:
    """Compile one job in this process; whatever the compiler raises becomes data."""
    from moetune.kernel import load_implementation

    begun = time.perf_counter()
    try:
        code = _LOADED.get(job.implementation) or load_implementation(job.implementation)
        _LOADED[job.implementation] = code
        resources = code.compile(job.stage, job.config, job.problem, job.target)
    except Exception as error:  # a compiler may fail in any way
        disk = isinstance(error, OSError) and error.errno in _DISK
        return Compiled(Outcome.COMPILE_ERROR, first_line(error), seconds=time.perf_counter() - begun, disk=disk)
    seconds = time.perf_counter() - begun
    if resources.shared_bytes > job.target.shared_bytes > 0:
        reason = f"shared memory {resources.shared_bytes:,} of {job.target.shared_bytes:,} bytes"
        return Compiled(Outcome.RESOURCE_ERROR, reason, resources, seconds)
    return Compiled(Outcome.OK, "", resources, seconds)


_LOADED: dict[str, Any] = {}


def _start(environment: Mapping[str, str], log: str, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(10)  # the device worker must not wait for a core while it queues launches
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    die_with_parent(parent)


def compile_workers() -> int:
    """Return how many processes compile: every core but two, where there are more than four."""
    cores = usable_cores()
    return cores - 2 if cores > 4 else cores


class CompilePool:
    """Compiles each binary once; `want` asks for some now, `ahead` fills idle workers with more.

    Create and close it in the thread that outlives all others: the workers end with it.
    """

    def __init__(self, workers: int, environment: Mapping[str, str], log: Path, deadline_s: float = DEADLINE_S) -> None:
        self.workers = workers
        self.compiled = 0
        self._deadline_s = deadline_s
        self._lock = threading.RLock()  # a finished future calls back at once
        self._jobs: dict[Hashable, Future[Compiled]] = {}
        self._backlog: deque[Job] = deque()
        self._busy = 0
        self._closed = False
        self._pool = ProcessPool(
            max_workers=workers,
            context=get_context("spawn"),
            initializer=_start,
            initargs=(dict(environment), str(log), os.getpid()),
        )
        self._pool.schedule(os.getpid).result()  # start the workers from this thread

    def want(self, jobs: Iterable[Job]) -> list[Future[Compiled]]:
        """Return the future of each job, scheduled unless it is already. Raises Stopped once closed."""
        with self._lock:
            if self._closed:
                raise Stopped
            return [self._jobs.get(job.key) or self._schedule(job) for job in jobs]

    def ahead(self, jobs: Iterable[Job]) -> None:
        """Queue jobs to be compiled whenever workers would idle."""
        with self._lock:
            self._backlog.extend(jobs)
            self._refill()

    def _schedule(self, job: Job) -> Future[Compiled]:
        future: Future[Compiled] = self._pool.schedule(compile_job, args=(job,), timeout=self._deadline_s)
        self._jobs[job.key] = future
        self._busy += 1
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[Compiled]) -> None:
        with self._lock:
            self._busy -= 1
            self.compiled += 1
            self._refill()

    def _refill(self) -> None:
        while self._backlog and self._busy < self.workers + 2 and not self._closed:
            job = self._backlog.popleft()
            if job.key not in self._jobs:
                self._schedule(job)

    def result(self, future: Future[Compiled]) -> Compiled:
        """Wait for a compilation; a hang or an abort of its process becomes data. Raises Stopped once closed."""
        while not future.done():
            if self._closed:  # the pool forgets the futures of tasks that it kills
                raise Stopped
            wait([future], timeout=0.2)
        try:
            return future.result()
        except TimeoutError:
            return Compiled(Outcome.TIMEOUT, "the compiler did not end within its deadline and was killed")
        except ProcessExpired as error:
            if self._closed:
                raise Stopped from error
            code = error.exitcode
            how = signal.Signals(-code).name if isinstance(code, int) and code < 0 else f"status {code}"
            return Compiled(Outcome.COMPILE_ERROR, f"the compiler's process ended ({how})")
        except (CancelledError, BrokenExecutor) as error:
            raise Stopped from error

    def close(self) -> None:
        """Stop every worker at once; whoever waits for a result gets Stopped."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._backlog.clear()
        self._pool.stop()
        self._pool.join()
