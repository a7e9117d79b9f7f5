"""What a sweep holds while it runs: its output folder, its GPUs, and the signals that stop it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from moetune.device.machine import Device
from moetune.errors import MachineError, OutputError


@contextlib.contextmanager
def hold(out: Path, devices: Sequence[Device]) -> Iterator[None]:
    """Hold the output folder and the GPUs; raise OutputError or MachineError where another sweep does."""
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(out / ".lock", timeout=0))
        except Timeout:
            raise OutputError(f"{out}: another sweep writes here; wait for it or choose another --out") from None
        except OSError as error:
            raise OutputError(f"{out}: cannot be written ({error.strerror}); choose another --out") from error
        for device in devices:
            if device.arch == "cpu":
                continue
            path = Path(tempfile.gettempdir()) / f"moetune-{device.uuid}.lock"
            try:
                stack.enter_context(FileLock(path, timeout=0, mode=0o666))
            except Timeout:
                raise MachineError(
                    f"{device.name} ({device.product}): another sweep uses it; wait for it or name others with --gpus"
                ) from None
            except OSError as error:
                raise OutputError(f"{path}: cannot be locked ({error.strerror}); remove the file") from error
        yield


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list; a second one ends the process at once."""
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            os.write(2, b"\x1b[?25h" if os.isatty(2) else b"")  # the live view has hidden the cursor
            os._exit(128 + number)
        seen.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
