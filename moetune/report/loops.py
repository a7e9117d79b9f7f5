"""What grouping gives: each kernel beside the one that launches its experts alone."""

from __future__ import annotations

from collections.abc import Sequence

from moetune.kernel import LOOP
from moetune.model.verdict import Verdict
from moetune.report.rows import WHERE, Row, order, ratio, row_of, shared, title_of
from moetune.report.sheet import Sheet

_KEYS = (*WHERE, "tokens")
_NOTE = (
    "whole layers, both tuned, each measured in its own sweep; gain: the per-expert loop's time over the grouped "
    "kernel's. The loop's grid follows the routing drawn, which a server would have to read back first."
)


def loop_sheet(verdicts: Sequence[Verdict]) -> Sheet:
    """Return one row for each problem that was tuned both grouped and expert by expert; none where there is none."""
    rows = sorted(map(row_of, verdicts), key=order)
    timed = {_place(row): row["tuned_us"] for row in rows}
    found = [(row, timed.get(_place({**row, "kernel": f"{row['kernel']}{LOOP}"}))) for row in rows]
    lines: list[Row] = [
        {key: row[key] for key in _KEYS} | {"grouped_us": us, "loop_us": loop_us, "gain": ratio(loop_us, us)}
        for row, loop_us in found
        if isinstance(us := row["tuned_us"], float) and isinstance(loop_us, float)
    ]
    told = shared(lines, WHERE)
    return Sheet(
        title_of("Grouped against each expert alone", told),
        (*_KEYS, "grouped_us", "loop_us", "gain"),
        tuple(tuple(line.values()) for line in lines),
        (_NOTE,),
        hidden=tuple(told),
        keys=len(_KEYS),
    )


def _place(row: Row) -> tuple[object, ...]:
    return tuple(row[key] for key in _KEYS)
