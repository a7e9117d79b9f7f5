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

    def rule(self, problem: Problem, target: Target) -> dict[str, int]:
        """Return the published default of vLLM's Triton MoE kernel for bf16 (0.33.0, by tokens), prefetch 0."""
        tokens = problem.tokens
        small = tokens <= 64
        return {
            "tile_m": 16 if tokens <= 32 else 32 if tokens <= 96 else 64 if tokens <= 512 else 128,
            "tile_n": 64 if small else 128,
            "tile_k": 128 if small else 64,
            "num_buffers": 4 if tokens <= 32 else 3,
            "prefetch": 0,
            "num_warps": 4 if tokens <= 128 else 8,
            "group_m": 16 if tokens // problem.experts > 128 else 1,
        }

    def held(self, config: Config) -> dict[str, int]:
        """Return the accumulator and, with prefetch 1, the A tile on its way."""
        tile = {"prefetched tile": config["tile_m"] * config["tile_k"] // 2} if config["prefetch"] else {}
        return super().held(config) | tile

    def shared_bytes(self, stage: int, config: Config, problem: Problem, target: Target) -> int:
        """Return the bytes of the operand rings.

        A ring is `num_buffers` deep where the product (wgmma, from tile_m 64 on) or the copy (gfx950, gfx1250:
        straight to shared memory) is asynchronous, one less where operands pass through registers. Prefetch 1
        keeps one A tile outside the ring. Of 160 configs compiled for sm_90 by Triton 3.9, 159 are exact; one
        with small rings stores its output tile through 8 KB more.
        """
        row = config["tile_k"] * 2  # bytes
        deep = config["tile_m"] >= 64 if target.arch == "sm_90" else target.arch in ("gfx950", "gfx1250")
        depth = config["num_buffers"] - (0 if deep else 1)
        return row * (depth * config["tile_n"] + config["tile_m"] * (1 if config["prefetch"] else depth))


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
