"""The command line: one module a command, each parses, calls one function and prints."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from moetune import __version__
from moetune.cli.bench import bench
from moetune.cli.merge import merge
from moetune.cli.report import report
from moetune.cli.shapes import shapes
from moetune.cli.sweep import sweep
from moetune.errors import MoetuneError

app = typer.Typer(
    name="moetune",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"moetune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Tune grouped mixture-of-experts kernels, and write the tables that serving stacks read."""


for command in (sweep, merge, report, bench, shapes):
    app.command()(command)


def main() -> None:
    """Run the command line; an error is one line on stderr and its exit code, `--debug` anywhere shows more."""
    debug = "--debug" in sys.argv
    sys.argv = [sys.argv[0], *(word for word in sys.argv[1:] if word != "--debug")]
    try:
        app()
    except MoetuneError as error:
        if debug:
            raise
        print(f"moetune: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read the output has left
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        print(f"moetune: internal fault: {error!r}; --debug shows where, please report it", file=sys.stderr)
        sys.exit(1)
