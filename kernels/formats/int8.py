"""int8 with one fp32 scale per row: per token of activations, per output channel of weights.

Codes are round(x / scale) to nearest, ties to even, within -127..127; the scale is amax / 127. `scaling` says
what becomes of rows that are zero or not finite.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from .drawing import fill, quantiles, sample
from .scaling import in_units, scale_of

_LIMIT = 127


def quantise_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise float [..., K] to int8 codes [..., K] and fp32 scales [...]."""
    x = x.float()
    scales = scale_of(x.abs().amax(-1), _LIMIT)
    codes = in_units(x, scales.unsqueeze(-1)).round_().clamp_(-_LIMIT, _LIMIT)
    return codes.to(torch.int8), scales


def dequantise_int8(codes: Tensor, scales: Tensor) -> Tensor:
    """Return fp32 [..., K] of int8 codes [..., K] and fp32 scales [...]."""
    return codes.float() * scales.unsqueeze(-1)


def draw_int8(
    shape: tuple[int, ...],
    generator: torch.Generator,
    device: torch.device | str,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw int8 weights of `shape` (..., N, K), distributed like a quantised N(0, 0.02), drawing no floats.

    Returns codes [..., N, K] and fp32 scales [..., N]: `out` where given (contiguous). `generator` lives on `device`.
    """
    codes, scales = out if out is not None else (
        torch.empty(shape, dtype=torch.int8, device=device),
        torch.empty(shape[:-1], dtype=torch.float32, device=device),
    )  # fmt: skip
    for target, table in zip((codes, scales), _tables(shape[-1]), strict=True):
        fill(target, table, generator)
    return codes, scales


@cache
def _tables(k: int) -> tuple[Tensor, Tensor]:
    """Return the codes and the scales that random bits select for rows of K elements."""
    codes, scales = quantise_int8(sample(max(64, (1 << 20) // k), k))
    return quantiles(codes), quantiles(scales)
