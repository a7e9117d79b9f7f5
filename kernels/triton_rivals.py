"""Other ways to compute the layer of a grouped Triton kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .triton_base import GroupedOperands


def grouped_mm(operands: GroupedOperands) -> None:
    """Compute the layer by torch's own grouped matmul on bf16 operands whose slots are sorted, into `operands.output`.

    It computes gated silu without limit or biases, gate rows before up rows, every expert on this rank: gather x,
    multiply by w1, activate, multiply by w2, weight, scatter to the slots, sum over each token's. Nothing waits for
    the device where torch has a grouped kernel (CUDA, compute capability 9 and 10; elsewhere it loops over the
    experts on the host, which no graph can capture). x is gathered into y and the activation goes to h; torch
    allocates the two products, for `_grouped_mm` of 2.11 to 2.13 takes no output.
    """
    problem, t = operands.problem, operands.tensors
    slot = t["order"].long()
    ends = t["offsets"][1:]
    rows = torch.index_select(t["x"], 0, slot // problem.topk, out=t["y"])
    gate, up = torch._grouped_mm(rows, t["w1"].mT, offs=ends).chunk(2, dim=1)
    torch.mul(torch.nn.functional.silu(gate, inplace=True), up, out=t["h"])
    product = torch._grouped_mm(t["h"], t["w2"].mT, offs=ends)
    product *= t["router"].flatten()[slot].unsqueeze(1)
    t["y"].index_copy_(0, slot, product)
    torch.sum(t["y"].view(problem.tokens, problem.topk, problem.model_dim), 1, out=operands.output)
