"""Claims to be re-timed: the rows of a table or ledger, or the configs that a command names."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from moetune.catalog import load_shape, shape_names
from moetune.errors import KernelError, UsageError, nearest
from moetune.kernel import Kernel, load_kernel
from moetune.model.config import Config
from moetune.model.contest import Claim
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.space import exclusion
from moetune.tables import aiter
from moetune.tables.lines import read_lines
from moetune.tables.reading import read_source
from moetune.tables.row import Row


@dataclass(frozen=True)
class Claims:
    """What a table holds: `claims` in its order, why others are `left_out`, and the kernels that they name."""

    claims: tuple[Claim, ...]
    kernels: Mapping[str, Kernel]
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_claims(path: Path, numbers: Sequence[int] = (), seed: int | None = None) -> Claims:
    """Read the rows of a ledger or table, counted from 1; a CSV's by its lines below the header.

    Rows of kernels that are not installed are left out. `numbers` picks rows; without a `seed` a row keeps the one it
    was found with. Raises UsageError on a number that is none, or where a row picked is left out, and what reading
    raises.
    """
    source = read_source(path)
    rows: list[Row | tuple[str, ...]] = list(source.rows)
    if path.suffix.lower() == ".csv":
        known = aiter.by_cells(source.rows)
        rows = [known.get(line.cells, line.cells) for line in read_lines(path).rows()]
    wrong = [number for number in numbers if not 1 <= number <= len(rows)]
    if wrong or not rows:
        raise UsageError(f"--row {wrong[0]}: {path} has {len(rows)} rows" if wrong else f"{path}: holds no row to time")
    kernels: dict[str, Kernel] = {}
    claims, left_out = [], []
    for number, row in enumerate(rows, 1):
        if numbers and number not in numbers:
            continue
        try:
            claim = _of_row(number, row, kernels) if isinstance(row, Row) else _of_cells(number, row, kernels)
        except (KernelError, UsageError) as error:
            left_out.append(f"{path}: row {number}: {error}")
            continue
        if seed is not None:
            claim = replace(claim, seed=seed)
        claims.append(replace(claim, command=_command(claim, path)))
    return Claims(tuple(claims), kernels, tuple(left_out), source.warnings)


def settle(found: Claims, targets: Mapping[str, Target]) -> Claims:
    """Leave out the rows that the target of their kernel does not serve; say what no kernel can run.

    `targets` are by the kernel's name.
    """
    claims, left_out = [], list(found.left_out)
    for claim in found.claims:
        kernel, target = found.kernels[claim.problem.kernel], targets[claim.problem.kernel]
        reason = kernel.unserved(target) or kernel.unsupported(claim.problem.shape, claim.problem.tp)
        if reason:
            left_out.append(f"{claim.name}: {reason}")
        else:
            claims.append(replace(claim, fault=_fault(claim, kernel, target)))
    return replace(found, claims=tuple(claims), left_out=tuple(left_out))


def given_claims(
    problems: Sequence[Problem], kernel: Kernel, target: Target, texts: Sequence[str], seed: int, shape: str
) -> Claims:
    """Return a claim for each problem from the texts of --config1 and --config2; raise UsageError on a wrong one.

    An axis that a text does not name keeps the default's value. `shape` is the word that names the shape.
    """
    if len(kernel.stages) == 1 and texts[1]:
        raise UsageError(f"--config2: both stages of kernel {kernel.name} share one config; give --config1 alone")
    claims = []
    for number, problem in enumerate(problems, 1):
        configs = tuple(
            _given(problem, kernel, stage, target, text, f"--config{place}")
            for place, (stage, text) in enumerate(zip(kernel.stages, texts, strict=False), 1)
        )
        claim = Claim(number, problem, configs, seed)
        claims.append(replace(claim, command=_words(claim, shape)))
    return Claims(tuple(claims), {kernel.name: kernel})


def _given(problem: Problem, kernel: Kernel, stage: int, target: Target, text: str, option: str) -> Config:
    try:
        changes = Config.parse(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    if len(set(changes)) < len(changes):
        twice = next(axis for axis in changes if list(changes).count(axis) > 1)
        raise UsageError(f"{option}: {twice} is given twice")
    axes = kernel.axes(stage)
    unknown = [axis for axis in changes if axis not in axes]
    if unknown:
        raise UsageError(f"{option}: no axis {unknown[0]!r} in kernel {kernel.name}: {nearest(unknown[0], axes)}")
    config = kernel.default(stage, problem, target).replace(**changes)
    reason = _refusal(problem, kernel, stage, target, config)
    if reason:
        raise UsageError(f"{option} for {problem.key}: {reason}")
    return config


def _refusal(problem: Problem, kernel: Kernel, stage: int, target: Target, config: Config) -> str:
    """Return why a config is not in the pool of a stage, or nothing."""
    axes = kernel.axes(stage)
    lacking = [axis for axis in axes if axis not in config]
    unknown = [axis for axis in config if axis not in axes]
    if lacking or unknown:
        parts = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [f"has {', '.join(unknown)}"] * bool(unknown)
        return f"the config {' and '.join(parts)}: it is of another kernel {kernel.name} than the one installed"
    for axis, values in axes.items():
        if config[axis] not in values:
            return f"{axis} {config[axis]} is no value of its axis; {', '.join(map(str, values))} are"
    excluded = exclusion(kernel, stage, config, problem, target)
    return f"{excluded.reason} (excluded by {excluded.constraint!r})" if excluded else ""


def _fault(claim: Claim, kernel: Kernel, target: Target) -> str:
    for place, (stage, config) in enumerate(zip(kernel.stages, claim.configs, strict=True), 1):
        reason = _refusal(claim.problem, kernel, stage, target, config)
        if reason:
            return f"config{place} cannot run: {reason}"
    return ""


def _of_row(number: int, row: Row, kernels: dict[str, Kernel]) -> Claim:
    kernel = _installed(row.facts["kernel"], kernels)
    configs = (row.config1, row.config2)[: len(kernel.stages)]
    verdict = row.verdict
    seed = verdict.search.get("seed", 0)
    return Claim(number, _posed(row.facts), configs, seed, verdict.us, verdict.identity)


def _of_cells(number: int, cells: tuple[str, ...], kernels: dict[str, Kernel]) -> Claim:
    """Return the claim of a CSV row of which only its cells are known; raise UsageError where they do not tell it."""
    cell = dict(zip(aiter.HEADER, cells, strict=True))
    parsed = [aiter.parse_kernel_name(cell[name]) for name in ("kernelName1", "kernelName2")]
    if None in parsed:
        raise UsageError(f"measured on {cell['kernelName1'] or 'an unnamed kernel'}, which is no kernel of moetune's")
    one, two = [found[0] for found in parsed if found]
    if one != two:
        raise UsageError(f"kernelName1 is of kernel {one}, kernelName2 of {two}; one kernel runs both stages")
    kernel = _installed(one, kernels)
    configs = tuple(found[2] for found in parsed if found)[: len(kernel.stages)]
    try:
        facts = aiter.facts(cell) | {"kernel": kernel.name, "format": kernel.format.name}
        us = float(cell["us"])
        if not math.isfinite(us):
            raise ValueError(f"us {us}")
        return Claim(number, _posed(facts), configs, us=us)
    except ValueError as error:
        raise UsageError(f"its cells cannot be read ({error})") from None


def _installed(name: str, kernels: dict[str, Kernel]) -> Kernel:
    if name not in kernels:
        kernels[name] = load_kernel(name)
    return kernels[name]


@cache
def _shapes() -> tuple[Shape, ...]:
    return tuple(map(load_shape, shape_names()))


def _posed(facts: Mapping[str, Any]) -> Problem:
    """Return the problem that facts tell: of an installed shape that agrees with them, else of one made of them.

    Raises UsageError where neither tells all that the facts do.
    """
    for shape in (s for s in _shapes() if facts.get("shape", s.name) == s.name):
        for tp in [facts["tp"]] if "tp" in facts else shape.tp:
            if shape.inter_dim % tp == 0 and _agrees(problem := _problem(shape, tp, facts), facts):
                return problem
    tp, made = facts.get("tp", 1), {field.name: facts[field.name] for field in fields(Shape) if field.name in facts}
    sizes = "x".join(str(facts[name]) for name in ("model_dim", "inter_dim", "experts", "topk"))
    made |= {
        "name": facts.get("shape", sizes), "inter_dim": facts["inter_dim"] * tp, "formats": (facts["format"],),
        "tp": (tp,), "tokens": (facts["tokens"],),
    }  # fmt: skip
    problem = _problem(Shape(**made), tp, facts)
    if not _agrees(problem, facts):
        known = problem.facts()
        unlike = sorted(name for name in {*facts, *known} if facts.get(name, known.get(name)) != known.get(name))
        raise UsageError(f"this moetune poses no problem with its {', '.join(unlike)}")
    return problem


def _problem(shape: Shape, tp: int, facts: Mapping[str, Any]) -> Problem:
    routing = Routing.parse(facts.get("routing", "uniform"))
    return Problem(shape, tp, facts["kernel"], facts["format"], facts["tokens"], routing, facts["ep"])


def _agrees(problem: Problem, facts: Mapping[str, Any]) -> bool:
    """Return whether a problem is what the facts tell, and tells all of them."""
    known = problem.facts()
    return facts.keys() <= known.keys() and all(facts.get(name, value) == value for name, value in known.items())


def _command(claim: Claim, path: Path) -> str:
    """Return the command that repeats a table's row: by its shape where that is installed, else by its number."""
    if claim.problem.shape in _shapes():
        return _words(claim, claim.problem.shape.name)
    return shlex.join(["moetune", "bench", str(path), "--row", str(claim.number), "--seed", str(claim.seed)])


def _words(claim: Claim, shape: str) -> str:
    """Return the command that times a claim's configs."""
    p = claim.problem
    words: list[object] = ["moetune", "bench", "--shape", shape, "--tp", p.tp]
    words += ["--ep", p.ep] if p.ep > 1 else []
    words += ["--tokens", p.tokens, "--kernel", p.kernel]
    words += ["--routing", p.routing] if str(p.routing) != "uniform" else []
    words += [word for place, config in enumerate(claim.configs, 1) for word in (f"--config{place}", config)]
    words += ["--seed", claim.seed] if claim.seed else []
    return shlex.join(map(str, words))
