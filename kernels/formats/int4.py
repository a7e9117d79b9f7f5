"""int4 in groups along K with bf16 scales, symmetric or with zero points.

A code q is 0..15 and stands for (q - 8) x scale, or (q - zero) x scale with an integer zero point 0..15 per group.
Symmetric scales are amax / 7, so that quantising makes codes 1 to 15 alone; asymmetric ones (high - low) / 15 over the
group's range and zero, with zero = round(-low / scale). Scales are rounded to bf16 first, then codes to nearest,
ties to even. `scaling` says what becomes of groups that are zero or not finite; their codes are the zero point.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from . import drawing
from .drawing import fill, quantiles, sample
from .nibbles import pack_nibbles, pairs, unpack_nibbles
from .scaling import in_units, scale_of

_OFFSET, _LARGEST = 8, 15


def quantise_int4(w: Tensor, group: int, zero_points: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Quantise float [..., N, K], K in groups of an even size that divides it.

    Returns packed codes uint8 [..., N, K / 2], scales bf16 [..., N, K / group] and zero points uint8 of the same shape,
    or None.
    """
    groups = torch.unflatten(w.float(), -1, (-1, group))
    if zero_points:
        low, high = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
        scales = (scale_of(high, _LARGEST) + scale_of(-low, _LARGEST)).bfloat16()
        zeros = in_units(-low, scales.float()).round_().clamp_(0, _LARGEST)
    else:
        scales = scale_of(groups.abs().amax(-1), _OFFSET - 1).bfloat16()
        zeros = torch.full_like(scales, _OFFSET)
    codes = in_units(groups, scales.float().unsqueeze(-1)).round_() + zeros.unsqueeze(-1)
    packed = pack_nibbles(codes.clamp_(0, _LARGEST).to(torch.uint8).flatten(-2))
    return packed, scales, zeros.to(torch.uint8) if zero_points else None


def dequantise_int4(packed: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
    """Return fp32 [..., N, K] of packed uint8 [..., N, K / 2], scales and zero points [..., N, K / group]."""
    codes = torch.unflatten(unpack_nibbles(packed), -1, (scales.shape[-1], -1)).float()
    codes -= _OFFSET if zeros is None else zeros.unsqueeze(-1)
    return (codes * scales.float().unsqueeze(-1)).flatten(-2)


def draw_int4(
    shape: tuple[int, ...],
    group: int,
    zero_points: bool,
    generator: torch.Generator,
    device: torch.device | str,
    out: tuple[Tensor, Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Draw int4 weights of `shape` (..., N, K), distributed like a quantised N(0, 0.02), drawing no floats.

    Codes lie around the zero point drawn for their group. Returns what `quantise_int4` does: `out` where given
    (contiguous). `generator` lives on `device`.
    """
    *lead, k = shape
    by_group = (*lead, k // group)
    packed, scales, zeros = out if out is not None else (
        torch.empty(*lead, k // 2, dtype=torch.uint8, device=device),
        torch.empty(by_group, dtype=torch.bfloat16, device=device),
        torch.empty(by_group, dtype=torch.uint8, device=device) if zero_points else None,
    )  # fmt: skip
    bytes_of, scale_table, zero_table = _tables(group, zero_points)
    fill(scales, scale_table, generator)
    if zeros is None:
        fill(packed, bytes_of[_OFFSET], generator)
        return packed, scales, None
    fill(zeros, zero_table, generator)
    half, table = group // 2, bytes_of.flatten().to(packed.device)
    step = max(1, drawing.CHUNK // half)
    for part, zero in zip(torch.split(packed.view(-1, half), step), torch.split(zeros.view(-1), step), strict=True):
        index = drawing.indices(part.numel(), generator).view_as(part)
        index += zero.int().unsqueeze(1) << 16
        torch.index_select(table, 0, index.flatten(), out=part.view(-1))
    return packed, scales, zeros


@cache
def _tables(group: int, zero_points: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return nibble pairs [16, 65536] for each zero point, and the scales and zero points that random bytes select."""
    packed, scales, zeros = quantise_int4(sample((1 << 20) // group, group), group, zero_points)
    if zeros is None:
        zeros = torch.full_like(packed[:, :1], _OFFSET)
    steps = quantiles(unpack_nibbles(packed).int() - zeros.int(), 256)
    codes = (steps + torch.arange(16).unsqueeze(1)).clamp_(0, _LARGEST).to(torch.uint8)
    return pairs(codes), quantiles(scales), quantiles(zeros)
