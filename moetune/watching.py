"""What a sweep shows of itself while it runs: from the board to the live view."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from moetune.board import Board, Tally
from moetune.live import LiveView, Progress
from moetune.sweep import Order


def beside(plan: Callable[[], float]) -> Future[float]:
    """Run a plan in a thread that nobody waits for."""
    future: Future[float] = Future()

    def work() -> None:
        try:
            future.set_result(plan())
        except Exception as error:  # a plan that fails is no reason to lose a sweep
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def made(expected: Future[float]) -> float | None:
    """Return the estimate, or None where it is not made yet or failed."""
    return expected.result() if expected.done() and expected.exception() is None else None


def watcher(view: LiveView, order: Order, expected: Future[float]) -> Callable[[Board, int], None]:
    """Return what the sweep calls at 4 Hz: it prints warnings and verdicts once, and updates the view."""
    shown: set[str] = set()
    greeted: list[bool] = []

    def watch(board: Board, compiled: int) -> None:
        with board:
            tally = board.tally
            verdicts = [v for key, v in board.verdicts.items() if key not in shown]
            warnings = list(tally.warnings)
            tally.warnings.clear()
            elapsed_s = time.monotonic() - tally.started
            progress = Progress(
                problems_done=tally.done,
                problems_total=tally.total,
                current=tuple(tally.current.values()),
                compiled=compiled,
                timed=tally.timed,
                elapsed_s=elapsed_s,
                compile_rate=compiled / max(elapsed_s, 1e-9),
                time_rate=tally.timed / max(elapsed_s, 1e-9),
                census=dict(tally.census),
                eta_s=_left_s(tally, elapsed_s, expected),
                recent=tuple(tally.notes),
                gpus=", ".join(f"{d.name} {d.product}" for d in order.devices),
            )
            if tally.kept and not greeted:
                greeted.append(True)
                view.log(f"resuming {order.out}: {tally.kept} trials kept")
        for warning in warnings:
            view.warn(warning)
        for verdict in verdicts:
            shown.add(verdict.problem)
            view.done(verdict)
        view.update(progress)

    return watch


def _left_s(tally: Tally, elapsed_s: float, expected: Future[float]) -> float | None:
    """Return the time left: by the problems done, before the first is by the plan; None where neither tells."""
    if tally.done:
        return elapsed_s / tally.done * (tally.total - tally.done)
    plan_s = made(expected)
    return plan_s - elapsed_s if plan_s is not None and plan_s > elapsed_s else None
