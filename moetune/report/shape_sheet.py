"""What `moetune shapes` shows: the shapes at hand, or one shape's legal formats and floors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moetune.model.floor import floor_us
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.model.traffic import expected_active_experts, stage_traffic
from moetune.report.sheet import Cell, Sheet

_FACTS = (
    "shape", "model_dim", "inter_dim", "experts", "topk", "act", "shared", "moe_layers", "formats", "tp"
)  # fmt: skip


def list_sheet(shapes: Iterable[Shape]) -> Sheet:
    """Return one row a shape: sizes at TP1, activation, formats and tensor parallel degrees."""
    rows: list[tuple[Cell, ...]] = []
    for s in shapes:
        sizes = (s.name, s.model_dim, s.inter_dim, s.experts, s.topk, s.act, s.shared_experts, s.moe_layers)
        rows.append((*sizes, ", ".join(s.formats), ",".join(map(str, s.tp))))
    return Sheet("Shapes", _FACTS, tuple(rows))


def shape_sheets(shape: Shape, target: Target, tps: Sequence[int], tokens: Sequence[int]) -> list[Sheet]:
    """Return a shape's facts, its legal formats at each TP, and each bucket's floor on a target."""
    return [list_sheet([shape]), _formats(shape, tps), _floors(shape, target, tps, tokens)]


def _formats(shape: Shape, tps: Sequence[int]) -> Sheet:
    """One row for each TP and each reason, with the formats it holds for."""
    rows: list[tuple[Cell, ...]] = []
    for tp in tps:
        reasons: dict[str | None, list[str]] = {None: []}
        for form in FORMATS.values():
            reasons.setdefault(shape.illegal(tp, form), []).append(form.name)
        for reason, names in reasons.items():
            if names:
                said = "yes" if reason is None else "no"
                rows.append((tp, shape.inter_at(tp), said, ", ".join(names), reason))
    served = f"{shape.name} is served in {', '.join(shape.formats)}."
    return Sheet("Formats", ("tp", "inter_dim", "legal", "formats", "why_not"), tuple(rows), (served,))


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
                stages = [stage_traffic(form, stage, problem, active) for stage in (1, 2)]
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
