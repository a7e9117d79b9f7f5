"""What one stage of a problem must move and compute."""

from __future__ import annotations

from collections.abc import Sequence

from moetune.model.floor import Traffic
from moetune.model.format import Format
from moetune.model.problem import Problem

_OUTPUT_BYTES = 2  # the routed output is bf16 in every format


def expected_active_experts(experts: int, topk: int, tokens: int) -> float:
    """Return how many experts get a row on average under uniform routing.

    A token misses an expert with probability 1 - topk/experts, and tokens choose independently, so that
    experts x (1 - (1 - topk/experts)^tokens) are reached.
    """
    return experts * (1.0 - (1.0 - topk / experts) ** tokens)


def weight_bytes(form: Format, rows: int, k: int) -> int:
    """Return the stored bytes of one expert's [rows, k] weight, scales (one for `form.tile` rows) and zero points."""
    w = form.weights
    columns = 0 if w.group == 0 else 1 if w.group < 0 else -(-k // w.group)
    return (rows * k * w.bits + -(-rows // form.tile) * columns * (w.scale_bits + w.zero_bits)) // 8


def drawn_traffic(form: Format, stage: int, problem: Problem, rows_per_expert: Sequence[int]) -> Traffic:
    """Return the bytes and operations of stage 1 or 2 for the rows that each expert of this rank was sent."""
    return stage_traffic(form, stage, problem, sum(1 for rows in rows_per_expert if rows), sum(rows_per_expert))


def stage_traffic(form: Format, stage: int, problem: Problem, active_experts: float, routed_rows: float) -> Traffic:
    """Return the bytes and operations of stage 1 or 2 when `active_experts` of this rank have `routed_rows` in all.

    Stage 1 reads the active experts' gate and up weights and x once, and writes the intermediate; stage 2
    reads the down weights and the intermediate, and writes the routed output in bf16. All at stored width,
    scales and zero points included; biases, the sort and the combine are not counted. Operations are
    2 x rows x n x k. Of several ranks, the tokens are those that one has a row of on average.
    """
    rows = round(routed_rows)
    tokens = min(round(problem.expected_tokens), rows)
    if stage == 1:
        weights = problem.gates * weight_bytes(form, problem.inter_dim, problem.model_dim)
        moved = form.activations.bytes(tokens, problem.model_dim)
    else:
        weights = weight_bytes(form, problem.model_dim, problem.inter_dim)
        moved = rows * problem.model_dim * _OUTPUT_BYTES
    moved += form.activations.bytes(rows, problem.inter_dim)
    return Traffic(
        bytes=round(active_experts * weights) + moved,
        operations=2 * rows * problem.n(stage) * problem.k(stage),
        rate=form.rate,
    )
