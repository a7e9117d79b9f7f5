"""The command `moetune shapes`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from moetune.catalog import load_shape, shape_names
from moetune.cli.options import Form, Json, form_of, integers
from moetune.errors import UsageError
from moetune.report.shape_sheet import list_sheet, shape_sheets
from moetune.report.sheet import render
from moetune.targets import load_target

_LIST_WIDTH = 120  # columns where stdout is no terminal: one line a shape


def shapes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[SHAPE]", help="A shape's name, any case, or the path of a .toml."),
    ] = None,
    target: Annotated[str, typer.Option(help="The GPU of the floor: a name or an architecture.")] = "h200",
    tp: Annotated[str | None, typer.Option(help="Tensor parallel degrees, as 1,2,4.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Token buckets, as 1-256,1024.")] = None,
    form: Form = "text",
    json: Json = False,
) -> None:
    """List the shapes, or show one: its legal formats at each TP, and bytes, operations and floor a bucket.

    For example:

        moetune shapes

        moetune shapes demo

        moetune shapes qwen3.5-397b-a17b --tp 1,4 --tokens 1-256 --target sm_90

        moetune shapes ./my-model.toml --json
    """
    form = form_of(form, json)
    if name is None:
        if tp or tokens:
            raise UsageError("--tp and --tokens: name the shape they are for, as in `moetune shapes demo --tp 1`")
        width = None if sys.stdout.isatty() else _LIST_WIDTH
        typer.echo(render([list_sheet(map(load_shape, shape_names()))], form, width))
        return
    shape = load_shape(name)
    tps = integers(tp, "--tp") if tp else shape.tp
    for degree in tps:
        if shape.inter_dim % degree:
            raise UsageError(f"--tp {degree}: does not divide inter_dim {shape.inter_dim} of {shape.name}")
    buckets = integers(tokens, "--tokens") if tokens else shape.tokens
    typer.echo(render(shape_sheets(shape, load_target(target), tps, buckets), form))
