"""The command `moetune sweep`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moetune.cli.options import Form, Json, form_of, integers, split
from moetune.errors import UsageError, nearest
from moetune.search import SAMPLERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moetune.device.machine import Device
    from moetune.kernel import Kernel
    from moetune.model.problem import Problem
    from moetune.model.target import Target
    from moetune.plan import ProblemPlan
    from moetune.search import Known
    from moetune.sweep import Order
    from moetune.workbench import Effort

_COUPLINGS = ("none", "tile_m")


def sweep(
    shape: Annotated[list[str], typer.Argument(help="Shapes: names that `moetune shapes` lists, or TOML files.")],
    tp: Annotated[str, typer.Option(help="TP degrees, e.g. 1,2,4 (default: the shape's).")] = "",
    ep: Annotated[str, typer.Option(help="Expert parallel degrees, e.g. 1,8: tune what one rank runs.")] = "1",
    tokens: Annotated[str, typer.Option(help="Token buckets, e.g. 1-256,1024 (default: the shape's).")] = "",
    kernel: Annotated[list[str] | None, typer.Option(help="Kernels (default: those of the shape's formats).")] = None,
    trials: Annotated[int, typer.Option(help="Trials per problem and stage.", min=1)] = 100,
    minutes: Annotated[
        float | None, typer.Option(help="Search this long in all; finals come on top.", min=0.01)
    ] = None,
    sampler: Annotated[str, typer.Option(help="auto, tpe, gp, random or exhaustive.")] = "auto",
    seed: Annotated[int, typer.Option(help="Random seed of operands, routing and search.", min=0)] = 0,
    start_from: Annotated[
        list[Path] | None, typer.Option(help="A table or ledger whose configs are tried first.")
    ] = None,
    routing: Annotated[list[str] | None, typer.Option(help="uniform, balanced, zipf:1.2 or hot:0.5.")] = None,
    couple: Annotated[str, typer.Option(help="none, or tile_m: both stages get one tile_m.")] = "none",
    gpus: Annotated[str, typer.Option(help="GPU numbers, e.g. 0,1 (default: visible and idle).")] = "",
    out: Annotated[Path | None, typer.Option(help="Output folder (default: moetune-out/<machine>).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; compile and write nothing.")] = False,
    target: Annotated[str, typer.Option(help="With --dry-run: plan for a GPU that is not here, e.g. sm_90.")] = "",
    deadline: Annotated[float, typer.Option(help="Seconds a candidate may run before it is killed.", min=0.1)] = 20.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move the old ledger aside and start anew.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    form: Form = "text",
    json: Json = False,
    timer: Annotated[str, typer.Option(hidden=True, help="Another timer, as module:Class.")] = "",
) -> None:
    """Tune SHAPEs on the devices of this machine, and keep every trial in a ledger.

    An interrupted sweep goes on where it stopped when the same command is run again.

    [bold]Examples[/bold]

      moetune sweep demo
      moetune sweep qwen3.5-397b-a17b --tp 1,2,4 --kernel bf16,a8w4
      moetune sweep demo --dry-run --target sm_90
    """
    from moetune.catalog import load_shape
    from moetune.choosing import (
        choose_devices,
        choose_kernels,
        choose_problems,
        default_out,
        digest,
        known_configs,
        on_cpu,
        the_cpu,
        visible_devices,
    )
    from moetune.device.machine import target_for
    from moetune.model.routing import Routing
    from moetune.targets import load_target
    from moetune.workbench import Effort

    for option, value, names in (("--sampler", sampler, SAMPLERS), ("--couple", couple, _COUPLINGS)):
        if value not in names:
            raise UsageError(f"{option} {value!r}: {nearest(value, names)}")
    if target and not dry_run:
        raise UsageError("--target: only a plan can be made for a GPU that is not here; add --dry-run")
    form = form_of(form, json)
    shapes = [load_shape(name) for name in shape]
    routings = [Routing.parse(text) for text in split(routing)] or [Routing()]
    wanted = split(kernel)
    tps, buckets = integers(tp, "--tp") if tp else [], integers(tokens, "--tokens") if tokens else []
    eps = integers(ep, "--ep")
    devices: list[Device] = []
    if target:
        plan_for = load_target(target)
    else:
        if on_cpu(wanted) and gpus:
            raise UsageError(f"--gpus {gpus!r}: {', '.join(wanted)} runs on the CPU")
        devices = [] if on_cpu(wanted) else choose_devices(visible_devices(), gpus, busy=dry_run)
        devices = devices or the_cpu()
        plan_for = target_for(devices[0])
    kernels = choose_kernels(wanted, shapes, plan_for)
    problems, left_out = choose_problems(shape, tps, buckets, routings, kernels, plan_for, named=bool(wanted), eps=eps)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    known = known_configs(start_from or [])
    effort = Effort(trials, sampler, seed, couple, digest(known))
    if dry_run:
        _print_plan(problems, kernels, plan_for, effort, known, form)
        return
    from moetune.device.compiling import DEADLINE_S as COMPILE_S
    from moetune.device.lane import Deadlines
    from moetune.sweep import Order

    order = Order(
        problems=problems,
        kernels=kernels,
        devices=tuple(devices),
        target=plan_for,
        out=out or default_out(devices[0]),
        effort=effort,
        minutes=minutes,
        fresh=fresh,
        start_from=known,
        timer=timer,
        deadlines=Deadlines(attempt=deadline, first=deadline + COMPILE_S),
        command=("moetune", *sys.argv[1:]),
    )
    _sweep(order, quiet, form)


def _sweep(order: Order, quiet: bool, form: str) -> None:
    from moetune.live import LiveView, duration
    from moetune.report.sheet import render
    from moetune.report.summary import summary_sheets
    from moetune.sweep import run
    from moetune.watching import beside, made, watcher

    expected = beside(lambda: _expected_s(order))
    with LiveView(quiet) as view:
        view.log(_where(order))
        ended = run(order, watcher(view, order, expected))
    if ended.verdicts:
        expected_s = made(expected)
        print(render(summary_sheets(list(ended.verdicts)), form))
        plan = "not estimated" if expected_s is None else f"estimated {duration(expected_s)}"
        count = f"{len(ended.verdicts)} of {len(order.problems)} problems"
        told = sys.stdout if form == "text" else sys.stderr
        print(f"\n{count} in {duration(ended.seconds)} ({plan})\nledger: {order.out}", file=told)
        merge = ["moetune", "merge", str(order.out), "--into", "tuned_grouped_fmoe.csv"]
        print(f"merge:  {shlex.join(merge)}", file=told)
    if ended.error is not None:
        raise ended.error


def _expected_s(order: Order) -> float:
    from moetune.device.compiling import compile_workers
    from moetune.plan import estimate_seconds

    plans = _plans(order.problems, order.kernels, order.target, order.effort, order.start_from)
    return estimate_seconds(plans, compile_workers(), order.target)


def _plans(
    problems: Sequence[Problem], kernels: dict[str, Kernel], target: Target, effort: Effort, known: Sequence[Known]
) -> list[ProblemPlan]:
    from moetune.plan import plan_problem

    return [
        plan_problem(kernels[p.kernel], p, target, effort.trials, effort.sampler, effort.seed, known) for p in problems
    ]


def _print_plan(
    problems: Sequence[Problem], kernels: dict[str, Kernel], target: Target, effort: Effort, known: Sequence[Known],
    form: str,
) -> None:  # fmt: skip
    from moetune.device.compiling import compile_workers
    from moetune.live import duration
    from moetune.plan import estimate_seconds, exclusion_rows, first_rows, pool_rows
    from moetune.report.sheet import Sheet, render

    workers = compile_workers()
    plans = _plans(problems, kernels, target, effort, known)
    seconds = estimate_seconds(plans, workers, target)
    sheets = []
    for title, rows in (
        ("Pools", pool_rows(plans)),
        ("Why configs are excluded", exclusion_rows(plans)),
        ("First configs", first_rows(plans)),
    ):
        columns = tuple(rows[0]) if rows else ()
        sheets.append(Sheet(title, columns, tuple(tuple(row.values()) for row in rows)))
    where = f"{target.name} ({target.arch}), {workers} compiling"
    note = f"{len(plans)} problems on {where}: about {duration(seconds)}; nothing was compiled or written"
    sheets[-1] = dataclasses.replace(sheets[-1], notes=(note,))
    print(render([s for s in sheets if s.columns], form))


def _where(order: Order) -> str:
    device = order.devices[0]
    kernels = ", ".join(order.kernels)
    if device.arch == "cpu":
        return f"no GPU in use: tuning kernel {kernels} on the CPU ({device.product}, {device.cu_num} cores)"
    names = ", ".join(d.name for d in order.devices)
    return f"tuning {kernels} on {names} ({device.product}), ledger in {order.out}"
