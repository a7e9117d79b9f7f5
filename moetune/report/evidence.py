"""What ledgers and tables hold, read for a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moetune.errors import LedgerError, TableError
from moetune.ledger import Records, read_ledger
from moetune.model.trial import Trial, Verdict
from moetune.report.buckets import CLOCK, HASH, identify
from moetune.report.rows import source_hash
from moetune.tables.reading import read_source
from moetune.tables.row import Row

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
    """Read ledgers and tables; raise LedgerError or TableError on what cannot be read or holds no verdict."""
    evidence = Evidence()
    moved: set[str] = set()
    for path in paths:
        if path.suffix in (".csv", ".json"):
            verdicts = _of_table(path, evidence)
        else:
            records = read_ledger(path)
            verdicts = _of_ledger(records, evidence)
            evidence.trials += records.trials
            problems = _moved(records)
            moved |= {identify(verdict) for verdict in verdicts if verdict.problem in problems}
        twice = sum(identify(verdict) in evidence.found for verdict in verdicts)
        if twice:
            evidence.warnings.append(f"{path}: {twice} problems were named before on this machine; these stand")
        evidence.found.update((identify(verdict), verdict) for verdict in verdicts)
    _mark(evidence, moved)
    return evidence


def _of_table(path: Path, evidence: Evidence) -> list[Verdict]:
    source = read_source(path)
    evidence.warnings += source.warnings
    unknown = f"{path}: {len(source.lines)} rows have a time only, no default's, no accuracy and no machine"
    if not source.verdicts and source.lines:
        raise TableError(f"{unknown}; name the .moetune.json that was written with them, or their ledger")
    if not source.verdicts:
        raise TableError(f"{path}: holds no row; merge a ledger into it first")
    if source.lines:
        evidence.warnings.append(f"{unknown}; left out")
    return source.verdicts


def _of_ledger(records: Records, evidence: Evidence) -> list[Verdict]:
    where = records.path
    if records.torn:
        evidence.warnings.append(f"{where}: its last line is cut off and was left out")
    if not records.headers:
        raise LedgerError(f"{where}: is empty; name the ledger of a sweep that has begun")
    if not records.verdicts:
        raise LedgerError(f"{where}: no verdict yet ({len(records.trials)} trials); let its sweep go on")
    verdicts = records.latest_verdicts()
    for verdict in verdicts:
        try:
            Row.of(verdict)
        except TableError as error:
            raise LedgerError(f"{where}: {error}") from error
    return verdicts


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
