"""e4m3 with fp32 scales: 128 elements along K of activations, 128 x 128 blocks of weights.

The dtype is float8_e4m3fn (largest 448), or float8_e4m3fnuz (largest 240, no negative zero) for gfx942. The scale is
amax / largest, elements are x / scale, to nearest, ties to even. Where 128 does not divide an extent, the last group or
block is short. `scaling` says what becomes of groups that are zero or not finite.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from .drawing import fill, quantiles, sample
from .scaling import in_units, scale_of

GROUP = 128


def quantise_e4m3(x: Tensor, group: int = GROUP, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Quantise float [..., K] to codes [..., K] of `dtype` and fp32 scales [..., ceil(K / group)]."""
    k = x.shape[-1]
    groups = torch.unflatten(pad(x.float(), (0, -k % group)), -1, (-1, group))
    codes, scales = _quantise(groups, (-1,), dtype)
    return codes.flatten(-2)[..., :k].contiguous(), scales.flatten(-2)


def dequantise_e4m3(codes: Tensor, scales: Tensor, group: int = GROUP) -> Tensor:
    """Return fp32 [..., K] of e4m3 codes [..., K] and fp32 scales [..., ceil(K / group)]."""
    return codes.float() * scales.repeat_interleave(group, -1)[..., : codes.shape[-1]]


def quantise_e4m3_blocks(w: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Quantise float [..., N, K] to codes of `dtype` and fp32 scales [..., ceil(N / 128), ceil(K / 128)]."""
    n, k = w.shape[-2:]
    padded = pad(w.float(), (0, -k % GROUP, 0, -n % GROUP))
    blocks = torch.unflatten(torch.unflatten(padded, -1, (-1, GROUP)), -3, (-1, GROUP))
    codes, scales = _quantise(blocks, (-3, -1), dtype)
    return codes.flatten(-2).flatten(-3, -2)[..., :n, :k].contiguous(), scales.flatten(-2).squeeze(-2)


def dequantise_e4m3_blocks(codes: Tensor, scales: Tensor) -> Tensor:
    """Return fp32 [..., N, K] of e4m3 codes [..., N, K] and fp32 scales [..., ceil(N / 128), ceil(K / 128)]."""
    return dequantise_e4m3(codes, scales.repeat_interleave(GROUP, -2)[..., : codes.shape[-2], :])


def draw_e4m3_blocks(
    shape: tuple[int, ...],
    generator: torch.Generator,
    device: torch.device | str,
    out: tuple[Tensor, Tensor] | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Draw e4m3 weights of `shape` (..., N, K), distributed like a quantised N(0, 0.02), drawing no floats.

    Returns what `quantise_e4m3_blocks` does: `out` where given (contiguous; then `dtype` is that of its codes).
    `generator` lives on `device`.
    """
    *lead, n, k = shape
    codes, scales = out if out is not None else (
        torch.empty(shape, dtype=dtype, device=device),
        torch.empty(*lead, -(-n // GROUP), -(-k // GROUP), dtype=torch.float32, device=device),
    )  # fmt: skip
    code_table, scale_table = _tables(min(n, GROUP), min(k, GROUP), codes.dtype)
    fill(codes.view(torch.uint8), code_table, generator)
    fill(scales, scale_table, generator)
    return codes, scales


def _quantise(parts: Tensor, dims: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantise fp32 with one scale over `dims`, which the scales keep as 1."""
    limit = torch.finfo(dtype).max
    scales = scale_of(parts.abs().amax(dims, keepdim=True), limit)
    return in_units(parts, scales).to(dtype), scales


@cache
def _tables(n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the codes, as bytes, and the scales that random bits select for blocks of n x k."""
    codes, scales = quantise_e4m3_blocks(sample(64, n, k), dtype)
    return quantiles(codes.view(torch.uint8)), quantiles(scales)
