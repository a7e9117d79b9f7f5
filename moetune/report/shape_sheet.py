"""What `moetune shapes` shows: the shapes at hand, or one shape's legal formats and floors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moetune.errors import KernelError
from moetune.kernel import load_kernel
from moetune.model.floor import floor_us
from moetune.model.format import FORMATS, Format
from moetune.model.padding import padded
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.model.traffic import expected_active_experts, stage_traffic
from moetune.report.sheet import Cell, Sheet

_FACTS = (
    "shape", "model_dim", "inter_dim", "experts", "topk", "act", "shared", "moe_layers", "formats", "tp"
)  # fmt: skip

_FITTING = (
    "off 128: what the GPU kernels do with a dimension that is no multiple of 128. padded: 4-bit weights that widen to "
    "bf16 are prepacked in blocks of 128 along K, zeros at the end. steps: 4-bit weights that widen to int8 are "
    "multiplied group by group, and groups divide K. (The rows of both are padded to 64.) masked: what a tile has too "
    "much is not read. no tile divides: scaled matrix instructions take whole tiles. no GPU kernel: loads need "
    "multiples of 32."
)


def list_sheet(shapes: Iterable[Shape]) -> Sheet:
    """Return one row a shape: sizes at TP1, activation, formats and tensor parallel degrees."""
    rows: list[tuple[Cell, ...]] = []
    for s in shapes:
        sizes = (s.name, s.model_dim, s.inter_dim, s.experts, s.topk, s.act, s.shared_experts, s.moe_layers)
        rows.append((*sizes, ", ".join(s.formats), ",".join(map(str, s.tp))))
    return Sheet("Shapes", _FACTS, tuple(rows))


def shape_sheets(shape: Shape, target: Target, tps: Sequence[int], tokens: Sequence[int]) -> list[Sheet]:
    """Return a shape's facts, its legal formats at each TP, and each bucket's floor on a target."""
    return [list_sheet([shape]), _formats(shape, target, tps), _floors(shape, target, tps, tokens)]


def _formats(shape: Shape, target: Target, tps: Sequence[int]) -> Sheet:
    """One row for each TP and each reason or fitting, with the formats it holds for; the legal ones first."""
    rows: list[tuple[Cell, ...]] = []
    for tp in tps:
        alike: dict[tuple[str | None, str | None], list[str]] = {}
        for form in FORMATS.values():
            reason = shape.illegal(tp, form)
            alike.setdefault((reason, None if reason else _fitted(shape, tp, form, target)), []).append(form.name)
        for (reason, fitted), names in sorted(alike.items(), key=lambda item: item[0][0] is not None):
            rows.append((tp, shape.inter_at(tp), "no" if reason else "yes", ", ".join(names), reason, fitted))
    notes = [f"{shape.name} is served in {', '.join(shape.formats)}."]
    columns = ("tp", "inter_dim", "legal", "formats", "why_not", "off_128")
    if not any(row[-1] for row in rows):
        return Sheet("Formats", columns, tuple(rows), tuple(notes), hidden=columns[-1:])
    return Sheet("Formats", columns, tuple(rows), (*notes, _FITTING))


def _fitted(shape: Shape, tp: int, form: Format, target: Target) -> str | None:
    """Return what the GPU kernels do with dimensions that are no multiple of 128, or None where all are one."""
    odd = [extent for extent in dict.fromkeys((shape.model_dim, shape.inter_at(tp))) if extent % 128]
    if not odd:
        return None
    if any(extent % 32 for extent in odd):
        return "no GPU kernel"
    if not _tiled(shape, tp, form, target):
        return "no tile divides"
    if form.weights.bits > 4:
        return "masked"
    if form.activations.dtype == "int8":
        return f"steps of {form.weights.group}"
    return "padded: " + ", ".join(f"{extent} to {padded(extent)}" for extent in odd)


def _tiled(shape: Shape, tp: int, form: Format, target: Target) -> bool:
    """Return whether the format's kernel finds a config; True also on a target that it does not serve."""
    kernel, problem = load_kernel(form.name), Problem(shape, tp, form.name, form.name, min(shape.tokens))
    try:
        return kernel.unserved(target) is not None or all(kernel.default(s, problem, target) for s in kernel.stages)
    except KernelError:
        return False


def _floors(shape: Shape, target: Target, tps: Sequence[int], tokens: Sequence[int]) -> Sheet:
    counted = ("active_experts", "rows_per_active_expert", "bytes", "operations", "floor_us")
    rows: list[tuple[Cell, ...]] = []
    unstated: set[str] = set()
    for tp in tps:
        legal = [FORMATS[name] for name in shape.formats if shape.illegal(tp, FORMATS[name]) is None]
        for form in legal:
            for count in tokens:
                problem = Problem(shape, tp, form.name, form.name, count)
                active = expected_active_experts(shape.experts, shape.topk, count)
                stages = [stage_traffic(form, stage, problem, active, problem.rows) for stage in (1, 2)]
                floor = floor_us(stages, target)
                if floor is None:
                    unstated.add(f"{form.rate} peak" if target.bandwidth else "bandwidth")
                moved, computed = sum(s.bytes for s in stages), sum(s.operations for s in stages)
                rows.append((tp, form.name, count, active, problem.rows / active, moved, computed, floor))
    notes = [
        "Uniform routing: experts x (1 - (1 - topk/experts)^tokens) are active on average.",
        "Floor: the longer of bytes / bandwidth and operations / peak, summed over the stages; "
        "the sort and the combine are not counted.",
        f"Rates of {target.name}: {target.source}.",
    ]
    if unstated:
        notes.append(f"floor -: target {target.name} states no {' and no '.join(sorted(unstated))}.")
    columns = ("tp", "format", "tokens", *counted)
    return Sheet(f"Floor on {target.name} ({target.arch})", columns, tuple(rows), tuple(notes))
