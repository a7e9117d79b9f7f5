"""A kernel whose configs name the fault they commit."""

from __future__ import annotations

from collections.abc import Mapping

from moetune_kernels.cpu import CpuKernel

from moetune.kernel import Constraint
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target

FAULTS = (
    "none", "writes_outside", "reads_outside", "hangs", "aborts", "nan", "zeros", "wrong_row", "wrong_tile",
    "differs", "raises", "out_of_memory", "changes_weights", "unwritten", "aborts_in_layers", "aborts_elsewhere",
    "wrong_elsewhere", "changes_weights_elsewhere", "changes_weights_then_raises",
    "writes_outside_then_raises", "exits",
)  # fmt: skip
EXPECTED = {
    "none": "ok", "writes_outside": "out_of_bounds", "reads_outside": "out_of_bounds", "hangs": "timeout",
    "aborts": "runtime_error", "nan": "inaccurate", "zeros": "inaccurate", "wrong_row": "inaccurate",
    "wrong_tile": "inaccurate", "differs": "nondeterministic", "raises": "runtime_error",
    "out_of_memory": "resource_error", "changes_weights": "out_of_bounds", "unwritten": "inaccurate",
    "changes_weights_then_raises": "out_of_bounds", "writes_outside_then_raises": "out_of_bounds",
    "exits": "runtime_error", "aborts_in_layers": "ok", "aborts_elsewhere": "ok", "wrong_elsewhere": "ok",
    "changes_weights_elsewhere": "ok",
}  # fmt: skip


class FaultyKernel(CpuKernel):
    """The CPU kernel with one more axis in stage 1: the fault."""

    name = "faulty"
    implementation = "faulty.code:Faulty"

    def axes(self, stage: int) -> Mapping[str, tuple[int, ...]]:
        axes: dict[str, tuple[int, ...]] = {"tile_m": (16,), "tile_n": (128, 256), "tile_k": (64,)}
        if stage == 1:
            axes = {**axes, "tile_n": (128,), "fault": tuple(range(len(FAULTS)))}
        return axes

    def constraints(self, stage: int) -> tuple[Constraint, ...]:
        return ()

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        config = Config.of(tile_m=16, tile_n=128, tile_k=64)
        return Config.of(**config, fault=0) if stage == 1 else config


class BrokenDefault(FaultyKernel):
    """A kernel whose default is wrong from 16 tokens on."""

    name = "broken"

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        config = super().default(stage, problem, target)
        if stage == 1 and problem.tokens >= 16:
            return config.replace(fault=FAULTS.index("zeros"))
        return config


KERNEL = FaultyKernel()
BROKEN = BrokenDefault()
