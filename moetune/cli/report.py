"""The command `moetune report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetune.cli.options import Form, Json, form_of, split


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(help="Ledgers (file or folder) and .moetune.json tables.", metavar="LEDGER_OR_TABLE"),
    ],
    by: Annotated[str, typer.Option(help="A row of the summary, and a sheet, for each tp or shape.")] = "tp",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Print only these: summary, failures, buckets, loops, configs, accuracy, outcomes, time."),
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Short for --only summary.")] = False,
    form: Form = "text",
    json: Json = False,
) -> None:
    """Show what sweeps found: tuned against default, share of the floor, accuracy, failures, time.

    For example:

        moetune report moetune-out/h200

        moetune report results/*/ledger.jsonl --summary --format markdown

        moetune report qwen.moetune.json --only accuracy --json
    """
    from moetune.report.contents import report_sheets
    from moetune.report.evidence import read_evidence
    from moetune.report.sheet import render

    form = form_of(form, json)
    named = split(only) + ["summary"] * summary
    evidence = read_evidence(sources)
    for warning in evidence.warnings:
        typer.echo(f"moetune: {warning}", err=True)
    typer.echo(render(report_sheets(evidence, by, named), form))
