"""A killable child process that serves one object's methods over a pipe."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class ChildDied(Exception):
    """The child ended before it answered; the message says how."""


class ChildTimeout(Exception):
    """The child did not answer in time and was killed."""


class ChildError(Exception):
    """The call raised in the child, which lives on; the message is the first line of the error."""


class Stopped(Exception):
    """The sweep is being stopped; what was under way was given up."""


LOST = (ChildDied, ChildTimeout, ChildError)
"""All the ways in which a call fails without an answer."""


class Child:
    """Runs `module:Class` in a new process; its output goes to `log`. Every call has a deadline.

    The child sits in a session of its own, so that a terminal's Ctrl-C reaches the parent alone, and ends
    with the thread that started it.
    """

    def __init__(self, path: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, open(log, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moetune.device.child", path, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
            self._pipe = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Call a method; raise ChildError, or ChildDied or ChildTimeout, after which the child is gone."""
        try:
            self._pipe.send((method, arguments))
            if not self._pipe.poll(timeout_s):
                self.kill()
                raise ChildTimeout(f"no answer within {timeout_s:.0f} s")
            fine, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)  # an exit under way keeps its own status
            self.kill()
            raise ChildDied(_ending(self._process.returncode)) from error
        if not fine:
            raise ChildError(value)
        return value

    def kill(self) -> None:
        """Kill the child with everything in its session, and reap it."""
        self.signal_kill()
        self._process.wait()
        self._pipe.close()

    def signal_kill(self) -> None:
        """Kill the child from another thread; the call under way finds it dead."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may end in this moment, or be reaped by another thread
                os.killpg(self._process.pid, signal.SIGKILL)


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"the worker exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the worker was ended by {name}"


def die_with_parent(parent: int) -> None:
    """End this process when the parent's process or starting thread does, within two seconds."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def first_line(error: BaseException) -> str:
    """Return an error as one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:400]}" if text else type(error).__name__


def _serve(make: Callable[[], Any], pipe: Connection) -> None:
    served = make()
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, getattr(served, method)(*arguments))
        except (Exception, SystemExit) as error:  # the boundary: whatever a kernel raises becomes data
            import traceback

            traceback.print_exc()
            answer = (False, first_line(error))
        pipe.send(answer)


def main() -> None:
    """Serve the object named on the command line."""
    path, descriptor, parent = sys.argv[1:]
    die_with_parent(int(parent))
    module, _, attribute = path.partition(":")
    _serve(getattr(importlib.import_module(module), attribute), Connection(int(descriptor)))
    sys.stdout.flush()
    os._exit(0)  # a device context may hang in its own destructors


if __name__ == "__main__":
    main()
