"""The bf16 grouped kernel in Triton: bf16 products, fp32 sums and SwiGLU, bf16 intermediate."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from moetune.model.config import Config
from moetune.model.problem import Problem

from . import triton_core as core
from .grouped import tile_capacity
from .reference import Weight
from .triton_base import Call, GroupedOperands, GroupedTriton, Slot, launch_options


@triton.jit
def multiply(left, right, total, WIDEN: tl.constexpr):
    """Add left x right to the total; the interpreter (WIDEN) multiplies bf16 as bit patterns, so it gets fp32."""
    if WIDEN:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total)


@triton.jit
def product(
    a,
    live,
    w,
    k,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Return A x W^T as fp32 [TILE_M, TILE_N], from pointers to the first K step and a mask [TILE_M, 1] of A.

    PREFETCH 0 streams both operands through a ring of BUFFERS tiles in shared memory. PREFETCH 1 leaves the
    ring to W: the A tile of the next step is loaded into registers while this step's is multiplied.
    """
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    if PREFETCH:
        left = tl.load(a, mask=live, other=0.0)
        for step in tl.range(TILE_K, k + TILE_K, TILE_K, num_stages=BUFFERS):
            a += TILE_K
            following = tl.load(a, mask=live & (tl.full((1, 1), step, tl.int32) < k), other=0.0)
            right = tl.load(w)
            total = multiply(left, right, total, WIDEN)
            left = following
            w += TILE_K
    else:
        for _ in tl.range(0, k, TILE_K, num_stages=BUFFERS):
            left = tl.load(a, mask=live, other=0.0)
            right = tl.load(w)
            total = multiply(left, right, total, WIDEN)
            a += TILE_K
            w += TILE_K
    return total


@triton.jit(do_not_specialize=["topk", "tiles_m", "group_m"])
def stage1(
    x,
    w,
    h,
    order,
    tiles,
    inter,
    k,
    topk,
    tiles_m,
    group_m,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write h bf16 [rows, inter], rows sorted by expert: silu(x Wgate^T) x (x Wup^T).

    x bf16 [tokens, k], w bf16 [experts, 2 x inter, k] (gate rows, then up rows), order int32 [rows] the slot of
    each sorted row. TILE_N counts weight rows, gate and up interleaved, so that one product yields both.
    """
    HALF: tl.constexpr = TILE_N // 2
    expert, first, end, tile_n = core.locate(tiles, tiles_m, inter // HALF, group_m)
    if first == end:
        return
    row = first + tl.arange(0, TILE_M)
    live = (row < end)[:, None]
    step = tl.arange(0, TILE_K)
    token = tl.load(order + row, mask=row < end, other=0) // topk
    a = x + token.to(tl.int64)[:, None] * k + step[None, :]
    column = tl.arange(0, TILE_N)
    line = tile_n * HALF + column // 2 + (column % 2) * inter
    weights = w + expert.to(tl.int64) * 2 * inter * k + line.to(tl.int64)[None, :] * k + step[:, None]
    total = product(a, live, weights, k, TILE_M, TILE_N, TILE_K, BUFFERS, PREFETCH, WIDEN)
    gate, up = tl.split(tl.reshape(total, (TILE_M, HALF, 2)))
    target = tile_n * HALF + tl.arange(0, HALF)
    tl.store(
        h + row.to(tl.int64)[:, None] * inter + target[None, :], core.to_bf16(core.silu(gate) * up, WIDEN), mask=live
    )


@triton.jit(do_not_specialize=["tiles_m", "group_m"])
def stage2(
    h,
    w,
    y,
    order,
    router,
    tiles,
    n,
    k,
    tiles_m,
    group_m,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write y bf16 [slots, n], each slot once: router x (h W^T).

    h bf16 [rows, k] sorted by expert, w bf16 [experts, n, k], router fp32 [slots], order int32 [rows] the slot
    of each sorted row.
    """
    expert, first, end, tile_n = core.locate(tiles, tiles_m, n // TILE_N, group_m)
    if first == end:
        return
    row = first + tl.arange(0, TILE_M)
    live = (row < end)[:, None]
    step = tl.arange(0, TILE_K)
    a = h + row.to(tl.int64)[:, None] * k + step[None, :]
    column = tile_n * TILE_N + tl.arange(0, TILE_N)
    weights = w + expert.to(tl.int64) * n * k + column.to(tl.int64)[None, :] * k + step[:, None]
    total = product(a, live, weights, k, TILE_M, TILE_N, TILE_K, BUFFERS, PREFETCH, WIDEN)
    slot = tl.load(order + row, mask=row < end, other=0)
    share = tl.load(router + slot, mask=row < end, other=0.0)
    tl.store(
        y + slot.to(tl.int64)[:, None] * n + column[None, :], core.to_bf16(total * share[:, None], WIDEN), mask=live
    )


class Bf16(GroupedTriton):
    """bf16 activations and weights; the intermediate is stored in bf16."""

    weights = ("w1", "w2")

    def layout(self, problem: Problem) -> dict[str, Slot]:
        """Return the tensors of a problem."""
        d, inter, experts, bf16 = problem.model_dim, problem.inter_dim, problem.experts, torch.bfloat16
        return super().layout(problem) | {
            "x": Slot((problem.tokens, d), bf16),
            "w1": Slot((experts, 2 * inter, d), bf16),
            "w2": Slot((experts, d, inter), bf16),
            "h": Slot((problem.rows, inter), bf16, True),
        }

    def draw(self, tensors: dict[str, Tensor], names: set[str], generator: torch.Generator) -> None:
        """Draw x from N(0, 1) and the weights from N(0, 0.02), an expert at a time."""
        tensors["x"].normal_(generator=generator)
        for name in sorted(names.intersection(self.weights)):
            for expert in tensors[name]:
                expert.normal_(std=0.02, generator=generator)

    def call(self, stage: int, config: Config, problem: Problem, tensors: dict[str, Any]) -> Call:
        """Return the launch of a stage."""
        t, capacity = tensors, tile_capacity(problem, config["tile_m"])
        tiles, group_m = t[f"tiles{config['tile_m']}"], config["group_m"]
        d, inter = problem.model_dim, problem.inter_dim
        grid = (capacity * (problem.n(stage) // config["tile_n"]),)
        options = launch_options(config)
        if stage == 1:
            inputs = (t["x"], t["w1"], t["h"], t["order"], tiles, inter, d, problem.topk, capacity, group_m)
            return Call(stage1, grid, inputs, options)
        inputs = (t["h"], t["w2"], t["y"], t["order"], t["router"], tiles, d, inter, capacity, group_m)
        return Call(stage2, grid, inputs, options)

    def oracle(self, operands: GroupedOperands) -> tuple[Tensor, Weight, Weight]:
        """Return x and the weights in fp32."""
        t = operands.tensors
        return t["x"].float(), lambda expert: t["w1"][expert].float(), lambda expert: t["w2"][expert].float()

    def round_trip(self, h: Tensor) -> Tensor:
        """Round to bf16."""
        return h.bfloat16().float()
