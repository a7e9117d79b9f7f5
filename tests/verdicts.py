"""Verdicts for tests: a tuned row of the demo on one kernel, with whatever a test changes."""

from __future__ import annotations

from typing import Any

from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.model.trial import Accuracy
from moetune.model.verdict import Decision, Verdict

SHAPE = Shape(
    name="demo", model_dim=256, inter_dim=128, experts=8, topk=2, act="silu", gated=True,
    formats=("bf16", "a8w4"), tp=(1, 2), tokens=(1, 16, 128),
)  # fmt: skip
MACHINE: dict[str, Any] = {
    "product": "NVIDIA H200", "arch": "sm_90", "cu_num": 132, "driver": "570.86", "torch": "2.11.0",
    "triton": "3.6.0", "python": "3.12.3", "moetune": "0.1.0",
}  # fmt: skip
CPU_MACHINE: dict[str, Any] = {
    "product": "cpu", "arch": "cpu", "cu_num": 4, "driver": "", "torch": "2.11.0", "triton": "",
    "python": "3.12.3", "moetune": "0.1.0",
}  # fmt: skip
DEFAULT = Config.of(tile_m=16, tile_n=64, tile_k=64, num_buffers=3, prefetch=1, num_warps=4, group_m=1)
BEST1 = Config.of(tile_m=16, tile_n=128, tile_k=128, num_buffers=4, prefetch=0, num_warps=8, group_m=1)
BEST2 = Config.of(tile_m=32, tile_n=64, tile_k=128, num_buffers=2, prefetch=1, num_warps=4, group_m=4)


def problem(tokens: int = 16, tp: int = 1, kernel: str = "bf16", routing: str = "uniform") -> Problem:
    """Return a problem of the demo shape."""
    return Problem(SHAPE, tp, kernel, "a8w4" if kernel == "a8w4" else "bf16", tokens, Routing.parse(routing))


def verdict(
    tokens: int = 16, tp: int = 1, kernel: str = "bf16", routing: str = "uniform",
    facts: dict[str, Any] | None = None, **changes: Any,
) -> Verdict:  # fmt: skip
    """Return a tuned verdict: 80 us against the default's 100; `facts` and `changes` override its fields."""
    posed = problem(tokens, tp, kernel, routing)
    fields: dict[str, Any] = {
        "problem": posed.key, "decision": Decision.TUNED, "facts": posed.facts() | (facts or {}),
        "config1": BEST1, "config2": BEST2, "default1": DEFAULT, "default2": DEFAULT,
        "us": 80.0, "spread_us": 0.5, "samples": 101, "default_us": 100.0, "default_spread_us": 0.6,
        "fixed_default_us": 110.0, "stage_us": (42.0, 33.0), "default_stage_us": (52.0, 42.0),
        "quantise_us": 2.5 if kernel == "a8w4" else None, "floor_us": 40.0, "padded_floor_us": 50.0,
        "operations": 6 * posed.rows * posed.model_dim * posed.inter_dim, "bytes": 1_600_000,
        "accuracy": Accuracy(2.5e-3, 4.0e-3, 1e-3, posed.tokens * posed.model_dim, 0),
        "limits": {"rel_l2": 6e-3, "worst_row": 2.4e-2, "rel_l2_default": 5e-3}, "active_experts": 8,
        "tied": 2, "pool": {"stage1": 400, "stage2": 380}, "excluded": {"shared_memory": 90, "tile_k": 12},
        "seconds": {"compile": 20.0, "check": 4.0, "screen": 6.0, "finals": 3.0},
        "machine": dict(CPU_MACHINE if kernel == "cpu" else MACHINE), "identity": f"id-{posed.key}",
        "command": f"moetune sweep demo --tp {tp} --tokens {tokens} --kernel {kernel} --routing {routing}",
        "finished": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    return Verdict(**{**fields, **changes})


def tie(tokens: int = 16, **changes: Any) -> Verdict:
    """Return a tie: the default's config and time stand."""
    kept: dict[str, Any] = {
        "decision": Decision.TIE, "config1": DEFAULT, "config2": DEFAULT, "us": 100.0, "spread_us": 0.6,
        "stage_us": (52.0, 42.0),
    }  # fmt: skip
    return verdict(tokens, **{**kept, **changes})


def failed(tokens: int = 16, **changes: Any) -> Verdict:
    """Return a verdict on a problem whose default is itself wrong: no configs, no times, no row."""
    posed = verdict(tokens, **changes)
    return Verdict(
        posed.problem, Decision.FAILED, posed.facts, reason="the default's rel_l2 0.31 exceeds the cap 0.006",
        machine=posed.machine, identity=posed.identity, command=posed.command, finished=posed.finished,
    )  # fmt: skip
