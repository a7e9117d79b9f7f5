"""A timer that measures nothing: times are a pure function of what would run."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any


def scripted_us(label: str) -> float:
    """Return a time between 20 and 120 us for a label's configs, whatever the phase."""
    key, _, *configs = label.split(" | ")
    total = 0.0
    for config in configs:
        digest = hashlib.sha256(f"{key} {config}".encode()).digest()
        total += 20 + int.from_bytes(digest[:4], "big") / 2**32 * 100
    return round(total, 3)


class ScriptedTimer:
    """Answers from the label; sleeps a little, so that a test can interrupt."""

    def __init__(self, device: Any) -> None:
        self.policy = {"timer": "scripted"}
        self._sleep_s = float(os.environ.get("SCRIPTED_SLEEP_S", "0"))

    def capture(self, launch: Callable[[], object], label: str, warm: Callable[[], object] | None = None) -> Any:
        return label

    def run(self, replays: Sequence[Any]) -> list[float]:
        time.sleep(self._sleep_s)
        return [scripted_us(label) if " | " in label else 1.0 for label in replays]
