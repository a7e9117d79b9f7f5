"""Times and winning configs of each token bucket."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from moetune.ledger import posed
from moetune.model.verdict import Verdict
from moetune.report.rows import WHERE, Row, order, row_of, shared, title_of
from moetune.report.sheet import Cell, Sheet, number
from moetune.report.summary import grouping

_HIDDEN = (
    "fixed_default_us", "fixed_speed_up", "stages_us", "quantise_us", "floor_us", "padded_floor_us",
    "config1", "config2", "samples",
)  # fmt: skip
HASH, CLOCK = "hash", "clock"
"""Marks: measured on another kernel source; the clock moved during the finals."""
_MEANING = {
    HASH: "hash: measured on another source of this kernel than the one installed here; sweep it again.",
    CLOCK: "clock: the GPU's clock moved by more than 3 % in the finals; the spread understates the doubt.",
}


def time_sheets(verdicts: Sequence[Verdict], marks: Mapping[str, Sequence[str]], by: str = "tp") -> list[Sheet]:
    """Return a sheet of times a group: tuned and default with spread, speed-up, verdict, shares, ties.

    `tied` counts the configs within the winner's spread. `marks` are by what identifies a verdict.
    """
    rows = sorted((row_of(v, marks.get(identify(v), ())) for v in verdicts), key=order)
    return [_times(group, by) for group in _groups(rows, by) if any(row["tuned_us"] for row in group)]


def config_sheets(verdicts: Sequence[Verdict], by: str = "tp") -> list[Sheet]:
    """Return a sheet of winning configs a group: one row a stage, one column an axis."""
    rows = [
        {**{key: row[key] for key in (*WHERE, "tokens")}, "stage": stage, **config}
        for verdict in verdicts
        for row in (row_of(verdict),)
        for stage, config in enumerate((verdict.config1, verdict.config2), 1)
        if config is not None
    ]
    return [_configs(group, by) for group in _groups(sorted(rows, key=order), by)]


def identify(verdict: Verdict) -> str:
    """Return what tells a verdict from those of other problems and machines."""
    machine = verdict.machine
    return f"{posed(verdict)} on {machine.get('product')} ({machine.get('cu_num')})"


def _groups(rows: Sequence[Row], by: str) -> list[list[Row]]:
    keys = grouping(by)
    return [list(group) for _, group in itertools.groupby(rows, lambda row: tuple(row[key] for key in keys))]


def _times(group: Sequence[Row], by: str) -> Sheet:
    told = shared(group, (*grouping(by), "ep"))
    columns = tuple(group[0])
    empty = () if any(row["marks"] for row in group) else ("marks",)
    seen = {mark for row in group for mark in str(row["marks"] or "").split(", ")}
    return Sheet(
        title_of("Token buckets", told),
        columns,
        tuple(tuple(row.values()) for row in group),
        (*_quantising(group), *(text for mark, text in _MEANING.items() if mark in seen)),
        hidden=(*told, *_HIDDEN, *empty),
        keys=columns.index("tokens") + 1,
    )


def _quantising(group: Sequence[Row]) -> list[str]:
    timed = [
        f"{number(us, 'quantise_us')} at {row['tokens']}"
        for row in group
        if isinstance(us := row["quantise_us"], float)
    ]
    return [f"quantising x, timed apart and not counted, in us by tokens: {', '.join(timed)}."] if timed else []


def _configs(group: Sequence[Row], by: str) -> Sheet:
    told = shared(group, (*grouping(by), "ep"))
    columns = tuple(dict.fromkeys(column for row in group for column in row))
    cells: tuple[tuple[Cell, ...], ...] = tuple(tuple(row.get(column) for column in columns) for row in group)
    return Sheet(title_of("Winning configs", told), columns, cells, hidden=tuple(told), keys=columns.index("stage") + 1)
