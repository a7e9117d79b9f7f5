"""Files that are replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from moetune.errors import OutputError

_WAIT_S = 60.0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which dies with its process; raise OutputError where it cannot be had in 60 s."""
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as held:
        try:
            held.enter_context(FileLock(path.with_name(f".{path.name}.lock"), timeout=_WAIT_S))
        except Timeout:
            raise OutputError(f"{path}: another merge holds it; try again when that has ended") from None
        except OSError as error:
            raise OutputError(f"{path}: cannot be locked ({error.strerror or error}); choose another --into") from error
        yield


def replace_all(files: Mapping[Path, bytes]) -> None:
    """Write every file beside its name, then move them into place in order; raise OutputError.

    A failure before the first move leaves everything as it was. An existing file keeps its permissions.
    """
    written: list[tuple[Path, Path]] = []
    for path in files:
        if path.exists() and not os.access(path, os.W_OK):
            raise OutputError(f"{path}: is read-only; nothing is written")
    try:
        for path, data in files.items():
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            written.append((temporary, path))
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                if path.exists():
                    os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
                os.fsync(file.fileno())
        for temporary, path in written:
            temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror}); free the disk or choose another --into"
        ) from error
    finally:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)
