"""Rows of several ledgers and tables settled into one table: what is added, replaced, kept and refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from moetune.tables import aiter
from moetune.tables.lines import Lines
from moetune.tables.reading import Source
from moetune.tables.row import Row

Cells = tuple[str, ...]
NOT_ALIKE = "not measured alike, so not compared"
"""Why a row stays where nothing says that its time and the input's were measured in one way."""


class Prefer(StrEnum):
    """Which of two rows with one key stays."""

    FASTER = "faster"
    MINE = "mine"
    THEIRS = "theirs"


class Action(StrEnum):
    """What became of an input's row that the table does not hold as it is."""

    ADDED = "added"
    REPLACED = "replaced"
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True)
class Candidate:
    """A row that stands in a table or wants to: measured (`row`), or known by its CSV cells alone."""

    cells: Cells
    row: Row | None
    source: Path

    @property
    def key(self) -> Cells:
        """Its key in the CSV."""
        return self.cells[: aiter.KEYS]

    @property
    def kernel(self) -> str:
        """Which kernel it was measured on."""
        return aiter.kernel_of(self.cells)

    @property
    def unsaid(self) -> str:
        """What the CSV's key cannot tell apart, so that the row goes to the JSON only."""
        return aiter.unsaid(self.row) if self.row else ""

    def measured_like(self, other: Candidate) -> bool:
        """Whether the two times can be compared."""
        return self.row is not None and other.row is not None and self.row.measured_like(other.row)

    def beats(self, held: Candidate, prefer: Prefer) -> bool:
        """Whether it takes the place of another; only times measured alike are compared."""
        if prefer is not Prefer.FASTER:
            return prefer is Prefer.MINE
        a, b = self.row, held.row
        return a is not None and b is not None and a.measured_like(b) and a.verdict.us < b.verdict.us


@dataclass(frozen=True)
class Step:
    """What became of a candidate, which row was in its place, and why; `in_csv` False: it concerns the JSON only."""

    action: Action
    candidate: Candidate
    held: Candidate | None = None
    reason: str = ""
    in_csv: bool = True


@dataclass(frozen=True)
class Merged:
    """A table after a merge: its CSV, its measured rows, the steps taken, and what they left alone.

    `json_only` counts the inputs' rows that are not in the CSV, by reason.
    """

    csv: bytes
    rows: tuple[Row, ...]
    cells: tuple[Cells, ...]
    steps: tuple[Step, ...]
    unchanged: int
    json_only: dict[str, int]

    def count(self, action: Action) -> int:
        """Return how many rows an action met."""
        return sum(step.action is action for step in self.steps)


@dataclass(frozen=True)
class _Place:
    """A key of the CSV: who holds it, on which lines (none: a new row), and whether this merge put it there."""

    holder: Candidate
    lines: tuple[int, ...] = ()
    fresh: bool = False


def merge_rows(
    into: Path, lines: Lines, rows: Sequence[Row], sources: Sequence[Source], prefer: Prefer, *, foreign: bool
) -> Merged:
    """Settle the rows of sources into a table of CSV lines and measured rows; pure, nothing is read or written.

    Rows that several sources have are first settled among themselves, in the order given.
    """
    table = _Table(into, lines, rows, prefer, foreign)
    offered: dict[object, Candidate] = {}
    for source in sources:
        found = [Candidate(aiter.cells(row), row, source.path) for row in source.rows]
        found += [Candidate(line.cells, None, source.path) for line in source.lines]
        for new in found:
            identity = new.row.key if new.row else new.key
            first = offered.setdefault(identity, new)
            if (first.cells, first.row) == (new.cells, new.row):
                continue
            won, lost = (new, first) if new.beats(first, prefer) else (first, new)
            offered[identity] = won
            table.steps.append(Step(Action.KEPT, lost, won, _why_kept(lost, won, prefer), not lost.unsaid))
    for candidate in offered.values():
        table.settle(candidate)
    return table.merged(list(offered.values()))


