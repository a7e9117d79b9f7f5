"""One flat row a verdict: what every sheet of a report is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from moetune.errors import KernelError
from moetune.kernel import load_kernel
from moetune.model.verdict import Decision, Verdict
from moetune.report.sheet import Cell

Row = dict[str, Cell]
WHERE = ("product", "kernel", "shape", "tp", "ep", "routing")
"""The columns that say which problems a row speaks for, in the order in which rows are sorted."""


def row_of(verdict: Verdict, marks: Sequence[str] = ()) -> Row:
    """Return a verdict as plain cells; times, ratios and shares are None for a failed one.

    `speed_up` is default / tuned, and 1 where the default's config is kept. `fixed_speed_up` is against the
    default's rule at 64 tokens. `floor_share` is the floor over the time of the two stages alone.
    """
    facts = verdict.facts
    row: Row = {
        "product": verdict.machine.get("product", "an unknown machine"),
        "kernel": facts["kernel"],
        "shape": facts["shape"],
        "tp": facts["tp"],
        "ep": facts["ep"],
        "routing": facts["routing"],
        "tokens": facts["tokens"],
    }
    failed = verdict.decision is Decision.FAILED
    kept = verdict.decision in (Decision.TIE, Decision.DEFAULT)
    stages_us = sum(verdict.stage_us) or None
    return row | {
        "tuned_us": None if failed else verdict.us,
        "tuned_spread_us": None if failed else verdict.spread_us,
        "default_us": None if failed else verdict.default_us,
        "default_spread_us": None if failed else verdict.default_spread_us,
        "speed_up": 1.0 if kept else ratio(verdict.default_us, verdict.us),
        "verdict": str(verdict.decision),
        "floor_share": ratio(verdict.floor_us, stages_us),
        "padded_floor_share": ratio(verdict.padded_floor_us, stages_us),
        "tied": None if failed else verdict.tied,
        "fixed_default_us": verdict.fixed_default_us,
        "fixed_speed_up": ratio(verdict.fixed_default_us, verdict.us),
        "stages_us": stages_us,
        "quantise_us": verdict.quantise_us,
        "floor_us": verdict.floor_us,
        "padded_floor_us": verdict.padded_floor_us,
        "config1": None if verdict.config1 is None else str(verdict.config1),
        "config2": None if verdict.config2 is None else str(verdict.config2),
        "samples": None if failed else verdict.samples,
        "marks": ", ".join(marks) or None,
    }


def ratio(over: float | None, under: float | None) -> float | None:
    """Return over / under, or None where either is missing or zero."""
    return over / under if over and under else None


def order(row: Mapping[str, Cell]) -> tuple[str | int, ...]:
    """Return the key that sorts rows: machine, kernel, shape, TP, EP, routing, tokens."""
    tp, ep, tokens = row.get("tp"), row.get("ep"), row.get("tokens")
    return (
        str(row.get("product")), str(row.get("kernel")), str(row.get("shape")), int(tp or 0), int(ep or 0),
        str(row.get("routing")), int(tokens or 0),
    )  # fmt: skip


def shared(rows: Iterable[Mapping[str, Cell]], columns: Sequence[str]) -> dict[str, Cell]:
    """Return those of the columns that hold one value over all rows, with that value."""
    rows = list(rows)
    values = {column: {row.get(column) for row in rows} for column in columns}
    return {column: found.pop() for column, found in values.items() if len(found) == 1}


def title_of(what: str, told: Mapping[str, Cell]) -> str:
    """Return a title that tells the shared columns, e.g. ``Speed-up: bf16, demo, TP 1, NVIDIA H200``."""
    parts = [str(told[column]) for column in ("kernel", "shape") if column in told]
    parts += [f"TP {told['tp']}"] if "tp" in told else []
    parts += [f"EP {told['ep']}"] if told.get("ep", 1) != 1 else []
    parts += [f"{told['routing']} routing"] if "routing" in told else []
    parts += [str(told["product"])] if "product" in told else []
    return f"{what}: {', '.join(parts)}" if parts else what


@cache
def source_hash(kernel: str) -> str | None:
    """Return the hash of an installed kernel's source, or None where it is not installed."""
    try:
        return load_kernel(kernel).source_hash()
    except KernelError:
        return None
