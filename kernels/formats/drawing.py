"""Large tensors filled from tables of 65536 equally likely values: 16 random bits an element, never a float copy."""

from __future__ import annotations

import torch
from torch import Tensor

SIGMA = 0.02
"""Standard deviation of the weights that a drawn tensor stands for."""

CHUNK = 1 << 25
"""Elements filled at once: bounds what is held beside the tensor, 6 bytes each."""


def sample(*shape: int) -> Tensor:
    """Return N(0, SIGMA) in fp32 on the CPU, the same at each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * SIGMA


def quantiles(values: Tensor, count: int = 1 << 16) -> Tensor:
    """Return [count] values that, equally likely, are distributed like those given, sorted."""
    ordered = values.flatten().sort().values
    return ordered[(torch.arange(count) * 2 + 1) * ordered.numel() // (2 * count)]


def indices(count: int, generator: torch.Generator) -> Tensor:
    """Return int32 [count], uniform over 0..65535, on the generator's device."""
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    return words.view(torch.int16)[:count].int().bitwise_and_(0xFFFF)


def fill(target: Tensor, table: Tensor, generator: torch.Generator) -> None:
    """Fill a contiguous tensor with the entries of a table [65536] of its dtype, each equally likely."""
    table = table.to(target.device)
    for part in torch.split(target.view(-1), CHUNK):
        torch.index_select(table, 0, indices(part.numel(), generator), out=part)
