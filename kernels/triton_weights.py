"""How expert weights lie in memory for the Triton kernels, by format: drawn, passed to a stage, and read back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from moetune.model.format import FORMATS
from moetune.model.padding import padded
from moetune.model.problem import Problem

from . import formats, packing
from .triton_launch import Slot

Tensors = dict[str, Any]
_SIGMA = 0.02


class Weights(Protocol):
    """The weights w1 and w2 of all experts, with scales s1, s2 and zero points z1, z2 where a format has them."""

    @property
    def kind(self) -> str:
        """Return what `triton_product` calls the format."""

    def slots(self, stage: int, problem: Problem) -> dict[str, Slot]:
        """Return the tensors of a stage."""

    def draw(self, stage: int, problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
        """Fill the tensors of a stage as a quantised N(0, 0.02) would."""

    def logical(self, stage: int, expert: int, problem: Problem, tensors: Tensors) -> Tensor:
        """Return one expert's weights in fp32 [N, K], rows as the shape stores them."""


def arguments(stage: int, tensors: Tensors) -> tuple[Any, Any, Any]:
    """Return weights, scales and zero points of a stage; None where there are none."""
    return tuple(tensors.get(f"{name}{stage}") for name in "wsz")  # type: ignore[return-value]


def height(stage: int, problem: Problem) -> int:
    """Return the weight rows an expert takes up in a prepacked layout."""
    return padded(problem.n(stage), 64)


