"""A kernel that compiles ahead, and whose compiler fails in every way."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from moetune_kernels.cpu import CpuKernel

from moetune.kernel import Constraint
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target

WAYS = ("compiles", "aborts", "hangs", "raises", "too_much_shared_memory", "disk_full")


class CompiledKernel(CpuKernel):
    """The CPU kernel with an axis that says how compiling ends."""

    name = "compiled"
    compiles_ahead = True
    implementation = "compiled.code:Compiled"

    def axes(self, stage: int) -> Mapping[str, tuple[int, ...]]:
        return {"tile_m": (16,), "tile_n": (128,), "tile_k": (64,), "way": (0, 1, 3, 4) if stage == 1 else (0,)}

    def constraints(self, stage: int) -> tuple[Constraint, ...]:
        return ()

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        return Config.of(tile_m=16, tile_n=128, tile_k=64, way=0)

    def binary(self, stage: int, config: Config, problem: Problem) -> Hashable:
        return config


KERNEL = CompiledKernel()
