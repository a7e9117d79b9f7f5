"""The command line in child processes, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

PLUGINS = Path(__file__).parent / "plugins"


@dataclass
class Moetune:
    """Runs the command line in child processes that carry a mark, so that none can be missed."""

    site: Path
    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *words: str, **options: object) -> subprocess.Popen[str]:
        """Start a command in the test's folder."""
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "MOETUNE_TEST_MARK": self.mark,
            "COLUMNS": "100",
            **self.environment,
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(
            [sys.executable, "-m", "moetune", *words], cwd=self.folder, env=env, text=True, **{**pipes, **options}
        )  # type: ignore[call-overload, no-any-return]

    def __call__(self, *words: str, timeout_s: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(list(words), process.returncode, out, err)

    def children(self) -> list[int]:
        """Return the processes that carry the mark and still run."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # gone, or not ours
                continue
        return found

    def all_gone(self, within_s: float) -> bool:
        """Wait until no process carries the mark."""
        end = time.monotonic() + within_s
        while self.children():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True
