"""The live view of a sweep: a picture that redraws on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from moetune.model.progress import Current
from moetune.model.verdict import Decision, Verdict

if TYPE_CHECKING:
    from rich.console import Console, Group

REDRAW_S = 0.2
"""The least time between two pictures."""
EVERY_S = 30.0
"""How often a line is printed where stderr is no terminal."""
_GAP = "   "
_TIMING = ("stage 1", "stage 2", "both stages")
"""The stages in which candidates are timed: that none is yet says something."""


@dataclass(frozen=True)
class Progress:
    """A sweep at one moment.

    `compiled` and `timed` count configs, `compile_rate` and `time_rate` are per second; `census` counts
    trials by outcome; `eta_s` is the time left, None while not known; `recent` are the last exclusions and
    failures, a line each; `gpus` names the devices in use.
    """

    problems_done: int
    problems_total: int
    current: tuple[Current, ...] = ()
    compiled: int = 0
    timed: int = 0
    elapsed_s: float = 0.0
    compile_rate: float = 0.0
    time_rate: float = 0.0
    census: Mapping[str, int] = field(default_factory=dict)
    eta_s: float | None = None
    recent: tuple[str, ...] = ()
    gpus: str = ""


def picture(progress: Progress, width: int) -> Group:
    """Return the live view, at most `width` columns wide; lines break between facts, not in a number."""
    from rich.console import Group
    from rich.text import Text

    done, total = progress.problems_done, progress.problems_total
    head = f"{done} of {total} problems"
    times = f"{duration(progress.elapsed_s)} gone, {_left(progress.eta_s)}"
    room = max(10, width - len(head) - len(times) - 4)
    full = room * done // total if total else 0
    bar = Text.assemble((head, "bold"), "  ", ("━" * full, "green"), ("─" * (room - full), "dim"), "  ", times)
    lines = [bar]
    lines += [Text(line, style="dim") for line in _flow([progress.gpus], width)] if progress.gpus else []
    for current in progress.current:
        lines += [Text(line, style="bold") for line in _flow(_where(current), width)]
        lines += [Text(line) for line in _flow(_times(current), width, "  ")]
    facts = [
        f"compiled {progress.compiled} ({progress.compile_rate:.1f}/s)",
        f"timed {progress.timed} ({progress.time_rate:.1f}/s)",
    ]
    lines += [Text(line) for line in _flow(facts, width)]
    counts = sorted(progress.census.items(), key=lambda pair: (pair[0] != "ok", -pair[1], pair[0]))
    lines += [Text(line) for line in _flow([f"{n} {name.replace('_', ' ')}" for name, n in counts if n], width)]
    for line in progress.recent:
        cut = Text("  " + line, style="yellow")
        cut.truncate(width, overflow="ellipsis")
        lines.append(cut)
    for text in lines:
        text.no_wrap = True
    return Group(*lines)


def line_of(progress: Progress) -> str:
    """Return the one line that stands for the picture where stderr is no terminal."""
    parts = [f"{progress.problems_done} of {progress.problems_total} problems"]
    parts += [": ".join(filter(None, [" ".join(_where(c)), ", ".join(_times(c))])) for c in progress.current]
    parts += [f"compiled {progress.compiled}", f"timed {progress.timed}", _left(progress.eta_s)]
    return f"[{duration(progress.elapsed_s)}] " + "; ".join(parts)


def verdict_line(verdict: Verdict) -> str:
    """Return the line that ends a problem."""
    if verdict.decision is Decision.FAILED:
        return f"{verdict.problem}: failed: {verdict.reason}"
    times = f"{verdict.us:.1f} ± {verdict.spread_us:.1f} us"
    if verdict.decision is not Decision.TUNED:
        return f"{verdict.problem}: {verdict.decision}, {times} with the default's config"
    default = f"default {verdict.default_us:.1f} ± {verdict.default_spread_us:.1f} us"
    return f"{verdict.problem}: tuned, {times}, {default}, {verdict.default_us / verdict.us:.2f}x"


def duration(seconds: float) -> str:
    """Return seconds as ``0:07``, ``3:12`` or ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _left(eta_s: float | None) -> str:
    return "time left not known" if eta_s is None else f"{duration(eta_s)} left"


def _where(current: Current) -> list[str]:
    return [*([f"GPU {current.gpu}"] if current.gpu else []), current.problem, current.stage]


def _times(current: Current) -> list[str]:
    best, default, floor = current.best_us, current.default_us, current.floor_us
    if best is None and default is None:
        return ["nothing timed yet"] if current.stage in _TIMING else []
    if best is None:
        return [f"default {default:.1f} us"]
    parts = [f"best {best:.1f} us"]
    parts += [f"default {default:.1f} us ({default / best:.2f}x)"] if default else []
    parts += [f"floor {floor:.1f} us ({floor / best:.0%} reached)"] if floor else []
    return parts


def _flow(parts: Sequence[str], width: int, indent: str = "") -> list[str]:
    """Return the parts on as few lines as hold them whole; a part longer than a line is folded."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(_GAP) + len(part) <= width:
            lines[-1] += _GAP + part
            continue
        line = indent + part
        while len(line) > width:
            lines.append(line[:width])
            line = line[width:]
        lines.append(line)
    return lines


class LiveView:
    """Shows a sweep on stderr while it runs; a context manager.

    On a terminal the picture is redrawn in place when `update` is called, at most five times a second (by
    no thread of its own: the driver starts children). Elsewhere a line is printed every 30 s. `quiet` leaves
    only warnings.
    """

    def __init__(
        self, quiet: bool = False, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self.quiet = quiet
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if terminal and not quiet else None
        self._shown = clock() if self._live is None else clock() - REDRAW_S

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        """Show the sweep as it is now; cheap enough to call in every turn of the driver's loop."""
        if self.quiet or self._clock() - self._shown < (EVERY_S if self._live is None else REDRAW_S):
            return
        self._shown = self._clock()
        if self._live is None:
            self._print(line_of(progress))
        else:
            self._live.update(picture(progress, self._console.width), refresh=True)

    def log(self, line: str) -> None:
        """Print a line, above the picture where there is one."""
        if not self.quiet:
            self._print(line)

    def done(self, verdict: Verdict) -> None:
        """Print the line that ends a problem."""
        self.log(verdict_line(verdict))

    def warn(self, line: str) -> None:
        """Print a warning, also when quiet."""
        self._print(f"warning: {line}")

    def _print(self, line: str) -> None:
        if self._live is None:
            print(line, file=self._console.file, flush=True)
        else:
            from rich.text import Text

            self._console.print(Text(line))