class Bf16Weights:
    """bf16 [experts, N, K]."""

    kind = "bf16"

    def slots(self, stage: int, problem: Problem) -> dict[str, Slot]:
        """Return w."""
        return {f"w{stage}": Slot((problem.experts, problem.n(stage), problem.k(stage)), torch.bfloat16)}

    def draw(self, stage: int, problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
        """Draw from N(0, 0.02), an expert at a time."""
        for expert in tensors[f"w{stage}"]:
            expert.normal_(std=_SIGMA, generator=generator)

    def logical(self, stage: int, expert: int, problem: Problem, tensors: Tensors) -> Tensor:
        """Return the weights in fp32."""
        weight: Tensor = tensors[f"w{stage}"][expert]
        return weight.float()


class E4m3Blocks:
    """e4m3 [experts, N, K] with fp32 scales [experts, N / 128, K / 128]."""

    kind = "fp8_block"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def slots(self, stage: int, problem: Problem) -> dict[str, Slot]:
        """Return w and its scales."""
        experts, n, k = problem.experts, problem.n(stage), problem.k(stage)
        return {
            f"w{stage}": Slot((experts, n, k), self.dtype),
            f"s{stage}": Slot((experts, n // 128, k // 128), torch.float32),
        }

    def draw(self, stage: int, problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
        """Draw codes and scales."""
        w, scales = tensors[f"w{stage}"], tensors[f"s{stage}"]
        formats.draw_e4m3_blocks(tuple(w.shape), generator, generator.device, (w, scales))

    def logical(self, stage: int, expert: int, problem: Problem, tensors: Tensors) -> Tensor:
        """Return the weights in fp32."""
        return formats.dequantise_e4m3_blocks(tensors[f"w{stage}"][expert], tensors[f"s{stage}"][expert])


class Int8Channels:
    """int8 [experts, N, K] with fp32 scales [experts, N]."""

    kind = "int8"

    def slots(self, stage: int, problem: Problem) -> dict[str, Slot]:
        """Return w and its scales."""
        experts, n, k = problem.experts, problem.n(stage), problem.k(stage)
        return {f"w{stage}": Slot((experts, n, k), torch.int8), f"s{stage}": Slot((experts, n), torch.float32)}

    def draw(self, stage: int, problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
        """Draw codes and scales."""
        w, scales = tensors[f"w{stage}"], tensors[f"s{stage}"]
        formats.draw_int8(tuple(w.shape), generator, generator.device, (w, scales))

    def logical(self, stage: int, expert: int, problem: Problem, tensors: Tensors) -> Tensor:
        """Return the weights in fp32."""
        return formats.dequantise_int8(tensors[f"w{stage}"][expert], tensors[f"s{stage}"][expert])


@cache
def _places(inter: int, gated: bool, interleaved: bool, device: torch.device) -> Tensor:
    return packing.row_order(inter, gated, interleaved).argsort().to(device)


def _stored(rows: Tensor, stage: int, problem: Problem) -> Tensor:
    """Return packed rows put back where the shape stores them: in stage 1, gate and up rows come in turns of eight."""
    if stage == 2:
        return rows
    return rows[_places(problem.inter_dim, problem.shape.gated, problem.shape.interleaved, rows.device)]


class E2m1Bytes:
    """MXFP4 as the format states it: uint8 [experts, N, K / 2], E8M0 scales [experts, N, K / 32]."""

    kind = "mx"

    def slots(self, stage: int, problem: Problem) -> dict[str, Slot]:
        """Return w and its scales."""
        experts, n, k = problem.experts, problem.n(stage), problem.k(stage)
        return {
            f"w{stage}": Slot((experts, n, k // 2), torch.uint8),
            f"s{stage}": Slot((experts, n, k // 32), torch.uint8),
        }

    def draw(self, stage: int, problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
        """Draw MXFP4 weights."""
        w, scales = tensors[f"w{stage}"], tensors[f"s{stage}"]
        experts, n, half = w.shape
        formats.draw_mxfp4((experts, n, 2 * half), generator, generator.device, (w, scales))

    def logical(self, stage: int, expert: int, problem: Problem, tensors: Tensors) -> Tensor:
        """Return the weights in fp32."""
        return formats.dequantise_mxfp4(tensors[f"w{stage}"][expert], tensors[f"s{stage}"][expert])


class E2m1Words:
    """MXFP4 in words of eight, with biased E8M0 scales by 128 of K (`packing`)."""

    kind = "e2m1"

    def slots(self, stage: int, problem: Problem) -> dict[str, Slot]:
        """Return w [experts, rows / 64, K / 128, 64, 16] and its scales [experts, K / 128, rows]."""
        experts, rows, blocks = problem.experts, height(stage, problem), padded(problem.k(stage)) // 128
        return {
            f"w{stage}": Slot((experts, rows // 64, blocks, 64, 16), torch.int32),
            f"s{stage}": Slot((experts, blocks, rows), torch.int32),
        }

    def draw(self, stage: int, problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
        """Draw MXFP4 weights and pack them, an expert at a time."""
        n, k = problem.n(stage), problem.k(stage)
        for words, scales in zip(tensors[f"w{stage}"], tensors[f"s{stage}"], strict=True):
            packed, bytes_ = formats.draw_mxfp4((n, k), generator, generator.device)
            words.copy_(packing.pack_words(formats.unpack_nibbles(packed), self.kind))
            scales.copy_(packing.pack_e8m0(bytes_, k))

    def logical(self, stage: int, expert: int, problem: Problem, tensors: Tensors) -> Tensor:
        """Return the weights in fp32."""
        n, k = problem.n(stage), problem.k(stage)
        codes = packing.unpack_words(tensors[f"w{stage}"][expert], self.kind, n, k)
        scales = packing.unpack_e8m0(tensors[f"s{stage}"][expert], n, k)
        return _stored(formats.dequantise_mxfp4(formats.pack_nibbles(codes), scales), stage, problem)


@dataclass(frozen=True)
class Int4Words:
    """int4 in words of eight, with pairs of bf16 scales by group, and zero points where the format has them."""

    kind: str = "int4"

    def slots(self, stage: int, problem: Problem) -> dict[str, Slot]:
        """Return w [experts, rows/64, K/128, 64, 16], scales [experts, groups, rows/2], zero points [.., rows]."""
        experts, rows, blocks = problem.experts, height(stage, problem), padded(problem.k(stage)) // 128
        weights = FORMATS[problem.format].weights
        groups = blocks * 128 // weights.group
        zeros = {f"z{stage}": Slot((experts, groups, rows), torch.uint8)} if weights.zero_bits else {}
        return {
            f"w{stage}": Slot((experts, rows // 64, blocks, 64, 16), torch.int32),
            f"s{stage}": Slot((experts, groups, rows // 2), torch.int32),
            **zeros,
        }

    def draw(self, stage: int, problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
        """Draw int4 weights and pack them, an expert at a time."""
        n, k, form = problem.n(stage), problem.k(stage), FORMATS[problem.format].weights
        w, s, z = arguments(stage, tensors)
        for expert in range(problem.experts):
            packed, scales, zeros = formats.draw_int4(
                (n, k), form.group, bool(form.zero_bits), generator, generator.device
            )
            w[expert].copy_(packing.pack_words(formats.unpack_nibbles(packed), self.kind))
            s[expert].copy_(packing.pair_scales(packing.by_group(scales, s.shape[1])))
            if zeros is not None:
                z[expert].copy_(packing.by_group(zeros, z.shape[1]))

    def logical(self, stage: int, expert: int, problem: Problem, tensors: Tensors) -> Tensor:
        """Return the weights in fp32."""
        n, k = problem.n(stage), problem.k(stage)
        w, s, z = arguments(stage, tensors)
        groups = k // FORMATS[problem.format].weights.group
        codes = packing.unpack_words(w[expert], self.kind, n, k)
        scales = packing.unpair_scales(s[expert])[:groups, :n].T
        zeros = None if z is None else z[expert][:groups, :n].T
        return _stored(formats.dequantise_int4(formats.pack_nibbles(codes), scales, zeros), stage, problem)


class Int4Bytes:
    """int4 in bytes that widen to int8, one group of K a block, with scales and zero points by group.

    Without zero points codes are stored as signed nibbles (the code less 8). Scales are bf16 numbers in fp32, which
    asynchronous copies can load one by one (4 bytes at least).
    """

    kind = "int4x8"

    def slots(self, stage: int, problem: Problem) -> dict[str, Slot]:
        """Return w [experts, rows / 64, groups, 64, group / 2], scales and zero points [experts, groups, rows]."""
        experts, rows, form = problem.experts, height(stage, problem), FORMATS[problem.format].weights
        groups = problem.k(stage) // form.group
        zeros = {f"z{stage}": Slot((experts, groups, rows), torch.uint8)} if form.zero_bits else {}
        return {
            f"w{stage}": Slot((experts, rows // 64, groups, 64, form.group // 2), torch.uint8),
            f"s{stage}": Slot((experts, groups, rows), torch.float32),
            **zeros,
        }

    def draw(self, stage: int, problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
        """Draw int4 weights and pack them, an expert at a time."""
        n, k, form = problem.n(stage), problem.k(stage), FORMATS[problem.format].weights
        w, s, z = arguments(stage, tensors)
        for expert in range(problem.experts):
            packed, scales, zeros = formats.draw_int4(
                (n, k), form.group, bool(form.zero_bits), generator, generator.device
            )
            codes = formats.unpack_nibbles(packed)
            w[expert].copy_(packing.pack_bytes(codes ^ 8 if zeros is None else codes, form.group))
            s[expert].copy_(packing.by_group(scales, s.shape[1]))
            if zeros is not None:
                z[expert].copy_(packing.by_group(zeros, z.shape[1]))

    def logical(self, stage: int, expert: int, problem: Problem, tensors: Tensors) -> Tensor:
        """Return the weights in fp32."""
        n = problem.n(stage)
        w, s, z = arguments(stage, tensors)
        codes = packing.unpack_bytes(w[expert], n)
        zeros = None if z is None else z[expert][:, :n].T
        codes = codes ^ 8 if zeros is None else codes
        scales = s[expert][:, :n].T.bfloat16()
        return _stored(formats.dequantise_int4(formats.pack_nibbles(codes), scales, zeros), stage, problem)
