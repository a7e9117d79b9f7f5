"""A kernel whose two stages share one config, and which cannot compile ahead."""

from __future__ import annotations

from collections.abc import Mapping

from moetune_kernels.cpu import CpuKernel

from moetune.kernel import Constraint
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target


class CoupledKernel(CpuKernel):
    """The CPU kernel under one config."""

    name = "coupled"
    stages = (0,)
    coupling = "config"
    compiles_ahead = False
    implementation = "coupled.code:Coupled"

    def axes(self, stage: int) -> Mapping[str, tuple[int, ...]]:
        return {"tile_m": (16, 32), "tile_n": (64, 128), "tile_k": (32, 64)}

    def constraints(self, stage: int) -> tuple[Constraint, ...]:
        return ()

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        return Config.of(tile_m=16, tile_n=64, tile_k=32)


KERNEL = CoupledKernel()
