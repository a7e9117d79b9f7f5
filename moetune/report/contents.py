"""The contents of a report: its sheets by name, in the order of reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moetune.errors import UsageError, nearest
from moetune.report.accuracy import accuracy_sheet, failure_sheet
from moetune.report.buckets import config_sheets, time_sheets
from moetune.report.evidence import Evidence
from moetune.report.loops import loop_sheet
from moetune.report.outcomes import outcome_sheet, seconds_sheet
from moetune.report.sheet import Sheet
from moetune.report.summary import grouping, summary_sheets

CONTENTS: dict[str, Callable[[Evidence, str], list[Sheet]]] = {
    "summary": lambda e, by: summary_sheets(e.verdicts, by),
    "failures": lambda e, by: [failure_sheet(e.verdicts)],
    "buckets": lambda e, by: time_sheets(e.verdicts, e.marks, by),
    "loops": lambda e, by: [loop_sheet(e.verdicts)],
    "configs": lambda e, by: config_sheets(e.verdicts, by),
    "accuracy": lambda e, by: [accuracy_sheet(e.verdicts)],
    "outcomes": lambda e, by: [outcome_sheet(e.verdicts, e.trials)],
    "time": lambda e, by: [seconds_sheet(e.verdicts, e.trials)],
}


def report_sheets(evidence: Evidence, by: str = "tp", only: Sequence[str] = ()) -> list[Sheet]:
    """Return the sheets named, or all; failures only where there are some or they are named."""
    grouping(by)
    for name in only:
        if name not in CONTENTS:
            raise UsageError(f"--only {name!r}: {nearest(name, CONTENTS)}")
    sheets: list[Sheet] = []
    for name, draw in CONTENTS.items():
        drawn = draw(evidence, by) if not only or name in only else []
        sheets += [sheet for sheet in drawn if sheet.rows or only]
    return sheets
