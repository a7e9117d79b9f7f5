"""Scales that are no powers of two: the largest magnitude of a group over the largest code.

Divisions are IEEE divisions in fp32, so that every device gives the same bits. A group whose scale would lie below
the least normal number, 2^-126, an all-zero group among them, counts as zero: scale 0. A group with a NaN or an
infinity has the scale NaN. Both have zeros for elements, so that the first dequantises to 0 and the second to NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LEAST = torch.finfo(torch.float32).tiny


def scale_of(amax: Tensor, limit: float) -> Tensor:
    """Return amax / limit, fp32 of the shape of amax."""
    scale = amax / amax.new_tensor(limit)  # a number would become a multiplication by its reciprocal on a GPU
    scale = torch.where(scale < _LEAST, 0.0, scale)
    return torch.where(amax.isfinite(), scale, math.nan)


def in_units(x: Tensor, scale: Tensor) -> Tensor:
    """Return x / scale, and 0 where the scale is 0 or NaN."""
    return torch.where(scale > 0, x / scale, 0.0)
