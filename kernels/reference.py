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


def sorted_slots(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return the slots sorted stably by expert, int64 [rows], and the rows of each expert, int64 [experts].

    ids are integers [tokens, topk] below `experts`, slot t x topk + k being [t, k]; a negative one is elsewhere,
    whose slots come last and count for nobody. Raises ValueError on a larger id; waits for the device.
    """
    key = torch.where(ids < 0, experts, ids).flatten()
    if ids.numel() and int(ids.max()) >= experts:
        raise ValueError(f"expert id {int(ids.max())} in ids is none of the {experts} experts here")
    return torch.argsort(key, stable=True), torch.bincount(key, minlength=experts + 1)[:experts]


def stage1(
    x: Tensor,
    weight: Weight,
    ids: Tensor,
    order: Tensor,
    problem: Problem,
    router: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the activated intermediate, fp32 [rows, inter_dim], its rows sorted by expert; zeros beyond the last.

    x is fp32 [tokens, model_dim], ids integers [tokens, topk] (negative: an expert elsewhere), order int64 [rows] as
    `sorted_slots` gives it. weight returns fp32 [gates x inter_dim, model_dim], gate rows first, or gate and up rows
    in turns where the shape is interleaved; bias, fp32 [experts, gates x inter_dim], lies alike and is added before
    the activation. router, fp32 [tokens, topk], multiplies x where the shape says so; without it that is a ValueError.
    """
    shape = problem.shape
    if router is None and problem.shape.router_on_input:
        raise ValueError(f"stage 1 of {shape.name} needs router: its weights multiply the input")
    h = x.new_zeros(problem.rows, problem.inter_dim)
    with _full_precision():
        for expert, start, stop in _spans(ids, problem):
            slots = order[start:stop]
            rows = x[slots // problem.topk]
            if router is not None and problem.shape.router_on_input:
                rows *= router.flatten()[slots].unsqueeze(1)
            y = rows @ weight(expert).T
            if bias is not None:
                y += bias[expert]
            if shape.gated and shape.interleaved:
                y = torch.cat([y[:, ::2], y[:, 1::2]], dim=1)
            h[start:stop] = activate(y, shape)
    return h


def stage2(
    h: Tensor,
    weight: Weight,
    ids: Tensor,
    order: Tensor,
    router: Tensor,
    problem: Problem,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the weighted outputs, fp32 [tokens x topk, model_dim]; row t x topk + k is slot k of token t.

    h is fp32 [rows, inter_dim] sorted by expert, router fp32 [tokens, topk]; weight returns fp32
    [model_dim, inter_dim]; bias, fp32 [experts, model_dim], is added before the router weight. ids and order are those
    of `stage1`. Slots of experts elsewhere are zero. Where the router weights multiply the input, they do not here.
    """
    y = h.new_zeros(problem.rows, problem.model_dim)
    share = router.flatten().unsqueeze(1)
    with _full_precision():
        for expert, start, stop in _spans(ids, problem):
            slots = order[start:stop]
            out = h[start:stop] @ weight(expert).T
            if bias is not None:
                out += bias[expert]
            y[slots] = out if problem.shape.router_on_input else out * share[slots]
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
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
) -> Tensor:
    """Return the layer, fp32 [tokens, model_dim]; `requantise` rounds the intermediate as kernels do.

    A token with no expert here is zero.
    """
    h = stage1(x, weight1, ids, order, problem, router, bias1)
    if requantise is not None:
        h = requantise(h)
    return combine(stage2(h, weight2, ids, order, router, problem, bias2), problem)


def _spans(ids: Tensor, problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Yield each expert that has rows, and where they start and stop once sorted; synchronises once."""
    start = 0
    for expert, count in enumerate(torch.bincount(ids[ids >= 0], minlength=problem.experts).tolist()):
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
