"""A CSV table as lines that keep their exact bytes."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

from moetune.errors import TableError
from moetune.tables.aiter import HEADER, KEYS, kernel_of

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """One row of a table: its bytes with their line ending, and its cells (none: a blank line)."""

    number: int
    raw: bytes = field(compare=False)
    cells: tuple[str, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The key cells, compared exactly."""
        return self.cells[:KEYS]

    @property
    def kernel(self) -> str:
        """Which kernel the row was measured on."""
        return kernel_of(self.cells)


@dataclass(frozen=True)
class Lines:
    """A table's header line and rows; `end` is the line ending of the header."""

    head: bytes = (",".join(HEADER) + "\n").encode()
    lines: tuple[Line, ...] = ()

    @property
    def end(self) -> bytes:
        """The line ending in use."""
        return b"\r\n" if self.head.endswith(b"\r\n") else b"\n"

    def rows(self) -> list[Line]:
        """Return the lines that are not blank."""
        return [line for line in self.lines if line.cells]

    def duplicates(self) -> list[tuple[int, int]]:
        """Return the line numbers of each row whose key an earlier row has, that row's first."""
        first: dict[tuple[str, ...], int] = {}
        pairs = ((first.setdefault(line.key, line.number), line.number) for line in self.rows())
        return [(a, b) for a, b in pairs if a != b]

    def edited(self, replaced: dict[int, tuple[str, ...] | None], added: list[tuple[str, ...]]) -> bytes:
        """Return the file with lines (by number) replaced, or left out (None), and rows added at its end.

        Other lines keep their bytes. Whether the last line ends in a line ending stays as it was.
        """
        parts = [self.head]
        for line in self.lines:
            cells = replaced.get(line.number, line.cells)
            if line.number not in replaced:
                parts.append(line.raw)
            elif cells is not None:
                parts.append(join(cells) + line.raw[len(line.raw.rstrip(b"\r\n")) :])
        open_end = not parts[-1].endswith(b"\n")
        if added:
            parts[-1] += self.end if open_end else b""
            parts += [join(cells) + self.end for cells in added]
            if open_end:
                parts[-1] = parts[-1].removesuffix(self.end)
        return b"".join(parts)


def join(cells: tuple[str, ...]) -> bytes:
    """Return cells as one CSV line, without a line ending."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(cells)
    return out.getvalue().encode()


def read_lines(path: Path, *, missing_ok: bool = False) -> Lines:
    """Read a table; raise TableError naming file and line where it is none with aiter's 41 columns.

    A byte order mark and either line ending are kept. `missing_ok` reads no file, or an empty one, as an empty table.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if missing_ok:
            return Lines()
        raise TableError(f"{path}: no such file; name a ledger, the folder of a sweep or a table") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    if not data and missing_ok:
        return Lines()
    head, *rest = _split(data)
    _check_header(path, _cells(path, 1, head.removeprefix(_BOM)))
    lines = tuple(Line(n, raw, _cells(path, n, raw)) for n, raw in enumerate(rest, 2))
    for line in lines:
        if line.cells and len(line.cells) != len(HEADER):
            raise TableError(
                f"{path}: line {line.number} has {len(line.cells)} cells where the header has {len(HEADER)}; "
                "correct or remove it"
            )
    return Lines(head, lines)


def _split(data: bytes) -> list[bytes]:
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return parts if parts[-1] or len(parts) == 1 else parts[:-1]


def _cells(path: Path, number: int, raw: bytes) -> tuple[str, ...]:
    try:
        rows = list(csv.reader([raw.decode().rstrip("\r\n")], strict=True))
    except UnicodeDecodeError:
        raise TableError(f"{path}: line {number} is not UTF-8; name a CSV table") from None
    except csv.Error as error:
        raise TableError(f"{path}: line {number} is no CSV row ({error}); correct or remove it") from None
    return tuple(rows[0]) if rows else ()


def _check_header(path: Path, found: tuple[str, ...]) -> None:
    if found == HEADER:
        return
    lacking = [column for column in HEADER if column not in found]
    unknown = [column for column in found if column not in HEADER]
    parts = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [f"has {', '.join(unknown)}"] * bool(unknown)
    what = " and ".join(parts) or "has the columns in another order"
    raise TableError(
        f"{path}: not the header of tuned_grouped_fmoe.csv: it {_short(what)}; name a table with its 41 columns"
    )


def _short(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 4].rstrip(", ") + " ..."
