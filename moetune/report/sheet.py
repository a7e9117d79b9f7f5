"""A sheet of cells, and its rendering as text, markdown, csv and json."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

Cell = str | int | float | None
PIPED_WIDTH = 100
"""Columns of text where stdout is no terminal, so that what is committed can be compared byte for byte."""
_GAP = 2  # columns between two cells
_LONGEST_WORD = 28  # a longer word (a path) is folded


@dataclass(frozen=True)
class Sheet:
    """A titled table: column names in snake_case with their unit, rows of raw cells, and notes under it.

    `hidden` names columns for csv and json only: the title tells them, or a reader can do without.
    `keys` leading columns say what a row is; text repeats them where a sheet is too wide for one piece.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    keys: int = 1


def render(sheets: Sequence[Sheet], form: str, width: int | None = None) -> str:
    """Return sheets as `text`, `markdown`, `csv` or `json`, without a final newline.

    Text and markdown round floats as `number` does and write `-`
    for None; csv and json are raw. csv has one header over all sheets, so that any reader takes it, led by a
    `sheet` column where there are several; notes are left out of it. `width` is that of text: by default the
    terminal's, or 100 columns where stdout is none.
    """
    if form == "json":
        return json.dumps([_plain(sheet) for sheet in sheets], indent=1, allow_nan=False)
    if form == "csv":
        return _csv(sheets)
    if form == "markdown":
        return "\n\n".join(_markdown(sheet) for sheet in sheets)
    return _text(sheets, width)


def number(value: float, column: str = "") -> str:
    """Return a float for reading, with 3 significant digits.

    Where the column is in microseconds, a tenth is shown, or 2 significant digits of less than 1 us.
    """
    if not math.isfinite(value):
        return str(value)
    if column == "us" or column.endswith("_us"):
        return f"{value:#.2g}" if 0 < abs(value) < 0.95 else f"{value:.1f}"
    if 0 < abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".removesuffix(".")


def _shown(cell: Cell, column: str) -> str:
    if cell is None:
        return "-"
    return number(cell, column) if isinstance(cell, float) else str(cell)


def _visible(sheet: Sheet) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the column names and the cells that text and markdown show."""
    kept = [i for i, column in enumerate(sheet.columns) if column not in sheet.hidden]
    cells = [[_shown(row[i], sheet.columns[i]) for i in kept] for row in sheet.rows]
    return tuple(sheet.columns[i] for i in kept), cells


def _numeric(sheet: Sheet, column: str) -> bool:
    cells = [row[sheet.columns.index(column)] for row in sheet.rows]
    return any(isinstance(cell, int | float) for cell in cells)


def _plain(sheet: Sheet) -> dict[str, object]:
    rows = [
        {
            column: None if isinstance(cell, float) and not math.isfinite(cell) else cell
            for column, cell in zip(sheet.columns, row, strict=True)
        }
        for row in sheet.rows
    ]
    return {"title": sheet.title, "columns": list(sheet.columns), "rows": rows, "notes": list(sheet.notes)}


def _csv(sheets: Sequence[Sheet]) -> str:
    columns = list(dict.fromkeys(column for sheet in sheets for column in sheet.columns))
    lead = ["sheet"] if len(sheets) > 1 else []
    out = io.StringIO()
    writer = csv.DictWriter(out, [*lead, *columns], restval="", lineterminator="\n")
    writer.writeheader()
    for sheet in sheets:
        for row in sheet.rows:
            cells: dict[str, Cell] = dict(zip(sheet.columns, row, strict=True))
            writer.writerow({**dict.fromkeys(lead, sheet.title), **cells})
    return out.getvalue().rstrip("\n")


def _markdown(sheet: Sheet) -> str:
    columns, cells = _visible(sheet)
    head = [column.replace("_", " ") for column in columns]
    rule = ["---:" if _numeric(sheet, column) else "---" for column in columns]
    lines = [f"### {sheet.title}", ""]
    for line in [head, rule, *cells]:
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |")
    for note in sheet.notes:
        lines += ["", note]
    return "\n".join(lines)


def _text(sheets: Sequence[Sheet], width: int | None) -> str:
    from rich.console import Console
    from rich.text import Text

    terminal = sys.stdout.isatty()
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=terminal,
        force_jupyter=False,
        width=width or (Console().width if terminal else PIPED_WIDTH),
        height=25,
        legacy_windows=False,
    )
    for position, sheet in enumerate(sheets):
        if position:
            console.print()
        console.print(Text(sheet.title, style="bold"))
        if not sheet.rows:
            console.print(Text("  none"))
        else:
            _draw(console, sheet)
        for note in sheet.notes:
            console.print(Text(note))
    text = out.getvalue()
    return "\n".join(line.rstrip() for line in text.splitlines())


def _draw(console: Console, sheet: Sheet) -> None:
    """Print a sheet, in stacked parts that repeat its key columns where its columns do not fit."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns, cells = _visible(sheet)
    heads = [column.replace("_", " ") for column in columns]
    # a config is wrapped between its axes, never inside one
    body = [[re.sub(r";(?=\S)", "; ", cell) for cell in line] for line in cells]
    numeric = [_numeric(sheet, column) for column in columns]
    least, most = [], []
    for i, head in enumerate(heads):
        words = [word for line in body for word in line[i].split()]
        longest = max(map(len, words), default=1)
        least.append(max(longest if numeric[i] else min(longest, _LONGEST_WORD), *map(len, head.split())))
        most.append(max(len(head), *(len(line[i]) for line in body)))
    keys = sum(column not in sheet.hidden for column in sheet.columns[: sheet.keys])
    for position, part in enumerate(_parts(least, keys, console.width + _GAP)):
        if position:
            console.print()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        room = console.width + _GAP - sum(least[i] + _GAP for i in part)
        for i in part:
            share = min(room, max(0, most[i] - least[i]))
            room -= share
            side: Literal["left", "right"] = "right" if numeric[i] else "left"
            table.add_column(Text(heads[i]), width=least[i] + share, justify=side, overflow="fold")
        for line in body:
            table.add_row(*(Text(line[i]) for i in part))
        console.print(table)


def _parts(least: Sequence[int], keys: int, width: int) -> list[list[int]]:
    """Split columns into runs that fit the width at their least, each led by the key columns."""
    lead = list(range(keys))
    parts = [list(lead)]
    for i in range(keys, len(least)):
        if sum(least[j] + _GAP for j in [*parts[-1], i]) > width and len(parts[-1]) > keys:
            parts.append(list(lead))
        parts[-1].append(i)
    return parts
