"""Four-bit weights as the Triton kernels read them: prepacked once, and unpacked again for the oracle.

`triton_packed` says what a word, a byte and a pair of scales hold. Rows and K are padded with zeros, to multiples
of 64 and of one block of K.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from moetune.model.padding import padded

BIAS = 110
"""What is added to E8M0 bytes, so that a bf16 exponent of it brings e2m1 bits to their value times 2^-16."""


def row_order(inter: int, gated: bool, interleaved: bool) -> Tensor:
    """Return the stored row of each packed row of stage 1: gate and up rows in turns of eight."""
    column = torch.arange(inter)
    if not gated:
        return column
    gate, up = (2 * column, 2 * column + 1) if interleaved else (column, column + inter)
    return torch.stack([gate.view(-1, 8), up.view(-1, 8)], 1).flatten()


def pack_words(codes: Tensor, kind: str) -> Tensor:
    """Return int32 [rows / 64, K / 128, 64, 16] of 4-bit codes uint8 [rows, K], both padded (kind int4 or e2m1)."""
    rows, k = codes.shape
    fill = 8 if kind == "int4" else 0
    codes = pad(codes, (0, padded(k) - k, 0, padded(rows, 64) - rows), value=fill)
    parts = codes.view(codes.shape[0], -1, 4, 2, 2, 4, 2).permute(0, 1, 5, 2, 3, 4, 6).int()  # ..., t, c, s, h, p
    parts = parts.flatten(4, 5)  # element 2 s + h
    element = torch.arange(4, dtype=torch.int32, device=codes.device).view(4, 1)
    if kind == "int4":
        half = parts << 4 * element
    else:
        sign, size = parts >> 3, parts & 7
        plain = (sign << 15 | size << 6) >> 3 * element
        half = torch.where(element == 3, sign << 14 | size >> 2 << 13 | (size & 3) << 10, plain)
    half = half.sum(-2, dtype=torch.int32)
    words = (half[..., 0] | half[..., 1] << 16).to(torch.int32)
    return words.view(-1, 64, words.shape[1], 16).transpose(1, 2).contiguous()


def unpack_words(words: Tensor, kind: str, rows: int, k: int) -> Tensor:
    """Return the codes uint8 [rows, K] of `pack_words`."""
    words = words.transpose(1, 2).reshape(words.shape[0] * 64, words.shape[1], 4, 4, 1, 1)  # ..., t, c
    half = words >> 16 * torch.arange(2, dtype=torch.int32, device=words.device) & 0xFFFF
    element = torch.arange(4, dtype=torch.int32, device=words.device).view(4, 1)
    if kind == "int4":
        codes = half >> 4 * element & 15
    else:
        plain = half << 3 * element
        last = half << 1 & 1 << 15 | half >> 5 & 1 << 8 | half >> 4 & 3 << 6
        bits = torch.where(element == 3, last, plain)
        codes = bits >> 12 & 8 | bits >> 6 & 7
    codes = codes.view(*codes.shape[:4], 2, 2, 2).permute(0, 1, 3, 4, 5, 2, 6)  # ..., c, s, h, t, p
    return codes.reshape(codes.shape[0], -1)[:rows, :k].to(torch.uint8)


def pack_bytes(codes: Tensor, block: int) -> Tensor:
    """Return uint8 [rows / 64, K / block, 64, block / 2] of codes uint8 [rows, K], rows padded."""
    codes = pad(codes, (0, 0, 0, padded(codes.shape[0], 64) - codes.shape[0]))
    parts = codes.view(codes.shape[0], -1, block // 32, 2, 4, 4).permute(0, 1, 4, 2, 5, 3)  # ..., t, c, b, h
    packed = (parts[..., 0] | parts[..., 1] << 4).reshape(-1, 64, codes.shape[1] // block, block // 2)
    return packed.transpose(1, 2).contiguous()


def unpack_bytes(packed: Tensor, rows: int) -> Tensor:
    """Return the codes uint8 [rows, K] of `pack_bytes`."""
    blocks, units, _, half = packed.shape
    parts = packed.transpose(1, 2).reshape(blocks * 64, units, 4, half // 16, 4)
    codes = torch.stack([parts & 15, parts >> 4], -1).permute(0, 1, 3, 5, 2, 4)  # ..., c, h, t, b
    return codes.reshape(blocks * 64, -1)[:rows]


def by_group(values: Tensor, groups: int) -> Tensor:
    """Return [groups, rows] of scales or zero points [rows, K / group], padded with zeros to 64 rows and `groups`."""
    rows, have = values.shape
    return pad(values, (0, groups - have, 0, padded(rows, 64) - rows)).T.contiguous()


def pair_scales(scales: Tensor) -> Tensor:
    """Return int32 [groups, rows / 2] of bf16 scales [groups, rows]: those of rows j and j + 8 of 16 in one word."""
    bits = scales.contiguous().view(torch.int16).int() & 0xFFFF
    pairs = bits.view(bits.shape[0], -1, 2, 8)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 16).flatten(1)


def unpair_scales(pairs: Tensor) -> Tensor:
    """Return the bf16 scales [groups, rows] of `pair_scales`."""
    words = pairs.view(pairs.shape[0], -1, 1, 8)
    bits = torch.cat([words & 0xFFFF, words >> 16 & 0xFFFF], 2)
    return bits.to(torch.int16).view(torch.bfloat16).flatten(1)


def pack_e8m0(scales: Tensor, k: int) -> Tensor:
    """Return int32 [K / 128, rows] of E8M0 bytes [rows, K / 32]: four bytes, each plus `BIAS`, to 254 (NaN: 255)."""
    rows = padded(scales.shape[0], 64)
    biased = torch.where(scales == 255, 255, (scales.int() + BIAS).clamp_(max=254)).to(torch.uint8)
    biased = pad(biased, (0, padded(k) // 32 - scales.shape[1], 0, rows - scales.shape[0]))
    return biased.contiguous().view(torch.int32).T.contiguous()


def unpack_e8m0(packed: Tensor, rows: int, k: int) -> Tensor:
    """Return the E8M0 bytes uint8 [rows, K / 32] of `pack_e8m0`."""
    blocks, padded_rows = packed.shape
    biased = packed.T.flatten().view(torch.uint8).view(padded_rows, 4 * blocks)[:rows, : k // 32].int()
    return torch.where(biased == 255, 255, biased - BIAS).to(torch.uint8)
