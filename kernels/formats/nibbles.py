"""Four-bit codes, two in a byte: the even k in the low nibble."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_nibbles(codes: Tensor) -> Tensor:
    """Return uint8 [..., K / 2] of codes 0..15, uint8 [..., K]."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Return the codes uint8 [..., K] of uint8 [..., K / 2]."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def pairs(codes: Tensor) -> Tensor:
    """Return bytes [..., 65536] of codes [..., 256]: every code beside every other."""
    both = codes.unsqueeze(-2) | codes.unsqueeze(-1) << 4
    return both.flatten(-2)
