"""The description of the a8w4 kernel: MXFP8 activations, MXFP4 weights, fp32 sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moetune.kernel import Limits
from moetune.model.config import Config
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.target import Target

from .grouped import Grouped


@dataclass(frozen=True)
class A8w4(Grouped):
    """Grouped MXFP8 x MXFP4 in Triton."""

    def refusals(self) -> Mapping[str, str]:
        """Return why gfx942 is left out."""
        return {"gfx942": f"{self.name} multiplies by dot_scaled, which Triton's passes cannot compile for gfx942"}

    def rule(self, problem: Problem, target: Target) -> dict[str, int]:
        """Return our own rule: tile_m by the mean rows of an expert, wide and short weight tiles, A prefetched.

        Fitted to trials on an H200 (Qwen3.5-397B-A17B at TP1, 1 to 8192 tokens). Scaled matrix instructions take 128
        elements of K, so that tile_k is 128 where a target has them.
        """
        tokens = problem.tokens
        rows = problem.rows / problem.experts
        return {
            "tile_m": 16 if rows <= 8 else 32 if rows <= 32 else 64,
            "tile_n": 64 if tokens <= 4 else 256,
            "tile_k": 64 if target.arch == "sm_90" else 128,
            "num_buffers": 3,
            "prefetch": 1,
            "num_warps": 4,
            "group_m": 8 if rows > 32 else 1,
        }

    def held(self, config: Config) -> dict[str, int]:
        """Return the accumulator and, with prefetch 1, the A tile on its way."""
        tile = {"prefetched tile": config["tile_m"] * config["tile_k"] // 4} if config["prefetch"] else {}
        return super().held(config) | tile

    def shared_bytes(self, stage: int, config: Config, problem: Problem, target: Target) -> int:
        """Return the bytes of the operand rings and, on sm_90, of the tiles widened to bf16.

        On sm_90 operands pass through registers, so that a ring is one tile less than `num_buffers` deep; from
        tile_k 128 on scales have a ring too, and both widened tiles lie in shared memory. Below, only what wgmma
        (from tile_m 64 on) reads there does. Prefetch 1 keeps A out of the ring. Of 90 configs compiled by Triton 3.9
        all with tile_k from 128 on are exact, and none needs less than this. Elsewhere the rings alone, a lower bound.
        """
        tile_m, tile_n, tile_k = config["tile_m"], config["tile_n"], config["tile_k"]
        prefetch, depth = config["prefetch"], config["num_buffers"] - 1
        left, right = tile_m * tile_k, tile_n * tile_k // 2  # bytes
        if target.arch != "sm_90":
            depth += 0 if target.vendor == "nvidia" else 1
            return depth * right + left * (1 if prefetch else depth)
        if tile_k >= 128:
            left, right = left + left // 32, right + right // 16
            return depth * (right + (0 if prefetch else left)) + 2 * tile_k * (tile_m + tile_n)
        wgmma = tile_m >= 64
        widened = 2 * tile_n * tile_k if wgmma else 0
        return depth * right + widened + ((0 if wgmma else left) if prefetch else depth * left)


KERNEL = A8w4(
    name="a8w4",
    format=FORMATS["a8w4"],
    limits=Limits(floor=4e-3, cap=1e-2),
    implementation="moetune_kernels.triton_a8w4:A8w4",
    sources=(
        "formats.py",
        "triton_core.py",
        "triton_base.py",
        "triton_mx.py",
        "triton_scaled.py",
        "triton_widen.py",
        "triton_a8w4.py",
    ),
    least_sm=90,
    amd=("gfx950", "gfx1250"),
    tile_n=((64, 128, 256), (32, 64, 128, 256)),
    tile_k=(64, 128, 256, 512),
)
