from __future__ import annotations

import io
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from verdicts import failed, tie, verdict

from moetune.live import Current, LiveView, Progress, duration, line_of, picture, verdict_line

DATA = Path(__file__).parent / "data"
BUSY = Progress(
    problems_done=12,
    problems_total=36,
    current=(
        Current("qwen3.5-397b-a17b/tp1/bf16/t64/uniform", "stage 1", 812.34, 1003.1, 654.0, "0"),
        Current("qwen3.5-397b-a17b/tp2/bf16/t8192/zipf:1.2", "finals", gpu="1"),
    ),
    compiled=1234,
    timed=800,
    elapsed_s=192.4,
    compile_rate=15.24,
    time_rate=8.1,
    census={"compile_error": 12, "ok": 700, "timeout": 1, "inaccurate": 40, "out_of_bounds": 3, "excluded": 0},
    eta_s=3800.0,
    recent=(
        "timeout: tile_m=16;tile_n=128;tile_k=64;num_buffers=3;prefetch=1;num_warps=4;group_m=8: no answer in 20 s",
    ),
    gpus="2 GPUs: 0, 1 (NVIDIA H200)",
)


def drawn(progress: Progress, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(picture(progress, width))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(("name", "progress"), [("busy", BUSY), ("begun", Progress(0, 3, gpus="cpu, 4 cores"))])
def test_picture_is_as_the_snapshot(name, progress, width):
    shown = drawn(progress, width)
    assert shown == (DATA / f"live_{name}_{width}.txt").read_text("utf-8")
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("width", [30, 60])
def test_picture_stays_within_a_narrow_terminal(width):
    assert max(map(len, drawn(BUSY, width).splitlines())) <= width


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def piped() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None, _environ={"TERM": "xterm"})


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_a_line_comes_every_thirty_seconds():
    console, clock = piped(), Clock()
    with LiveView(console=console, clock=clock) as view:
        for _ in range(241):  # a minute at 4 Hz
            view.update(BUSY)
            clock.now += 0.25
    assert text(console).splitlines() == [line_of(BUSY)] * 2


def test_without_a_terminal_a_problem_ends_with_one_line_of_any_length():
    console = piped()
    with LiveView(console=console) as view:
        view.done(verdict(16))
    assert text(console) == ("demo/tp1/bf16/t16/uniform: tuned, 80.0 ± 0.5 us, default 100.0 ± 0.6 us, 1.25x\n")


def test_quiet_prints_warnings_only():
    for console in (piped(), terminal()):
        clock = Clock()
        with LiveView(quiet=True, console=console, clock=clock) as view:
            clock.now += 100
            view.update(BUSY)
            view.log("a line")
            view.done(verdict(16))
            view.warn("the clock moved")
        assert text(console) == "warning: the clock moved\n"


def test_on_a_terminal_the_picture_is_drawn_lines_go_above_and_it_is_wiped_at_the_end():
    console, clock = terminal(), Clock()
    with LiveView(console=console, clock=clock) as view:
        view.update(BUSY)
        view.log("demo: done")
        clock.now += 1
        view.update(replace(BUSY, problems_done=13))
        before = text(console)
    assert "12 of 36 problems" in before and "demo: done" in before and "13 of 36 problems" in before
    assert text(console)[len(before) :].endswith("\x1b[2K")  # the last thing written erases a line
    assert "\x1b[?25h" in text(console)  # the cursor is shown again


def test_on_a_terminal_it_redraws_five_times_a_second_and_starts_no_thread():
    console, clock = terminal(), Clock()
    threads = threading.active_count()
    with LiveView(console=console, clock=clock) as view:
        for _ in range(100):  # a second at 100 Hz
            view.update(BUSY)
            clock.now += 0.01
        assert threading.active_count() == threads
    assert 4 <= text(console).count("12 of 36 problems") <= 6


def test_a_dumb_terminal_gets_lines():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, _environ={"TERM": "dumb"})
    with LiveView(console=console) as view:
        view.log("one line")
    assert text(console) == "one line\n"


def test_verdict_lines_say_what_stands():
    assert verdict_line(tie(16)) == "demo/tp1/bf16/t16/uniform: tie, 100.0 ± 0.6 us with the default's config"
    assert verdict_line(failed(16)).startswith("demo/tp1/bf16/t16/uniform: failed: the default's rel_l2")


def test_line_without_times_says_so():
    line = line_of(Progress(0, 3, (Current("demo/tp1/cpu/t16/uniform", "stage 1"),)))
    assert line == (
        "[0:00] 0 of 3 problems; demo/tp1/cpu/t16/uniform stage 1: nothing timed yet; compiled 0; timed 0; "
        "time left not known"
    )


def test_where_nothing_is_timed_no_word_is_said_of_times():
    now = Progress(0, 3, (Current("demo/tp1/cpu/t16/uniform", "compiling"),))
    assert line_of(now).startswith("[0:00] 0 of 3 problems; demo/tp1/cpu/t16/uniform compiling; compiled 0;")
    assert "timed yet" not in drawn(now, 80)
    both = Progress(0, 3, (Current("demo/tp1/cpu/t16/uniform", "both stages"),))
    assert "nothing timed yet" in drawn(both, 80)


@pytest.mark.parametrize(("seconds", "shown"), [(7, "0:07"), (59.7, "1:00"), (192, "3:12"), (3723, "1:02:03")])
def test_duration(seconds, shown):
    assert duration(seconds) == shown
