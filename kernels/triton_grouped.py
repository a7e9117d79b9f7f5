"""The implementations that the descriptions name: a format of rows with a format of weights each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch

from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.model.trial import Resources

from .grouped import scales_natively
from .triton_base import GroupedOperands, GroupedTriton
from .triton_rivals import grouped_mm
from .triton_rows import Bf16Rows, E4m3Rows, Int8Rows, Mxfp8AsBf16, Mxfp8Rows, Rows
from .triton_weights import (
    Bf16Weights,
    E2m1Bytes,
    E2m1Words,
    E4m3Blocks,
    Int4Bytes,
    Int4Words,
    Int8Channels,
    Weights,
)


class Bf16(GroupedTriton):
    """bf16 rows and weights."""

    def __init__(self) -> None:
        super().__init__(Bf16Rows(), Bf16Weights())

    def rivals(self, operands: GroupedOperands, configs: Mapping[int, Config]) -> Mapping[str, Callable[[], None]]:
        """Return torch's own grouped matmul beside the per-expert loop, where it computes the same."""
        shape = operands.problem.shape
        plain = shape.act == "silu" and not (shape.limit or shape.biases or shape.interleaved or shape.router_on_input)
        if not plain or operands.problem.ep > 1:
            return super().rivals(operands, configs)

        def grouped() -> None:
            self.sort(operands, configs[1])
            grouped_mm(operands)

        return {"torch grouped_mm": grouped, **super().rivals(operands, configs)}


class Suited(GroupedTriton, ABC):
    """A grouped kernel whose formats depend on the architecture: by default on that of the device at hand."""

    def __init__(self, arch: str | None = None) -> None:
        super().__init__(*self.formats(_architecture() if arch is None else arch))

    @staticmethod
    @abstractmethod
    def formats(arch: str) -> tuple[Rows, Weights]:
        """Return the formats of rows and weights for an architecture."""

    def compile(self, stage: int, config: Config, problem: Problem, target: Target) -> Resources:
        """Compile for a target, whatever the device at hand."""
        return GroupedTriton.compile(type(self)(target.arch), stage, config, problem, target)

    def isa(self, stage: int, config: Config, problem: Problem, target: Target) -> str:
        """Return the assembly for a target, whatever the device at hand."""
        return GroupedTriton.isa(type(self)(target.arch), stage, config, problem, target)


class Fp8Block(Suited):
    """e4m3 rows with a scale for 128 elements, e4m3 weights in 128 x 128 blocks."""

    @staticmethod
    def formats(arch: str) -> tuple[Rows, Weights]:
        """Return e4m3fnuz for gfx942, whose matrix instructions take that, e4m3fn for the others."""
        dtype = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
        return E4m3Rows(dtype), E4m3Blocks(dtype)


class W8a8Int8(GroupedTriton):
    """int8 rows and int8 weight channels."""

    def __init__(self) -> None:
        super().__init__(Int8Rows(), Int8Channels())


class A16w4(GroupedTriton):
    """bf16 rows, MXFP4 weights."""

    def __init__(self) -> None:
        super().__init__(Bf16Rows(), E2m1Words())


class W4a16(GroupedTriton):
    """bf16 rows, int4 weights."""

    def __init__(self) -> None:
        super().__init__(Bf16Rows(), Int4Words())


class W4a8Int8(GroupedTriton):
    """int8 rows, int4 weights widened to int8."""

    def __init__(self) -> None:
        super().__init__(Int8Rows(), Int4Bytes())


class A8w4(Suited):
    """MXFP8 rows, MXFP4 weights."""

    @staticmethod
    def formats(arch: str) -> tuple[Rows, Weights]:
        """Return both as they are where the architecture scales natively, else rows in bf16 and weights to widen."""
        return (Mxfp8Rows(), E2m1Bytes()) if scales_natively(arch) else (Mxfp8AsBf16(), E2m1Words())


def _architecture() -> str:
    """Return the architecture of the device at hand, as targets name them; sm_0 without one."""
    if not torch.cuda.is_available():
        return "sm_0"
    if torch.version.hip:
        name: str = torch.cuda.get_device_properties().gcnArchName
        return name.partition(":")[0]
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
