"""The errors a user can meet, with the exit code of each.

MoetuneError                1  the root: the work failed
├── UsageError              2  an option or argument is wrong
│   ├── ShapeError          2  a shape file or name is wrong
│   ├── KernelError         2  no such kernel, or it cannot serve what was asked
│   └── TargetError         2  no such target
├── OutputError             1  an output cannot be written
├── LedgerError             1  a ledger cannot be read or continued
├── TableError              1  a table cannot be read or merged
├── MachineError            1  no usable device, or it is taken
├── SweepFailed             1  some problem has no correct default
├── BenchFailed             1  some row is wrong, or slower than the default
└── Interrupted       130/143  a signal stopped the work
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MoetuneError(Exception):
    """The work failed; the message says what, where and what to do, in one line."""

    exit_code = 1


class UsageError(MoetuneError):
    """An option or argument is wrong."""

    exit_code = 2


class ShapeError(UsageError):
    """A shape file or a shape's name is wrong."""


class KernelError(UsageError):
    """A kernel does not exist or cannot serve what was asked."""


class TargetError(UsageError):
    """A target does not exist."""


class OutputError(MoetuneError):
    """An output cannot be written."""


class LedgerError(MoetuneError):
    """A ledger cannot be read or continued."""


class TableError(MoetuneError):
    """A table cannot be read or merged."""


class MachineError(MoetuneError):
    """No usable device, or another sweep holds it."""


class SweepFailed(MoetuneError):
    """At least one problem ended without a row."""


class BenchFailed(MoetuneError):
    """At least one row is wrong, or slower than the default beyond the spread."""


class Interrupted(MoetuneError):
    """A signal stopped the work."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """Return a phrase that names the known words nearest to a wrong one, e.g. ``did you mean 'silu'?``."""
    names = sorted(set(known))
    lowered = {name.lower(): name for name in names}
    close = [lowered[m] for m in difflib.get_close_matches(word.lower(), list(lowered), n=count, cutoff=0.5)]
    if close:
        return "did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "known: " + ", ".join(names)
