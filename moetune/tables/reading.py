"""What a LEDGER_OR_TABLE argument names: the folder or file of a ledger, a CSV table, or its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moetune.errors import TableError, UsageError
from moetune.ledger import Records, read_ledger
from moetune.model.verdict import Verdict
from moetune.tables import aiter
from moetune.tables.lines import Line, read_lines
from moetune.tables.native import SUFFIX, native_path, read_native
from moetune.tables.provenance import SUFFIX as PROVENANCE
from moetune.tables.row import Row


@dataclass(frozen=True)
class Source:
    """What was read: measured rows, CSV rows of which only their cells are known, and verdicts without a row.

    `records` is all that a ledger holds, None of a table.
    """

    path: Path
    rows: tuple[Row, ...] = ()
    lines: tuple[Line, ...] = ()
    failed: tuple[Verdict, ...] = ()
    warnings: tuple[str, ...] = ()
    records: Records | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        """Every verdict: those with a row, then the failed ones."""
        return [*(row.verdict for row in self.rows), *self.failed]


def read_source(path: Path) -> Source:
    """Read a ledger or table; raise LedgerError, TableError or UsageError, naming file and remedy."""
    if path.name.endswith(PROVENANCE):
        table = path.name.removesuffix(PROVENANCE)
        raise UsageError(f"{path}: provenance has no configs; name {table}.csv or {table}{SUFFIX}")
    if path.suffix.lower() == ".csv" and not path.is_dir():
        return _read_table(path)
    if path.suffix.lower() == ".json" and not path.is_dir():
        return Source(path, tuple(read_native(path)))
    records = read_ledger(path)
    try:
        pairs = [(v, Row.of(v)) for v in records.latest_verdicts()]
    except TableError as error:
        raise TableError(f"{records.path}: {error}") from error
    return Source(
        path,
        rows=tuple(row for _, row in pairs if row is not None),
        failed=tuple(v for v, row in pairs if row is None),
        warnings=(f"{records.path}: its torn last line is left out",) * records.torn,
        records=records,
    )


def _read_table(path: Path) -> Source:
    table = read_lines(path)
    rows = read_native(native_path(path)) if native_path(path).exists() else []
    known = aiter.by_cells(rows)
    return Source(
        path,
        rows=tuple(rows),
        lines=tuple(line for line in table.rows() if line.cells not in known),
        warnings=duplicate_warnings(path, table.duplicates()),
    )


def duplicate_warnings(path: Path, pairs: list[tuple[int, int]]) -> tuple[str, ...]:
    """Return a warning where rows share a key, naming their lines."""
    if not pairs:
        return ()
    where = ", ".join(f"{a} and {b}" for a, b in pairs[:5]) + (" ..." if len(pairs) > 5 else "")
    return (f"{path}: rows share a key (lines {where}); kept, and aiter takes the one with the lower us",)
