"""How rows of activations lie in memory for the Triton kernels: x, and the intermediate that stage 1 leaves."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from moetune.model.config import Config
from moetune.model.problem import Problem

from . import formats
from . import triton_quantise as quantise
from .triton_launch import INTERPRETED, Call, Slot

Tensors = dict[str, Any]


class Rows(Protocol):
    """The format of x and of the intermediate h, sorted by expert."""

    def slots(self, problem: Problem) -> dict[str, Slot]:
        """Return the tensors of x and h."""

    def source(self, stage: int, tensors: Tensors) -> tuple[Any, Any]:
        """Return what a stage multiplies, and its scales."""

    def target(self, config: Config, problem: Problem, tensors: Tensors) -> tuple[str, Any, Any]:
        """Return how stage 1 stores (as `triton_stages` names it), where, and where its scales go."""

    def passes(self, config: Config, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return the launches after stage 1 that quantise what it stored."""

    def quantise(self, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return the launches that quantise x."""

    def written(self) -> tuple[str, ...]:
        """Return the names of the tensors that stage 1 leaves."""

    def x(self, tensors: Tensors) -> Tensor:
        """Return x in fp32, as stage 1 sees it."""

    def h(self, tensors: Tensors) -> Tensor:
        """Return h in fp32, as stage 2 sees it."""

    def round_trip(self, h: Tensor) -> Tensor:
        """Return an fp32 intermediate as stage 1 stores it."""


class Bf16Rows:
    """x and h in bf16."""

    def slots(self, problem: Problem) -> dict[str, Slot]:
        """Return x and h."""
        return {
            "x": Slot((problem.tokens, problem.model_dim), torch.bfloat16),
            "h": Slot((problem.rows, problem.inter_dim), torch.bfloat16, True),
        }

    def source(self, stage: int, tensors: Tensors) -> tuple[Any, Any]:
        """Return x or h."""
        return tensors["x" if stage == 1 else "h"], None

    def target(self, config: Config, problem: Problem, tensors: Tensors) -> tuple[str, Any, Any]:
        """Return h, stored in bf16."""
        return "bf16", tensors["h"], None

    def passes(self, config: Config, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return none."""
        return []

    def quantise(self, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return none."""
        return []

    def written(self) -> tuple[str, ...]:
        """Return h."""
        return ("h",)

    def x(self, tensors: Tensors) -> Tensor:
        """Return x in fp32."""
        return tensors["x"].float()  # type: ignore[no-any-return]

    def h(self, tensors: Tensors) -> Tensor:
        """Return h in fp32."""
        return tensors["h"].float()  # type: ignore[no-any-return]

    def round_trip(self, h: Tensor) -> Tensor:
        """Round to bf16."""
        return h.bfloat16().float()


class Mxfp8AsBf16(Bf16Rows):
    """MXFP8 held in bf16, exactly: for targets that multiply it in bf16 anyway, and would widen it in every tile."""

    def slots(self, problem: Problem) -> dict[str, Slot]:
        """Return x, its rounded copy, and h."""
        return super().slots(problem) | {"rounded": Slot((problem.tokens, problem.model_dim), torch.bfloat16)}

    def source(self, stage: int, tensors: Tensors) -> tuple[Any, Any]:
        """Return rounded x, or h."""
        return tensors["rounded" if stage == 1 else "h"], None

    def target(self, config: Config, problem: Problem, tensors: Tensors) -> tuple[str, Any, Any]:
        """Return h, rounded to MXFP8 and stored in bf16."""
        return "mxfp8 as bf16", tensors["h"], None

    def quantise(self, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return the launch that rounds x."""
        shape = problem.tokens, problem.model_dim
        return [Call(*quantise.round_rows(tensors["x"], tensors["rounded"], *shape, INTERPRETED))]

    def x(self, tensors: Tensors) -> Tensor:
        """Return rounded x in fp32."""
        return tensors["rounded"].float()  # type: ignore[no-any-return]

    def round_trip(self, h: Tensor) -> Tensor:
        """Quantise to MXFP8 and back."""
        return formats.dequantise_mxfp8(*formats.quantise_mxfp8(h))


class Mxfp8Rows(Bf16Rows):
    """MXFP8: e4m3 codes with an E8M0 scale for 32 elements."""

    def slots(self, problem: Problem) -> dict[str, Slot]:
        """Return x, its codes and scales, and h with its scales."""
        tokens, d, rows, inter = problem.tokens, problem.model_dim, problem.rows, problem.inter_dim
        e4m3, byte = torch.float8_e4m3fn, torch.uint8
        return {
            "x": Slot((tokens, d), torch.bfloat16),
            "codes": Slot((tokens, d), e4m3),
            "scales": Slot((tokens, d // 32), byte),
            "h": Slot((rows, inter), e4m3, True),
            "h_scales": Slot((rows, inter // 32), byte, True),
        }

    def source(self, stage: int, tensors: Tensors) -> tuple[Any, Any]:
        """Return codes and scales of x or h."""
        return (tensors["codes"], tensors["scales"]) if stage == 1 else (tensors["h"], tensors["h_scales"])

    def target(self, config: Config, problem: Problem, tensors: Tensors) -> tuple[str, Any, Any]:
        """Return h and its scales."""
        return "mxfp8", tensors["h"], tensors["h_scales"]

    def quantise(self, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return the launch that quantises x."""
        shape = problem.tokens, problem.model_dim
        return [Call(*quantise.mxfp8_rows(tensors["x"], tensors["codes"], tensors["scales"], *shape, INTERPRETED))]

    def written(self) -> tuple[str, ...]:
        """Return h and its scales."""
        return "h", "h_scales"

    def x(self, tensors: Tensors) -> Tensor:
        """Return dequantised x."""
        return formats.dequantise_mxfp8(tensors["codes"], tensors["scales"])

    def h(self, tensors: Tensors) -> Tensor:
        """Return dequantised h."""
        return formats.dequantise_mxfp8(tensors["h"], tensors["h_scales"])

    def round_trip(self, h: Tensor) -> Tensor:
        """Quantise to MXFP8 and back."""
        return formats.dequantise_mxfp8(*formats.quantise_mxfp8(h))


class _Quantised(Bf16Rows):
    """Codes with fp32 scales; stage 1 leaves `raw` bf16, which a row pass quantises to h."""

    dtype: torch.dtype

    def slots(self, problem: Problem) -> dict[str, Slot]:
        """Return x, its codes and scales, raw h, and h with its scales."""
        tokens, d, rows, inter = problem.tokens, problem.model_dim, problem.rows, problem.inter_dim
        return {
            "x": Slot((tokens, d), torch.bfloat16),
            "codes": Slot((tokens, d), self.dtype),
            "scales": Slot((tokens, *self.groups(d)), torch.float32),
            "raw": Slot((rows, inter), torch.bfloat16, True),
            "h": Slot((rows, inter), self.dtype, True),
            "h_scales": Slot((rows, *self.groups(inter)), torch.float32, True),
        }

    def groups(self, k: int) -> tuple[int, ...]:
        """Return the shape of one row's scales."""
        raise NotImplementedError  # abstract: each subclass has its own

    def source(self, stage: int, tensors: Tensors) -> tuple[Any, Any]:
        """Return codes and scales of x or h."""
        return (tensors["codes"], tensors["scales"]) if stage == 1 else (tensors["h"], tensors["h_scales"])

    def target(self, config: Config, problem: Problem, tensors: Tensors) -> tuple[str, Any, Any]:
        """Return raw h."""
        return "bf16", tensors["raw"], None

    def written(self) -> tuple[str, ...]:
        """Return h and its scales."""
        return "h", "h_scales"


class Int8Rows(_Quantised):
    """int8 with one fp32 scale a row: its maximum spans tiles, so that a row pass quantises h."""

    dtype = torch.int8

    def groups(self, k: int) -> tuple[int, ...]:
        """Return no dimension: one scale a row."""
        return ()

    def passes(self, config: Config, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return the row pass over raw h."""
        t, shape = tensors, (problem.rows, problem.inter_dim)
        used = t["offsets"], problem.experts
        return [Call(*quantise.int8_rows(t["raw"], t["h"], t["h_scales"], *shape, INTERPRETED, used))]

    def quantise(self, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return the row pass over x."""
        t, shape = tensors, (problem.tokens, problem.model_dim)
        return [Call(*quantise.int8_rows(t["x"], t["codes"], t["scales"], *shape, INTERPRETED))]

    def x(self, tensors: Tensors) -> Tensor:
        """Return dequantised x."""
        return formats.dequantise_int8(tensors["codes"], tensors["scales"])

    def h(self, tensors: Tensors) -> Tensor:
        """Return dequantised h."""
        return formats.dequantise_int8(tensors["h"], tensors["h_scales"])

    def round_trip(self, h: Tensor) -> Tensor:
        """Round to bf16, quantise to int8 and back."""
        return formats.dequantise_int8(*formats.quantise_int8(h.bfloat16().float()))


class E4m3Rows(_Quantised):
    """e4m3 with an fp32 scale for 128 elements: a pass quantises h, which stage 1 would in as many registers again."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.fnuz = dtype == torch.float8_e4m3fnuz

    def groups(self, k: int) -> tuple[int, ...]:
        """Return the number of 128-element groups."""
        return (-(-k // 128),)

    def passes(self, config: Config, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return the pass over raw h."""
        t, shape = tensors, (problem.rows, problem.inter_dim)
        used = t["offsets"], problem.experts
        return [Call(*quantise.e4m3_rows(t["raw"], t["h"], t["h_scales"], *shape, INTERPRETED, used, self.fnuz))]

    def quantise(self, problem: Problem, tensors: Tensors) -> list[Call]:
        """Return the pass over x."""
        t, shape = tensors, (problem.tokens, problem.model_dim)
        return [Call(*quantise.e4m3_rows(t["x"], t["codes"], t["scales"], *shape, INTERPRETED, None, self.fnuz))]

    def x(self, tensors: Tensors) -> Tensor:
        """Return dequantised x."""
        return formats.dequantise_e4m3(tensors["codes"], tensors["scales"])

    def h(self, tensors: Tensors) -> Tensor:
        """Return dequantised h."""
        return formats.dequantise_e4m3(tensors["h"], tensors["h_scales"])

    def round_trip(self, h: Tensor) -> Tensor:
        """Round to bf16, quantise to e4m3 and back."""
        return formats.dequantise_e4m3(*formats.quantise_e4m3(h.bfloat16().float(), dtype=self.dtype))
