"""What tests share: a folder of binaries, a command line, and a third party's kernels, really installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import PLUGINS, Moetune


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the test kernels' package into a folder of its own."""
    source = tmp_path_factory.mktemp("source") / "plugins"
    shutil.copytree(PLUGINS, source, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, stdin=subprocess.DEVNULL)
    return target


@pytest.fixture
def compiled(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep Triton's binaries in one folder for all tests of a run, whichever worker runs them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def moetune(site: Path, tmp_path: Path) -> Iterator[Moetune]:
    """A command line of this test's own; at its end no process of it may be left."""
    command = Moetune(site, tmp_path)
    yield command
    gone = command.all_gone(within_s=5)
    for pid in command.children():
        os.kill(pid, signal.SIGKILL)
    assert gone, "a process of the test outlived it"
