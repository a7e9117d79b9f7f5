"""The summary: geomean speed-ups per TP or shape, and in all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moetune.errors import UsageError, nearest
from moetune.model.verdict import Decision, Verdict
from moetune.report.rows import WHERE, order, row_of, shared, title_of
from moetune.report.sheet import Cell, Sheet

if TYPE_CHECKING:
    import pandas as pd

GROUPS = {"tp": WHERE, "shape": ("product", "kernel", "shape", "routing")}
"""What `--by` groups by."""
_NOTES = (
    "speed up: geomean over token buckets of default / tuned, end to end (sort, stage 1, stage 2, combine); "
    "a tie or a default keeps the default's config and counts as 1. fixed: against the default's rule at 64 "
    "tokens, as a kernel without a table runs.",
    "share: geomean of the hardware floor over the time of the two stages alone; padded: the floor of the "
    "rows that the tiles really compute.",
)


def grouping(by: str) -> tuple[str, ...]:
    """Return the columns that `--by tp` or `--by shape` groups by; raise UsageError on another word."""
    if by not in GROUPS:
        raise UsageError(f"--by {by!r}: {nearest(by, GROUPS)}")
    return GROUPS[by]


def summary_sheets(verdicts: Sequence[Verdict], by: str = "tp") -> list[Sheet]:
    """Return the short form that ends a sweep and opens a report: one sheet, or none without verdicts.

    One row a group and, where a kernel has several, one row over all of them with `all` in place of the TP.
    """
    import pandas as pd

    if not verdicts:
        return []
    keys = list(grouping(by))
    rows = sorted((row_of(verdict) for verdict in verdicts), key=order)
    frame = pd.DataFrame(rows)
    found: list[dict[str, Cell]] = []
    for _, kernel in frame.groupby(["product", "kernel"], sort=False):
        groups = [part for _, part in kernel.groupby(keys, sort=False)]
        found += [_aggregate(part, keys) for part in groups]
        if len(groups) > 1:
            whole = dict.fromkeys(("shape", "tp", "ep", "routing"), "all")
            found.append({**_aggregate(kernel, ["product", "kernel"]), **whole})
    told = shared(rows, [key for key in WHERE if key != "tp"])
    columns = tuple(column for column in found[0] if column not in WHERE)
    empty = [c for c in columns if all(not line[c] for line in found)]
    return [
        Sheet(
            title_of("Speed-up over the default", told),
            (*keys, *columns),
            tuple(tuple(told.get(key, line[key]) for key in keys) + tuple(line[c] for c in columns) for line in found),
            _NOTES,
            hidden=(*told, *empty),
            keys=len(keys),
        )
    ]


def _aggregate(part: pd.DataFrame, keys: Sequence[str]) -> dict[str, Cell]:
    counts = part["verdict"].value_counts()
    ups = part["speed_up"].dropna()
    first = part.iloc[0]
    return {
        **{key: first[key].item() if hasattr(first[key], "item") else first[key] for key in keys},
        "rows": len(part) - int(counts.get(Decision.FAILED.value, 0)),
        **{decision.value: int(counts.get(decision.value, 0)) for decision in Decision},
        "speed_up": geomean(part["speed_up"]),
        "least": float(ups.min()) if len(ups) else None,
        "most": float(ups.max()) if len(ups) else None,
        "fixed_speed_up": geomean(part["fixed_speed_up"]),
        "floor_share": geomean(part["floor_share"]),
        "padded_floor_share": geomean(part["padded_floor_share"]),
    }


def geomean(values: pd.Series[float]) -> float | None:
    """Return the geometric mean of what is not missing, or None of nothing."""
    import math

    logs = [math.log(value) for value in values.dropna()]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
