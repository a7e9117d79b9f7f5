"""Rows of several ledgers and tables settled into one table."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from moetune.errors import UsageError
from moetune.tables import aiter
from moetune.tables.lines import Lines, read_lines
from moetune.tables.native import native_bytes, native_path, read_native
from moetune.tables.provenance import provenance_bytes, provenance_path
from moetune.tables.reading import Source, duplicate_warnings
from moetune.tables.row import Row
from moetune.tables.writing import locked, replace_all

Cells = tuple[str, ...]


class Prefer(StrEnum):
    """Which of two rows with one key stays."""

    FASTER = "faster"
    MINE = "mine"
    THEIRS = "theirs"


class Action(StrEnum):
    """What became of a row of an input that the table did not hold as it is."""

    ADDED = "added"
    REPLACED = "replaced"
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True)
class Candidate:
    """A row on its way into a table: measured (`row`), or of a CSV, known by its cells alone.

    `unsaid` is what the CSV key cannot tell apart, for the JSON only.
    """

    cells: Cells
    row: Row | None
    source: Path
    unsaid: str = ""

    @property
    def identity(self) -> object:
        """What two candidates for one place have in common."""
        return self.row.key if self.row else self.cells[: aiter.KEYS]

    def beats(self, other: Candidate, prefer: Prefer) -> bool:
        """Whether it takes the place of another; times are compared only where both were measured alike."""
        if prefer is not Prefer.FASTER:
            return prefer is Prefer.MINE
        a, b = self.row, other.row
        return a is not None and b is not None and a.measured_like(b) and a.verdict.us < b.verdict.us


@dataclass(frozen=True)
class Step:
    """What became of one candidate, which row was in its place, and why. `in_csv` False: the JSON only."""

    action: Action
    candidate: Candidate
    held: Candidate | None = None
    reason: str = ""
    in_csv: bool = True


@dataclass(frozen=True)
class Plan:
    """What a merge does: steps, each file's bytes as it is and as it will be (in the order of writing), warnings."""

    into: Path
    steps: tuple[Step, ...]
    before: dict[Path, bytes]
    after: dict[Path, bytes]
    json_only: dict[str, int]
    warnings: tuple[str, ...]
    unchanged: int

    def count(self, action: Action) -> int:
        """Return how many rows an action met."""
        return sum(step.action is action for step in self.steps)

    @property
    def changed(self) -> dict[Path, bytes]:
        """The files that will not be as they are."""
        return {path: data for path, data in self.after.items() if self.before.get(path) != data}

    def difference(self) -> list[str]:
        """Return the CSV's lines that go and come, as a unified diff without context."""
        old, new = (files.get(self.into, b"").decode().splitlines() for files in (self.before, self.after))
        return list(difflib.unified_diff(old, new, str(self.into), "merged", n=0, lineterm=""))


@dataclass(frozen=True)
class _Place:
    """A row of the CSV: who is in it, on which lines (none: new), and whether this merge has made it."""

    holder: Candidate
    lines: tuple[int, ...] = ()
    fresh: bool = False


