"""The three files of a table: the CSV, and beside it the JSON and the provenance."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moetune.errors import OutputError, TableError, UsageError
from moetune.tables.lines import read_lines
from moetune.tables.merge import Action, Merged, Prefer, merge_rows
from moetune.tables.native import native_bytes, native_path, read_native
from moetune.tables.provenance import provenance_bytes, provenance_path
from moetune.tables.reading import duplicate_warnings, read_source
from moetune.tables.writing import locked, replace_all


@dataclass(frozen=True)
class Plan:
    """What a merge does, or did: `before` and `after` hold the bytes of each file, in the order of writing."""

    into: Path
    merged: Merged
    before: dict[Path, bytes]
    after: dict[Path, bytes]
    failed: int
    warnings: tuple[str, ...]

    @property
    def refused(self) -> bool:
        """Whether a row was refused, so that nothing is written."""
        return self.merged.count(Action.REFUSED) > 0

    @property
    def changes(self) -> dict[Path, bytes]:
        """The files that do not stay as they are."""
        return {path: data for path, data in self.after.items() if self.before.get(path) != data}

    def difference(self) -> list[str]:
        """Return the CSV's lines that go and come, as a unified diff without context."""
        old, new = (files.get(self.into, b"").decode().splitlines() for files in (self.before, self.after))
        return list(difflib.unified_diff(old, new, str(self.into), "merged", n=0, lineterm=""))


def merge_into(
    into: Path, inputs: Sequence[Path], prefer: Prefer = Prefer.FASTER, *, foreign: bool = False, dry_run: bool = False
) -> Plan:
    """Merge ledgers and tables into the CSV table `into` and the files beside it; return what was done.

    Written only where every row was accepted and `dry_run` is off: all files whole, the CSV first, so that a
    merge cut off between two of them is mended by the next. Raises UsageError, LedgerError, TableError, OutputError.
    """
    if into.suffix.lower() != ".csv" or into.is_dir():
        raise UsageError(f"--into {into}: name a .csv file (the JSON and the provenance are written beside it)")
    into = into.resolve() if into.is_symlink() else into
    if not into.parent.is_dir():
        raise OutputError(f"{into.parent}: no such folder; create it")
    sources = [read_source(path) for path in inputs]
    with contextlib.nullcontext() if dry_run else locked(into):
        table = read_lines(into, missing_ok=True)
        native, provenance = native_path(into), provenance_path(into)
        if provenance.exists() and not native.exists():
            raise TableError(f"{provenance}: its {native.name} is missing; put that back or move this away")
        rows = read_native(native) if native.exists() else []
        merged = merge_rows(into, table, rows, sources, prefer, foreign=foreign)
        before = {path: _bytes(path) for path in (into, native, provenance) if path.exists()}
        after = {into: merged.csv} if merged.cells or into in before else {}
        if merged.rows or native in before:
            after[native] = native_bytes(merged.rows)
            after[provenance] = provenance_bytes(merged.rows, merged.cells)
        told = [warning for source in sources for warning in source.warnings]
        plan = Plan(
            into,
            merged,
            before,
            after,
            failed=sum(len(source.failed) for source in sources),
            warnings=tuple(dict.fromkeys([*told, *duplicate_warnings(into, table.duplicates())])),
        )
        if not dry_run and not plan.refused:
            replace_all(plan.changes)
    return plan


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}); move it away") from error
