"""What ledgers and tables hold, read for a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moetune.errors import LedgerError, TableError
from moetune.ledger import Records
from moetune.model.trial import Trial
from moetune.model.verdict import Verdict
from moetune.report.buckets import CLOCK, HASH, identify
from moetune.report.rows import source_hash
from moetune.tables.reading import Source, read_source

MOVED = 0.03
"""The share by which a clock may move during finals before its row is marked."""


@dataclass
class Evidence:
    """Verdicts by what identifies them (the last named wins), the trials behind them, marks and warnings.

    `marks` are by the same key: ``hash`` where the kernel's source has changed since, ``clock`` where the
    GPU's clock moved during the finals.
    """

    found: dict[str, Verdict] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    marks: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts, in first-seen order."""
        return list(self.found.values())


def read_evidence(paths: Sequence[Path]) -> Evidence:
    """Read ledgers and tables; raise LedgerError, TableError or UsageError on what does not hold a verdict."""
    evidence = Evidence()
    moved: set[str] = set()
    for path in paths:
        source = read_source(path)
        evidence.warnings += source.warnings
        if source.records is None:
            _check_table(source, evidence)
        else:
            _check_ledger(source.records)
            evidence.trials += source.records.trials
            problems = _moved(source.records)
            moved |= {identify(verdict) for verdict in source.verdicts if verdict.problem in problems}
        again = [verdict.problem for verdict in source.verdicts if identify(verdict) in evidence.found]
        if again:
            others = f" (and {len(again) - 1} more)" if len(again) > 1 else ""
            evidence.warnings.append(
                f"{again[0]}{others} is in several ledgers; the last one's verdict is used, that of {path}"
            )
        evidence.found.update((identify(verdict), verdict) for verdict in source.verdicts)
    _mark(evidence, moved)
    return evidence


def _check_table(source: Source, evidence: Evidence) -> None:
    path = source.path
    unknown = f"{path}: {len(source.lines)} rows have a time only, no default's, no accuracy and no machine"
    if not source.verdicts and source.lines:
        raise TableError(f"{unknown}; name the .moetune.json that was written with them, or their ledger")
    if not source.verdicts:
        raise TableError(f"{path}: holds no row; merge a ledger into it first")
    if source.lines:
        evidence.warnings.append(f"{unknown}; left out")


def _check_ledger(records: Records) -> None:
    if not records.headers:
        raise LedgerError(f"{records.path}: is empty; name the ledger of a sweep that has begun")
    if not records.verdicts:
        raise LedgerError(f"{records.path}: no verdict yet ({len(records.trials)} trials); let its sweep go on")


def _moved(records: Records) -> set[str]:
    """Return the problems of which a last final saw the clock move."""
    last = {(final.problem, final.kind, final.stage): final.clock_mhz for final in records.finals}
    clocks = {problem: clock for (problem, _, _), clock in last.items() if clock}
    return {problem for problem, clock in clocks.items() if max(clock) - min(clock) > MOVED * max(clock)}


def _mark(evidence: Evidence, moved: set[str]) -> None:
    unknown = set()
    for key, verdict in evidence.found.items():
        kernel, stated = verdict.facts["kernel"], verdict.machine.get("kernel_hash")
        if stated and source_hash(kernel) is None:
            unknown.add(kernel)
        elif stated and source_hash(kernel) != stated:
            evidence.marks.setdefault(key, []).append(HASH)
        if key in moved:
            evidence.marks.setdefault(key, []).append(CLOCK)
    for name in sorted(unknown):
        evidence.warnings.append(f"kernel {name!r} is not installed: whether its source has changed is unknown")
