"""The a8w4 grouped kernel in Triton: MXFP8 activations, MXFP4 weights, fp32 sums, MXFP8 intermediate."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from moetune.model.config import Config
from moetune.model.problem import Problem

from . import formats
from . import triton_mx as mx
from .grouped import tile_capacity
from .reference import Weight
from .triton_base import FIXED, INTERPRETED, Call, GroupedOperands, GroupedTriton, Slot, launch_options

_QUANTISE_BLOCK = 2048


class A8w4(GroupedTriton):
    """MXFP8 activations, quantised from bf16 on the device; MXFP4 weights; the intermediate in MXFP8."""

    weights = ("w1", "s1", "w2", "s2")

    def layout(self, problem: Problem) -> dict[str, Slot]:
        """Return the tensors of a problem."""
        d, inter, experts, tokens, rows = (
            problem.model_dim, problem.inter_dim, problem.experts, problem.tokens, problem.rows
        )  # fmt: skip
        byte, e4m3 = torch.uint8, torch.float8_e4m3fn
        return super().layout(problem) | {
            "x": Slot((tokens, d), torch.bfloat16),
            "codes": Slot((tokens, d), e4m3),
            "scales": Slot((tokens, d // 32), byte),
            "w1": Slot((experts, 2 * inter, d // 2), byte),
            "s1": Slot((experts, 2 * inter, d // 32), byte),
            "w2": Slot((experts, d, inter // 2), byte),
            "s2": Slot((experts, d, inter // 32), byte),
            "h": Slot((rows, inter), e4m3, True),
            "h_scales": Slot((rows, inter // 32), byte, True),
        }

    def draw(self, tensors: dict[str, Tensor], names: set[str], generator: torch.Generator) -> None:
        """Draw x from N(0, 1) in bf16, and MXFP4 weights as N(0, 0.02) would give."""
        tensors["x"].normal_(generator=generator)
        for weight, scale in (("w1", "s1"), ("w2", "s2")):
            if weight in names:
                experts, n, packed = tensors[weight].shape
                out = (tensors[weight], tensors[scale])
                formats.draw_mxfp4((experts, n, packed * 2), generator, generator.device, out)

    def extras(self, problem: Problem, tensors: dict[str, Any]) -> list[Call]:
        """Return the launches beside the stages."""
        return [*super().extras(problem, tensors), self._quantise(problem, tensors)]

    def quantise(self, operands: GroupedOperands) -> bool:
        """Quantise x to MXFP8."""
        self._quantise(operands.problem, operands.tensors).launch()
        return True

    def call(self, stage: int, config: Config, problem: Problem, tensors: dict[str, Any]) -> Call:
        """Return the launch of a stage."""
        t, capacity = tensors, tile_capacity(problem, config["tile_m"])
        tiles, group_m = t[f"tiles{config['tile_m']}"], config["group_m"]
        d, inter = problem.model_dim, problem.inter_dim
        grid = (capacity * (problem.n(stage) // config["tile_n"]),)
        options = launch_options(config)
        if stage == 1:
            inputs = (t["codes"], t["scales"], t["w1"], t["s1"], t["h"], t["h_scales"], t["order"], tiles)
            sizes = (inter, inter // 32, d, d // 2, d // 32, problem.topk, capacity, group_m)
            return Call(mx.stage1, grid, inputs + sizes, options)
        inputs = (t["h"], t["h_scales"], t["w2"], t["s2"], t["y"], t["order"], t["router"], tiles)
        sizes2 = (d, inter, inter // 2, inter // 32, capacity, group_m)
        return Call(mx.stage2, grid, inputs + sizes2, options)

    def written(self, stage: int) -> tuple[str, ...]:
        """Return the names of the tensors that a stage writes."""
        return ("h", "h_scales") if stage == 1 else super().written(stage)

    def decode(self, stage: int, operands: GroupedOperands) -> Tensor:
        """Return a stage's output as fp32; stage 1's is dequantised."""
        if stage == 1:
            return formats.dequantise_mxfp8(operands.tensors["h"], operands.tensors["h_scales"])
        return super().decode(stage, operands)

    def oracle(self, operands: GroupedOperands) -> tuple[Tensor, Weight, Weight]:
        """Return x and the weights, dequantised."""
        t = operands.tensors
        return (
            formats.dequantise_mxfp8(t["codes"], t["scales"]),
            lambda expert: formats.dequantise_mxfp4(t["w1"][expert], t["s1"][expert]),
            lambda expert: formats.dequantise_mxfp4(t["w2"][expert], t["s2"][expert]),
        )

    def round_trip(self, h: Tensor) -> Tensor:
        """Quantise to MXFP8 and back."""
        return formats.dequantise_mxfp8(*formats.quantise_mxfp8(h))

    def _quantise(self, problem: Problem, t: dict[str, Any]) -> Call:
        elements = problem.tokens * problem.model_dim
        options = {"BLOCK": _QUANTISE_BLOCK, "WIDEN": INTERPRETED, **FIXED}
        inputs = (t["x"], t["codes"], t["scales"], elements // 32)
        return Call(mx.quantise, (triton.cdiv(elements, _QUANTISE_BLOCK),), inputs, options)
