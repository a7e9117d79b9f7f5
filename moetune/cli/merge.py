"""The command `moetune merge`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from moetune.cli.options import Form, Json, form_of
from moetune.errors import TableError
from moetune.report.sheet import Cell, Sheet, render
from moetune.tables.aiter import HEADER, KEYS
from moetune.tables.files import Plan, merge_into
from moetune.tables.merge import NOT_ALIKE, Action, Candidate, Prefer, Step
from moetune.tables.native import native_path


def merge(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LEDGER_OR_TABLE...",
            help="Ledgers (the folder of a sweep, or its file), CSV tables or their .moetune.json.",
            show_default=False,
        ),
    ],
    into: Annotated[Path, typer.Option("--into", metavar="FILE", help="The CSV table to merge into; made if missing.")],
    prefer: Annotated[
        Prefer,
        typer.Option(
            help="Which of two rows with one key stays: the faster (compared only where both were measured alike, "
            "else the one in --into), mine (the input's), theirs (the one in --into)."
        ),
    ] = Prefer.FASTER,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference; write nothing.")] = False,
    foreign_kernel: Annotated[
        bool,
        typer.Option(
            "--foreign-kernel",
            help="Accept a row into a key that holds another kernel's row, and rows of moetune's kernels under a "
            "gfx that aiter's grouped kernel serves. Without it they are refused and nothing at all is written.",
        ),
    ] = False,
    form: Form = "text",
    json: Json = False,
) -> None:
    """Merge ledgers and tables into one table in the format of aiter's tuned_grouped_fmoe.csv.

    Rows already in FILE keep their bytes and order, new ones follow sorted. Beside it are written
    NAME.moetune.json (every row with all that was measured) and NAME.provenance.jsonl (how to repeat each).
    What the CSV's key cannot tell apart (routing, biases, ...) goes to the JSON only. Merging twice changes nothing.

    For example:

        moetune merge moetune-out/h200 --into tuned.csv

        moetune merge moetune-out/h200 theirs.csv --into tuned.csv --prefer mine --dry-run
    """
    form = form_of(form, json)
    plan = merge_into(into, inputs, prefer, foreign=foreign_kernel, dry_run=dry_run)
    for note in _notes(plan):
        print(f"moetune: {note}", file=sys.stderr)
    if dry_run and form == "text":
        print("\n".join(plan.difference()) or "no difference in the CSV")
    print(_rendered(plan, form, dry_run))
    if plan.refused:
        raise TableError(
            f"{plan.merged.count(Action.REFUSED)} rows refused, nothing is written: aiter reads a row's tiles, ignores "
            "its kernel's name, and drops the K tail of a tile it cannot run; name another --into or pass "
            "--foreign-kernel"
        )


def _notes(plan: Plan) -> list[str]:
    notes = list(plan.warnings)
    if plan.failed:
        notes.append(f"problems without a row, because their default is wrong: {plan.failed}")
    if plan.merged.json_only:
        reasons = ", ".join(f"{reason} ({n})" for reason, n in plan.merged.json_only.items())
        count, name = sum(plan.merged.json_only.values()), native_path(plan.into).name
        notes.append(f"{name} alone holds {count} of the rows, which the CSV's key cannot tell apart: {reasons}")
    if any(step.reason == NOT_ALIKE for step in plan.merged.steps):
        notes.append(f"some times were {NOT_ALIKE}; --prefer mine takes the inputs' rows, --prefer theirs FILE's")
    return notes


def _rendered(plan: Plan, form: str, dry_run: bool) -> str:
    merged = plan.merged
    counts = ", ".join(f"{merged.count(action)} {action}" for action in Action)
    title = f"{plan.into}: {counts}, {merged.unchanged} unchanged"
    if plan.refused:
        end = "nothing is written"
    elif not plan.changes:
        end = "nothing to change"
    else:
        first, *beside = plan.changes
        names = [str(first.absolute()), *(path.name for path in beside)]
        end = ("would write " if dry_run else "wrote ") + ", ".join(names)
    if form == "text":
        return "\n".join([*(_told(s) for s in merged.steps if s.action is not Action.ADDED), title, end])
    columns = ("action", "row", "held_us", "held_in", "input_us", "input", "why", "place", *HEADER[:KEYS], "cells")
    return render([Sheet(title, columns, tuple(_cells(s) for s in merged.steps), (end,), columns[7:])], form)


def _told(step: Step) -> str:
    """Return one line on a row that had a rival or was refused, e.g. ``kept: ROW: 80 us in A, 75 us in B: WHY``."""
    sides = [f"{_us(row)} us in {row.source}" for row in (step.held, step.candidate) if row]
    parts = [
        step.action.value,
        _name(step.candidate),
        ", ".join(sides),
        step.reason or f"now {step.candidate.source}'s",
    ]
    return ": ".join(parts)


def _cells(step: Step) -> tuple[Cell, ...]:
    new, held = step.candidate, step.held
    return (
        step.action.value, _name(new), _us(held), str(held.source) if held else None, _us(new), str(new.source),
        step.reason, "csv" if step.in_csv else "json", *new.key, ",".join(new.cells),
    )  # fmt: skip


def _name(row: Candidate) -> str:
    cell = dict(zip(HEADER, row.cells, strict=True))
    routing = f" {row.row.facts['routing']}" if row.row else ""
    return (
        f"{cell['gfx']}/{cell['cu_num']} {cell['model_dim']}x{cell['inter_dim']} E{cell['expert']} top{cell['topk']} "
        f"{row.kernel} t{cell['token']}{routing}"
    )


def _us(row: Candidate | None) -> Cell:
    if row is None:
        return None
    if row.row is not None:
        return row.row.verdict.us
    text = row.cells[HEADER.index("us")]
    try:
        return float(text)
    except ValueError:
        return text or None
