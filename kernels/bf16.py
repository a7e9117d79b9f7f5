"""The description of the bf16 kernel: bf16 activations and weights, fp32 sums."""

from __future__ import annotations

from dataclasses import dataclass

from moetune.kernel import Limits
from moetune.model.config import Config
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.target import Target

from .grouped import Grouped


@dataclass(frozen=True)
class Bf16(Grouped):
    """Grouped bf16 in Triton."""

    def rule(self, problem: Problem) -> dict[str, int]:
        """Return the published default of vLLM's Triton MoE kernel for bf16 (0.33.0, by tokens), prefetch 0."""
        tokens = problem.tokens
        small = tokens <= 64
        return {
            "tile_m": 16 if tokens <= 32 else 32 if tokens <= 96 else 64 if tokens <= 512 else 128,
            "tile_n": 64 if small else 128,
            "tile_k": 128 if small else 64,
            "num_buffers": 4 if tokens <= 32 else 3,
            "num_warps": 4 if tokens <= 128 else 8,
            "group_m": 16 if tokens // problem.experts > 128 else 1,
        }

    def shared_bytes(self, stage: int, config: Config, problem: Problem, target: Target) -> int:
        """Return the bytes of the operand rings.

        A ring is `num_buffers` deep where the product reads shared memory asynchronously (wgmma: tile_m from 64
        on), one less where it copies to registers first. Prefetch 1 keeps one A tile outside the ring.
        """
        row = config["tile_k"] * 2  # bytes
        wgmma = target.arch == "sm_90" and config["tile_m"] >= 64
        depth = config["num_buffers"] if wgmma else config["num_buffers"] - 1
        ring = depth * config["tile_n"] * row
        return ring + config["tile_m"] * row * (1 if config["prefetch"] else depth)


KERNEL = Bf16(
    name="bf16",
    format=FORMATS["bf16"],
    limits=Limits(floor=2e-3, cap=6e-3),
    implementation="moetune_kernels.triton_bf16:Bf16",
    sources=("triton_core.py", "triton_base.py", "triton_bf16.py"),
    least_sm=80,
    amd=("gfx942", "gfx950", "gfx1250"),
    tile_n=((32, 64, 128, 256), (32, 64, 128, 256)),
    tile_k=(32, 64, 128, 256, 512),
)