class _Table:
    """The table being merged into: what settling a candidate changes."""

    def __init__(self, into: Path, lines: Lines, rows: Sequence[Row], prefer: Prefer, foreign: bool) -> None:
        self.into, self.lines, self.prefer, self.foreign = into, lines, prefer, foreign
        self.rows = {row.key: row for row in rows}
        measured = {aiter.cells(row): row for row in rows if not aiter.unsaid(row)}
        self.places: dict[Cells, _Place] = {}
        for line in lines.rows():
            place = self.places.get(line.key) or _Place(Candidate(line.cells, measured.get(line.cells), into))
            self.places[line.key] = replace(place, lines=(*place.lines, line.number))
        self.edits: dict[int, Cells | None] = {}
        self.steps: list[Step] = []
        self.unchanged = 0

    def settle(self, new: Candidate) -> None:
        """Add, replace, keep or refuse for one candidate."""
        place = None if new.unsaid else self.places.get(new.cells[: aiter.KEYS])
        row = self.rows.get(new.row.key) if new.row else None
        held = Candidate(aiter.cells(row), row, self.into) if row else None
        other = place is not None and aiter.kernel_of(place.holder.cells) != aiter.kernel_of(new.cells)
        in_csv, reason = not new.unsaid, new.unsaid
        if place is not None and other and new.row and (held or (place.fresh and place.holder.row)):
            in_csv, reason = False, f"the CSV's key holds {aiter.kernel_of(place.holder.cells)}'s row"
        there = place is not None and place.holder.cells == new.cells
        if (row is not None and row == new.row or new.row is None) and (there or (row is not None and not in_csv)):
            self.unchanged += 1
            return
        if in_csv and not there and not self.foreign and (refusal := _refusal(new, place, other)):
            self.steps.append(Step(Action.REFUSED, new, place.holder if place else None, refusal))
            return
        rival = held if not in_csv or place is None or there else place.holder
        if rival is not None and rival.row is not None and rival.row == new.row:
            rival = None  # the JSON holds it, the CSV has lost it
        if rival is not None and not new.beats(rival, self.prefer):
            self.steps.append(Step(Action.KEPT, new, rival, _conflict(new, rival, self.prefer), in_csv))
            return
        if in_csv and not there:
            self._put(new, place)
        if new.row is not None:
            self.rows[new.row.key] = new.row
        self.steps.append(Step(Action.REPLACED if rival else Action.ADDED, new, rival, reason, in_csv))

    def _put(self, new: Candidate, place: _Place | None) -> None:
        numbers = place.lines if place else ()
        if place is not None and place.holder.row is not None:
            self.rows.pop(place.holder.row.key, None)
        self.edits.update({number: None for number in numbers[1:]})
        self.edits.update({number: new.cells for number in numbers[:1]})
        self.places[new.cells[: aiter.KEYS]] = _Place(new, numbers, fresh=True)

    def csv_bytes(self) -> bytes:
        """Return the CSV as it will be; new rows follow, sorted."""
        added = (place.holder.cells for place in self.places.values() if not place.lines)
        return self.lines.edited(self.edits, sorted(added, key=aiter.order))


def _refusal(new: Candidate, place: _Place | None, other: bool) -> str:
    mine = aiter.kernel_of(new.cells)
    if mine.startswith("moetune_") and new.cells[0] in aiter.GROUPED_GFX:
        return f"aiter's grouped kernel serves {new.cells[0]}, and the row was measured on {mine}"
    if place is not None and other:
        return f"measured on {mine}, and the key holds a row of {aiter.kernel_of(place.holder.cells) or 'no named kernel'}"
    return ""


def _conflict(new: Candidate, held: Candidate, prefer: Prefer) -> str:
    if prefer is Prefer.THEIRS:
        return "--prefer theirs"
    if new.row and held.row and new.row.measured_like(held.row):
        return "not faster"
    return "not measured alike, so not compared; --prefer mine replaces it"


def plan(
    into: Path, lines: Lines, rows: Sequence[Row], sources: Sequence[Source], *, prefer: Prefer, foreign: bool
) -> _Table:
    """Settle the rows of sources, in order, into a table of CSV lines and measured rows.

    Where sources hold one row several times they are first settled among themselves.
    """
    table = _Table(into, lines, rows, prefer, foreign)
    offered: dict[object, Candidate] = {}
    for source in sources:
        found = [Candidate(aiter.cells(row), row, source.path, aiter.unsaid(row)) for row in source.rows]
        found += [Candidate(line.cells, None, source.path) for line in source.lines]
        for new in found:
            held = offered.setdefault(new.identity, new)
            if (held.cells, held.row) == (new.cells, new.row):
                continue
            if new.beats(held, prefer):
                offered[new.identity], held, new = new, new, held
            table.steps.append(Step(Action.KEPT, new, held, f"{held.source} has it too", not new.unsaid))
    for candidate in offered.values():
        table.settle(candidate)
    return table
