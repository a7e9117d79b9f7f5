"""The append-only record of a sweep."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moetune.errors import LedgerError, OutputError
from moetune.model.trial import Final, Trial
from moetune.model.verdict import Decision, Verdict

SCHEMA = 1
NAME = "ledger.jsonl"
_HEAD = b'{"record":"header"'


@dataclass
class Records:
    """What a ledger holds, in the order written.

    `headers` are the plain JSON of each session. `torn` is True where the last line was cut off by a crash.
    """

    path: Path
    headers: list[dict[str, Any]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    finals: list[Final] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    torn: bool = False
    size: int = 0

    def latest_verdicts(self) -> list[Verdict]:
        """Return one verdict a problem, in the order in which problems were first seen.

        It has the identity seen last. Among several of that identity one that has not failed goes first, then a
        complete one, then one of more trials, then the later. Two layers of one name and other sizes are two problems.
        """
        by_problem: dict[tuple[Any, ...], list[Verdict]] = {}
        for verdict in self.verdicts:
            by_problem.setdefault(posed(verdict), []).append(verdict)
        return [
            max(reversed([v for v in found if v.identity == found[-1].identity]), key=_worth)
            for found in by_problem.values()
        ]


def posed(verdict: Verdict) -> tuple[Any, ...]:
    """Return what tells a verdict's problem from others: its name and the sizes of its layer."""
    return (verdict.problem, *(verdict.facts.get(name) for name in ("model_dim", "inter_dim", "experts", "topk")))


def _worth(verdict: Verdict) -> tuple[bool, bool, int]:
    return verdict.decision is not Decision.FAILED, verdict.complete, verdict.search.get("trials") or 0


def ledger_path(path: Path) -> Path:
    """Return the ledger file that a folder or file names."""
    return path / NAME if path.is_dir() else path


def read_ledger(path: Path) -> Records:
    """Read a ledger; raise LedgerError naming file, line and remedy.

    A last line without a newline or that is no JSON is dropped (`torn`); `size` is the length of what is whole.
    """
    path = ledger_path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror}; name a ledger or the folder of a sweep") from error
    records = Records(path)
    lines = data.split(b"\n")
    records.torn = lines[-1] != b""
    for number, line in enumerate(lines[:-1], 1):
        if not line.strip():
            raise LedgerError(f"{path}: line {number} is empty: no ledger of moetune, or edited by hand")
        try:
            _take(records, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if not records.headers:
                raise LedgerError(f"{path}: no ledger of moetune (its first line is no header)") from error
            if number == len(lines) - 1 and isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
                records.torn = True
                break
            why = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise LedgerError(f"{path}: line {number} cannot be read ({why}); move it away or use --fresh") from error
        records.size += len(line) + 1
    if not records.headers and not lines[-1].startswith(_HEAD[: len(lines[-1])]):
        raise LedgerError(f"{path}: no ledger of moetune (its first line is no header)")
    return records


def _take(records: Records, record: dict[str, Any]) -> None:
    where = records.path
    schema = record.get("schema") if isinstance(record, dict) else None
    if not isinstance(schema, int) or "record" not in record:
        if not records.headers:
            raise LedgerError(f"{where}: no ledger of moetune (its first line has no 'record' and 'schema')")
        raise ValueError("no 'record' or 'schema'")
    if schema > SCHEMA:
        raise LedgerError(f"{where}: schema {schema} is newer than this moetune reads ({SCHEMA}); upgrade moetune")
    kind = record["record"]
    if not records.headers and kind != "header":
        raise LedgerError(f"{where}: no ledger of moetune (it does not begin with a header)")
    if kind == "header":
        if record.get("tool") != "moetune":
            raise LedgerError(
                f"{where}: its header names the tool {record.get('tool')!r}, not moetune; name another --out"
            )
        records.headers.append(record)
    elif kind == "trial":
        records.trials.append(Trial.from_json(record))
    elif kind == "final":
        records.finals.append(Final.from_json(record))
    elif kind == "verdict":
        records.verdicts.append(Verdict.from_json(record))
    else:
        raise ValueError(f"unknown record {kind!r}")


class Ledger:
    """A ledger open for appending; once a call returns, its record outlives the process."""

    def __init__(self, path: Path, keep: int | None = None) -> None:
        """Open for appending; `keep` truncates to that many bytes first (what a torn line leaves whole)."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if keep is not None:
                os.ftruncate(self._file, keep)
            self._size = os.fstat(self._file).st_size
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error

    def header(self, record: dict[str, Any]) -> None:
        """Append the header of a session."""
        self._append({"record": "header", "schema": SCHEMA, "tool": "moetune", **record})

    def trials(self, trials: Sequence[Trial]) -> None:
        """Append trials."""
        for trial in trials:
            self._append({"record": "trial", "schema": SCHEMA, **trial.to_json()})

    def final(self, final: Final) -> None:
        """Append a final."""
        self._append({"record": "final", "schema": SCHEMA, **final.to_json()})

    def verdict(self, verdict: Verdict) -> None:
        """Append a verdict."""
        self._append({"record": "verdict", "schema": SCHEMA, **verdict.to_json()})

    def _append(self, record: dict[str, Any]) -> None:
        line = (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
        try:
            done = 0
            while done < len(line):
                done += os.write(self._file, line[done:])
        except BaseException as error:
            with contextlib.suppress(OSError):  # what is left torn, the next reader drops
                os.ftruncate(self._file, self._size)  # a half-written line is taken back
            if not isinstance(error, OSError):
                raise
            raise OutputError(f"{self.path}: cannot be written ({error.strerror}); nothing in it is lost") from error
        self._size += len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
