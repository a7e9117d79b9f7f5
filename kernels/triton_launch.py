"""One launch of a Triton function, over tensors or over what stands for them, and the tensors of a problem."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
import triton

from moetune.device import ahead
from moetune.model.target import Target

FIXED = {"num_warps": 4, "enable_fp_fusion": True}
INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter, which multiplies bf16 as bit patterns: they widen to fp32 there."""


class Slot(NamedTuple):
    """One tensor of a problem; kernels write an `output`, and only read the others."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    output: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


class Call(NamedTuple):
    """One launch of a JIT function."""

    function: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def launch(self) -> None:
        """Run it on the current stream."""
        self.function[self.grid](*self.arguments, **self.options)

    def compile(self, target: Target) -> Any:
        """Compile it for a target, from mock arguments."""
        return ahead.warm(self.function, self.arguments, self.options, target)
