"""The command `moetune bench`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moetune.cli.options import Form, Json, form_of, integers
from moetune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moetune.claims import Claims
    from moetune.device.machine import Device
    from moetune.match import Match
    from moetune.model.contest import Contest
    from moetune.model.target import Target


def bench(
    table: Annotated[
        Path | None,
        typer.Argument(metavar="TABLE", help="A ledger (folder or file), a CSV table or a .moetune.json."),
    ] = None,
    row: Annotated[
        list[int] | None,
        typer.Option("--row", help="A row of TABLE, counted from 1; repeats (default: all).", metavar="N"),
    ] = None,
    shape: Annotated[str, typer.Option(help="Instead of TABLE: a name of `moetune shapes`, or a TOML file.")] = "",
    tp: Annotated[str, typer.Option(help="TP degrees of --shape (default: the shape's).")] = "",
    ep: Annotated[str, typer.Option(help="Expert parallel degrees of --shape (default: 1).")] = "",
    tokens: Annotated[str, typer.Option(help="Token buckets of --shape (default: the shape's).")] = "",
    kernel: Annotated[str, typer.Option(help="The kernel, with --shape.")] = "",
    config1: Annotated[
        str, typer.Option(help="Stage 1's config (or both's); axes left out are the default's.", metavar="CONFIG")
    ] = "",
    config2: Annotated[str, typer.Option(help="Stage 2's config.", metavar="CONFIG")] = "",
    routing: Annotated[str, typer.Option(help="With --shape: uniform, balanced, zipf:1.2 or hot:0.5.")] = "",
    seed: Annotated[
        int | None, typer.Option(help="Random seed of operands and routing (default: the row's, else 0).", min=0)
    ] = None,
    gpus: Annotated[str, typer.Option(help="Number of the GPU (default: the first that is idle).")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder of logs and compiled binaries (default: moetune-out/<machine>).")
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds a config may run before it is killed.", min=0.1)] = 20.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    form: Form = "text",
    json: Json = False,
    timer: Annotated[str, typer.Option(hidden=True, help="Another timer, as module:Class.")] = "",
) -> None:
    """Re-time rows of TABLE, or the configs given, and check them.

    Each row runs beside its default, the default's rule at 64 tokens, torch's
    own grouped matmul where the kernel has it, and a loop over the experts: all
    checked against the fp32 reference, then timed interleaved. So are its stages
    alone, beside the hardware floor. The exit code is 1 where a row is wrong, or
    slower than its default beyond the spread. The command that repeats a row is
    printed, and stands in the JSON.

    [bold]Examples[/bold]

      moetune bench tuned_grouped_fmoe.csv --row 3
      moetune bench moetune-out/nvidia-h200 --json
      moetune bench --shape demo --kernel cpu --config1 "tile_m=16;tile_n=256"
    """
    from moetune.choosing import default_out
    from moetune.device.compiling import DEADLINE_S as COMPILE_S
    from moetune.device.lane import Deadlines
    from moetune.match import Match

    form = form_of(form, json)
    words = {"--tp": tp, "--tokens": tokens, "--kernel": kernel, "--config1": config1, "--config2": config2}
    words |= {"--routing": routing, "--ep": ep}
    if (table is None) == (not shape):
        raise UsageError("name a TABLE, or a shape with --shape NAME (not both)")
    if table is not None:
        given = [option for option, text in words.items() if text]
        if given:
            raise UsageError(f"{given[0]}: goes with --shape; the rows of a TABLE have their own (--row N picks some)")
        claims, targets, devices = _of_table(table, row or [], seed, gpus)
    else:
        if row:
            raise UsageError("--row: goes with a TABLE")
        if not kernel:
            raise UsageError("--kernel: name the kernel whose configs are timed, e.g. --kernel bf16")
        claims, targets, devices = _of_words(shape, words, seed or 0, gpus)
    match = Match(
        claims=claims,
        targets=targets,
        devices=devices,
        out=out or default_out(next(iter(devices.values()))),
        deadlines=Deadlines(attempt=deadline, first=deadline + COMPILE_S),
        timer=timer,
        command=("moetune", *sys.argv[1:]),
    )
    _hold(match, quiet, form)


def _of_table(
    table: Path, rows: list[int], seed: int | None, gpus: str
) -> tuple[Claims, dict[str, Target], dict[str, Device]]:
    from moetune.claims import read_claims, settle

    found = read_claims(table, rows, seed)
    for warning in found.warnings:
        print(f"moetune: {warning}", file=sys.stderr)
    targets, devices = _places({claim.problem.kernel for claim in found.claims}, gpus)
    found = settle(found, targets)
    if found.left_out and (rows or not found.claims):
        more = f" (and {len(found.left_out) - 1} more rows)" if len(found.left_out) > 1 else ""
        raise UsageError(f"{found.left_out[0]}{more}; nothing was timed")
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    return found, targets, devices


def _of_words(
    shape: str, words: dict[str, str], seed: int, gpus: str
) -> tuple[Claims, dict[str, Target], dict[str, Device]]:
    from moetune.catalog import load_shape
    from moetune.choosing import choose_kernels, choose_problems
    from moetune.claims import given_claims
    from moetune.model.routing import Routing

    name = words["--kernel"]
    tps, eps, tokens = (
        integers(words[option], option) if words[option] else [] for option in ("--tp", "--ep", "--tokens")
    )
    routing = Routing.parse(words["--routing"] or "uniform")
    loaded = load_shape(shape)
    targets, devices = _places([name], gpus)
    kernels = choose_kernels([name], [loaded], targets[name])
    problems, left_out = choose_problems([shape], tps, tokens, [routing], kernels, targets[name], named=True, eps=eps)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    texts = (words["--config1"], words["--config2"])
    return given_claims(problems, kernels[name], targets[name], texts, seed, shape), targets, devices


def _places(kernels: Iterable[str], gpus: str) -> tuple[dict[str, Target], dict[str, Device]]:
    """Return the target and the device of each kernel: one GPU for those that run on it, where there is one."""
    from moetune.choosing import choose_devices, on_cpu, the_cpu, visible_devices
    from moetune.device.machine import target_for

    names = sorted(set(kernels))
    (cpu,) = the_cpu()
    gpu = cpu
    if names and not on_cpu(names):
        chosen = choose_devices(visible_devices(), gpus)
        if gpus and len(chosen) > 1:
            raise UsageError(f"--gpus {gpus!r}: rows are timed side by side on one GPU; name one")
        gpu = chosen[0] if chosen else cpu
    elif gpus:
        raise UsageError(f"--gpus {gpus!r}: {', '.join(names)} runs on the CPU")
    devices = {name: cpu if on_cpu([name]) else gpu for name in names}
    return {name: target_for(device) for name, device in devices.items()}, devices


def _hold(match: Match, quiet: bool, form: str) -> None:
    from moetune.live import LiveView
    from moetune.match import hold_contests
    from moetune.report.bench_sheet import bench_sheets
    from moetune.report.sheet import render

    with LiveView(quiet) as view:
        count = len(match.claims.claims)
        where = ", ".join(f"{name} on {device.name} ({device.product})" for name, device in match.devices.items())
        view.log(f"timing {count} row{'s' * (count > 1)}: {where}")
        ended = hold_contests(match, lambda contest: view.log(_told(contest)))
    if ended.contests:
        print(render(bench_sheets(ended.contests), form))
        if form in ("text", "markdown"):
            fence = "```" if form == "markdown" else ""
            lines = [f"# row {c.claim.number}\n{c.claim.command}" for c in ended.contests]
            print("\n".join(filter(None, ["\nTo repeat:", fence and f"{fence}sh", *lines, fence])))
    if ended.error is not None:
        raise ended.error


def _told(contest: Contest) -> str:
    from moetune.model.contest import DEFAULT, ROW

    text = f"{contest.claim.name}: {contest.standing}"
    timings = [c.layer for name in (ROW, DEFAULT) if (c := contest.contestant(name)) and c.layer]
    if contest.reason or len(timings) < 2:
        return f"{text}: {contest.reason}"
    us, default_us = (f"{t.median_us:.1f} ± {t.spread_us:.1f} us" for t in timings)
    return f"{text}, {us}, default {default_us}, {timings[1].median_us / timings[0].median_us:.2f}x"
