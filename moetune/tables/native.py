"""`NAME.moetune.json`: every row with all that its verdict holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from moetune.errors import TableError
from moetune.model.verdict import Verdict
from moetune.tables.row import Row
from moetune.tables.winners import winners

SCHEMA = 1
SUFFIX = ".moetune.json"


def native_path(table: Path) -> Path:
    """Return where the JSON beside a CSV table is; no name that aiter loads as a table."""
    return table.with_name(table.stem + SUFFIX)


def native_bytes(rows: Iterable[Row]) -> bytes:
    """Return the file of rows, sorted by their keys, a row a line; `winners` are told at the end."""
    rows = sorted(rows, key=lambda row: row.key)
    body = ",\n".join(_compact(row.verdict.to_json()) for row in rows)
    body += "\n" * bool(body)
    won = _compact(winners(rows))
    return f'{{"tool":"moetune","schema":{SCHEMA},"rows":[\n{body}],"winners":{won}}}\n'.encode()


def read_native(path: Path) -> list[Row]:
    """Read the file; raise TableError naming file and remedy."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise TableError(f"{path}: no JSON ({error}); move it away, or merge the ledgers again") from None
    if not isinstance(data, dict) or data.get("tool") != "moetune" or not isinstance(data.get("schema"), int):
        raise TableError(f"{path}: no table of moetune (it has no 'tool' and 'schema'); move it away")
    if data["schema"] > SCHEMA:
        raise TableError(
            f"{path}: schema {data['schema']} is newer than this moetune reads ({SCHEMA}); upgrade moetune"
        )
    rows = []
    for number, record in enumerate(data.get("rows", ()), 1):
        try:
            row = Row.of(Verdict.from_json(record))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TableError(f"{path}: row {number} cannot be read ({error}); merge the ledgers again") from error
        except TableError as error:
            raise TableError(f"{path}: {error}") from error
        if row is not None:
            rows.append(row)
    return rows


def _compact(record: object) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)
