"""Cold-cache timing of launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from moetune.model.trial import Timing

FLUSH_BYTES = 256 << 20
"""Read before every sample, at least (twice that on ROCm, whose last-level cache torch does not report).

It is read, not written: written lines would be written back inside the timed span."""

CPU_FLUSH_BYTES = 64 << 20
"""The most a CPU timer reads: larger last-level caches are shared with other work anyway."""


class Timer(Protocol):
    """Measures launches; `policy` is stored with each measurement."""

    policy: dict[str, Any]

    def capture(self, launch: Callable[[], object], label: str, warm: Callable[[], object] | None = None) -> Any:
        """Return something that `run` can replay; `warm` runs after the flush, outside the timed span."""

    def run(self, replays: Sequence[Any]) -> list[float]:
        """Return the microseconds of each replay, in order, each from a cold cache."""


def timing_of(samples_us: Sequence[float], *, dropped: bool = False) -> Timing:
    """Return the median and half the interquartile range of samples."""
    ordered = sorted(samples_us)
    count = len(ordered)
    spread = (ordered[(3 * count) // 4 if count > 1 else 0] - ordered[count // 4]) / 2 if count > 1 else 0.0
    return Timing(round(statistics.median(ordered), 3), round(spread, 3), count, dropped)


class GraphTimer:
    """Times replays of a CUDA or HIP graph between two events, queued behind a read of the flush buffer."""

    def __init__(self, device: torch.device) -> None:
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        size = max(FLUSH_BYTES * (2 if torch.version.hip else 1), 2 * l2)
        self.policy = {"cache": "cold", "replay": "graph", "flush_bytes": size, "statistic": "median"}
        self._flush = torch.ones(size // 4, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, launch: Callable[[], object], label: str, warm: Callable[[], object] | None = None) -> Any:
        """Capture a launch that has run before (nothing may compile or synchronise inside)."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            graph.capture_begin()
            try:
                launch()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph, warm

    def run(self, replays: Sequence[Any]) -> list[float]:
        """Queue every flush, start event, replay and end event, then wait once."""
        events = []
        for graph, warm in replays:
            torch.sum(self._flush, dim=0, out=self._sum)
            if warm is not None:
                warm()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in events]


class ClockTimer:
    """Times calls on the CPU by the monotonic clock, each after a read of twice the last-level cache."""

    def __init__(self, device: torch.device) -> None:
        from moetune.device.machine import last_level_cache_bytes

        size = min(2 * last_level_cache_bytes(), CPU_FLUSH_BYTES)
        self.policy = {"cache": "cold", "replay": "call", "flush_bytes": size, "statistic": "median"}
        self._flush = torch.ones(size // 4, dtype=torch.float32)

    def capture(self, launch: Callable[[], object], label: str, warm: Callable[[], object] | None = None) -> Any:
        """Return the call itself."""
        return launch, warm

    def run(self, replays: Sequence[Any]) -> list[float]:
        """Call each launch once."""
        samples = []
        for launch, warm in replays:
            self._flush.sum()
            if warm is not None:
                warm()
            start = time.perf_counter_ns()
            launch()
            samples.append((time.perf_counter_ns() - start) / 1e3)
        return samples


def make_timer(path: str, device: torch.device) -> Timer:
    """Return the timer named `module:Class`, or the device's own for an empty path."""
    if path:
        import importlib

        module, _, attribute = path.partition(":")
        timer: Timer = getattr(importlib.import_module(module), attribute)(device)
        return timer
    return ClockTimer(device) if device.type == "cpu" else GraphTimer(device)
