"""MXFP8 and MXFP4: quantise, dequantise and draw, in plain torch on any device.

Elements and scales follow the OCP Microscaling Formats (MX) specification 1.0: blocks of 32 elements along K
share one E8M0 scale, the byte b standing for 2^(b - 127) and 0xFF for NaN.

Where the specification leaves a choice: the scale mode is `floor` (2^(floor(log2 amax) - emax)), so that the
largest elements of a block may saturate; a block whose scale would lie below 2^-127, an all-zero block among
them, gets byte 0; a block with a NaN or an infinity gets byte 0xFF. Elements round to nearest, ties to even.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from .drawing import fill, quantiles, sample
from .nibbles import pack_nibbles, pairs, unpack_nibbles

BLOCK = 32

_E4M3_EMAX, _E4M3_MAX = 8, 448.0
_E2M1_EMAX = 2
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def quantise_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise float [..., K] (32 divides K) to e4m3fn codes [..., K] and E8M0 scales uint8 [..., K / 32]."""
    scaled, scales = _scale(x, _E4M3_EMAX)
    codes = scaled.clamp_(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scales


def dequantise_mxfp8(codes: Tensor, scales: Tensor) -> Tensor:
    """Return fp32 [..., K] of e4m3fn codes [..., K] and E8M0 scales uint8 [..., K / 32]."""
    return _apply(codes.float(), scales)


def quantise_mxfp4(w: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise float [..., K] (32 divides K) to e2m1 uint8 [..., K / 2] and E8M0 scales uint8 [..., K / 32].

    The low nibble of a byte is the even k, bit 3 of a nibble the sign.
    """
    scaled, scales = _scale(w, _E2M1_EMAX)
    size = scaled.abs().nan_to_num_(0.0)
    # e2m1 is spaced 1/2 below 2, 1 below 4, 2 above: round(size / spacing) is the code less an offset
    code = torch.where(size < 4, size.round() + 2, (size / 2).round().clamp_(max=3) + 4)
    code = torch.where(size < 2, (size * 2).round(), code).to(torch.uint8)
    code |= scaled.signbit().to(torch.uint8) << 3
    return pack_nibbles(code.flatten(-2)), scales


def dequantise_mxfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """Return fp32 [..., K] of packed e2m1 uint8 [..., K / 2] and E8M0 scales uint8 [..., K / 32]."""
    return _apply(_values(packed.device)[packed.int()].flatten(-2), scales)


@cache
def _values(device: torch.device) -> Tensor:
    """Return the two elements of each byte, fp32 [256, 2]."""
    values = torch.tensor(_E2M1 + tuple(-v for v in _E2M1), device=device)
    return values[unpack_nibbles(torch.arange(256, device=device).unsqueeze(1)).int()]


def draw_mxfp4(
    shape: tuple[int, ...],
    generator: torch.Generator,
    device: torch.device | str,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw MXFP4 weights of `shape` (..., N, K), distributed like a quantised N(0, 0.02), drawing no floats.

    Returns packed uint8 [..., N, K / 2] and scales uint8 [..., N, K / 32]: `out`
    where given (contiguous). `generator` lives on `device`.
    """
    *lead, n, k = shape
    packed, scales = out if out is not None else (
        torch.empty(*lead, n, k // 2, dtype=torch.uint8, device=device),
        torch.empty(*lead, n, k // BLOCK, dtype=torch.uint8, device=device),
    )  # fmt: skip
    for target, table in zip((packed, scales), _tables(), strict=True):
        fill(target, table, generator)
    return packed, scales


def _scale(x: Tensor, emax: int) -> tuple[Tensor, Tensor]:
    """Return x in units of its block's scale, fp32 [..., K / 32, 32], and the scales uint8 [..., K / 32]."""
    blocks = x.float().reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    exponent = blocks.abs().amax(-1).view(torch.int32) >> 23 & 255  # biased; 255 for infinity and NaN
    byte = torch.where(exponent == 255, 255, (exponent - emax).clamp_(min=0))
    inverse = ((254 - byte).clamp_(min=0) << 23).view(torch.float32)  # 2^(127 - byte): the product is exact
    return blocks * inverse.unsqueeze(-1), byte.to(torch.uint8)


def _apply(elements: Tensor, scales: Tensor) -> Tensor:
    bits = scales.int() << 23
    bits = torch.where(scales == 0, 1 << 22, bits)  # 2^-127 is subnormal in fp32
    bits = torch.where(scales == 255, 0x7FC00000, bits)
    blocks = elements.reshape(*scales.shape, BLOCK) * bits.view(torch.float32).unsqueeze(-1)
    return blocks.flatten(-2)


@cache
def _tables() -> tuple[Tensor, Tensor]:
    """Return the nibble pairs and the scales that random bits select."""
    packed, scales = quantise_mxfp4(sample(4096, BLOCK))
    return pairs(quantiles(unpack_nibbles(packed), 256)), quantiles(scales)
