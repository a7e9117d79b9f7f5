"""Runs a script in a process of its own whose Triton kernels are interpreted, once in a test run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock


def interpret(factory: pytest.TempPathFactory, script: Path, *words: str) -> Any:
    """Return the JSON that a script prints; every process of a test run gets it from the first that asks.

    Triton chooses its interpreter by TRITON_INTERPRET before a kernel is defined, so that interpreted kernels cannot
    share a process with those that are compiled.
    """
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    result = folder / f"{script.stem}-{'-'.join(words)}.json"
    with FileLock(f"{result}.lock"):
        if not result.exists():
            done = subprocess.run(
                [sys.executable, str(script), *words],
                env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=240,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-2000:]
            result.write_text(done.stdout)
    return json.loads(result.read_text())
