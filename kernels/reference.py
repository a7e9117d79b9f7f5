"""The fp32 oracle of the grouped MoE layer, one expert's weights at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from moetune.model.problem import Problem
from moetune.model.shape import Shape

Weight = Callable[[int], Tensor]
"""Returns one expert's weights, fp32 [N, K]."""


def activate(y: Tensor, shape: Shape) -> Tensor:
    """Apply the shape's activation to fp32 [rows, N]: gate columns first, then up columns where it is gated.

    silu is gate x sigmoid(gate), swiglu gate x sigmoid(alpha x gate), relu2 relu(gate)^2; a gated activation
    multiplies by up, swiglu by up + beta. A positive `limit` clamps, before silu or swiglu, the gate from
    above and up from both sides.
    """
    gate, up = y.chunk(2, dim=1) if shape.gated else (y, None)
    glu = shape.act in ("silu", "swiglu")
    if glu and shape.limit > 0:
        gate = gate.clamp(max=shape.limit)
        up = up.clamp(-shape.limit, shape.limit) if up is not None else None
    if glu:
        out = gate * torch.sigmoid(gate * (shape.alpha if shape.act == "swiglu" else 1.0))
    elif shape.act == "gelu_tanh":
        out = functional.gelu(gate, approximate="tanh")
    elif shape.act == "relu2":
        out = functional.relu(gate).square()
    else:
        raise ValueError(f"the reference has no activation {shape.act!r}")
    if up is None:
        return out
    return out * (up + shape.beta if shape.act == "swiglu" else up)


def stage1(x: Tensor, weight: Weight, ids: Tensor, order: Tensor, problem: Problem) -> Tensor:
    """Return the activated intermediate, fp32 [rows, inter_dim], its rows sorted by expert.

    x is fp32 [tokens, model_dim], ids int32 [tokens, topk], order int64 [rows] the stable argsort of the
    flattened ids; weight returns fp32 [gates x inter_dim, model_dim], gate rows first.
    """
    h = x.new_empty(problem.rows, problem.inter_dim)
    with _full_precision():
        for expert, start, stop in _spans(ids, problem):
            rows = x[order[start:stop] // problem.topk]
            h[start:stop] = activate(rows @ weight(expert).T, problem.shape)
    return h


def stage2(h: Tensor, weight: Weight, ids: Tensor, order: Tensor, router: Tensor, problem: Problem) -> Tensor:
    """Return the weighted outputs, fp32 [tokens x topk, model_dim]; row t x topk + k is slot k of token t.

    h is fp32 [rows, inter_dim] sorted by expert, router fp32 [tokens, topk]; weight returns fp32
    [model_dim, inter_dim]. ids and order are those of `stage1`.
    """
    y = h.new_empty(problem.rows, problem.model_dim)
    share = router.flatten().unsqueeze(1)
    with _full_precision():
        for expert, start, stop in _spans(ids, problem):
            slots = order[start:stop]
            y[slots] = (h[start:stop] @ weight(expert).T) * share[slots]
    return y


def combine(y: Tensor, problem: Problem) -> Tensor:
    """Sum fp32 [tokens x topk, model_dim] over each token's slots, first to last: [tokens, model_dim]."""
    slots = y.view(problem.tokens, problem.topk, problem.model_dim)
    out = slots[:, 0].clone()
    for k in range(1, problem.topk):
        out += slots[:, k]
    return out


def layer(
    x: Tensor,
    weight1: Weight,
    weight2: Weight,
    ids: Tensor,
    order: Tensor,
    router: Tensor,
    problem: Problem,
    requantise: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the layer, fp32 [tokens, model_dim]; `requantise` rounds the intermediate as kernels do."""
    h = stage1(x, weight1, ids, order, problem)
    if requantise is not None:
        h = requantise(h)
    return combine(stage2(h, weight2, ids, order, router, problem), problem)


def _spans(ids: Tensor, problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Yield each expert that has rows, and where they start and stop once sorted; synchronises once."""
    start = 0
    for expert, count in enumerate(torch.bincount(ids.flatten(), minlength=problem.experts).tolist()):
        if count:
            yield expert, start, start + count
            start += count


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply fp32 in fp32: no tf32, no bf16 passes."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