class _Table:
    """The table while candidates are settled into it, one after another."""

    def __init__(self, into: Path, lines: Lines, rows: Sequence[Row], prefer: Prefer, foreign: bool) -> None:
        self.into, self.lines, self.prefer, self.foreign = into, lines, prefer, foreign
        self.rows = {row.key: row for row in rows}
        measured = aiter.by_cells(rows)
        self.places: dict[Cells, _Place] = {}
        for line in lines.rows():
            place = self.places.get(line.key) or _Place(Candidate(line.cells, measured.get(line.cells), into))
            self.places[line.key] = replace(place, lines=(*place.lines, line.number))
        self.edits: dict[int, Cells | None] = {}
        self.steps: list[Step] = []
        self.unchanged = 0

    def settle(self, new: Candidate) -> None:
        row = self.rows.get(new.row.key) if new.row else None
        held = Candidate(aiter.cells(row), row, self.into) if row else None
        place = None if new.unsaid else self.places.get(new.key)
        holder = place.holder if place else None
        there = holder is not None and holder.cells == new.cells
        reason = new.unsaid
        if place and holder and new.row and holder.kernel != new.kernel and (held or (place.fresh and holder.row)):
            reason = (
                f"kernel (the key holds {holder.kernel}'s row)"  # stays where an earlier merge put it, or just met it
            )
        in_csv = not reason
        known = new.row is None or new.row == row
        if known and (there or (row is not None and not in_csv)):
            self.unchanged += 1
            return
        if in_csv and not there and not self.foreign and (why := _refusal(new, holder)):
            self.steps.append(Step(Action.REFUSED, new, holder, why))
            return
        rival = held if there or not in_csv or holder is None else holder
        if rival is not None and new.row is not None and rival.row == new.row:
            rival = None  # the JSON holds it, the CSV has lost it
        if rival is not None and not new.beats(rival, self.prefer):
            self.steps.append(Step(Action.KEPT, new, rival, _why_kept(new, rival, self.prefer), in_csv))
            return
        if in_csv and not there:
            self._put(new, place)
        if new.row is not None:
            self.rows[new.row.key] = new.row
        self.steps.append(Step(Action.REPLACED if rival else Action.ADDED, new, rival, reason, in_csv))

    def _put(self, new: Candidate, place: _Place | None) -> None:
        """Give a key to a candidate: on the first of its lines, the others go, and so does the holder's row."""
        numbers = place.lines if place else ()
        if place is not None and place.holder.row is not None:
            self.rows.pop(place.holder.row.key, None)
        self.edits.update(dict.fromkeys(numbers))
        self.edits.update(dict.fromkeys(numbers[:1], new.cells))
        self.places[new.key] = _Place(new, numbers, fresh=True)

    def merged(self, offered: Sequence[Candidate]) -> Merged:
        added = [place.holder.cells for place in self.places.values() if not place.lines]
        holders = {key: place.holder for key, place in self.places.items()}
        json_only: Counter[str] = Counter()
        for new in offered:
            holder = holders.get(new.key)
            if new.row is None or self.rows.get(new.row.key) != new.row:
                continue
            if new.unsaid or (holder and holder.cells != new.cells):
                json_only[new.unsaid or f"kernel (the key holds {holder.kernel if holder else ''}'s row)"] += 1
        return Merged(
            csv=self.lines.edited(self.edits, sorted(added, key=aiter.order)),
            rows=tuple(self.rows.values()),
            cells=tuple(holder.cells for holder in holders.values()),
            steps=tuple(self.steps),
            unchanged=self.unchanged,
            json_only=dict(json_only),
        )


def _refusal(new: Candidate, holder: Candidate | None) -> str:
    if new.kernel.startswith("moetune_") and new.cells[0] in aiter.GROUPED_GFX:
        return f"aiter's grouped kernel serves {new.cells[0]}, measured on {new.kernel}"
    if holder is not None and holder.kernel != new.kernel:
        return f"the key holds a row of {holder.kernel or 'an unnamed kernel'}, measured on {new.kernel or 'another'}"
    return ""


def _why_kept(new: Candidate, held: Candidate, prefer: Prefer) -> str:
    if prefer is Prefer.THEIRS:
        return "--prefer theirs"
    if prefer is Prefer.MINE:
        return "a later input has it too"
    return "not faster" if new.measured_like(held) else NOT_ALIKE
