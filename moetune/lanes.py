"""The threads that drive lanes: watched, ended, and what stopped one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

from moetune.device.compiling import CompilePool
from moetune.device.lane import Lane
from moetune.errors import MoetuneError


def attend(threads: Sequence[Thread], signals: list[int], look: Callable[[], None]) -> None:
    """Start threads, and look on at 4 Hz until all have ended or a signal came."""
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not signals:
        for thread in threads:
            thread.join(0.25 / len(threads))
        look()


def finish(threads: Sequence[Thread], lanes: Sequence[Lane], compilers: CompilePool | None) -> None:
    """End the children of lanes and of the compile pool, then the threads that wait for them."""
    for lane in lanes:
        lane.stop()
    if compilers is not None:
        compilers.close()
    for thread in threads:
        thread.join(30)


def told(error: Exception, lane: Lane, out: Path) -> MoetuneError:
    """Return what stopped a lane as an error in one line; the trace of a fault of moetune's own goes to a log."""
    if isinstance(error, MoetuneError):
        return error
    import traceback

    with open(out / "fault.log", "a") as log:
        traceback.print_exception(error, file=log)
    return MoetuneError(f"internal fault on {lane.device.name}: {error!r}; see {out / 'fault.log'}")
