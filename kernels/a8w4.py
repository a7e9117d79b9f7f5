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

    def rule(self, problem: Problem) -> dict[str, int]:
        """Return our own rule, of the kind of vLLM's: tile_m by tokens, K tiles of 128 elements (64 bytes of w).

        4-bit weights halve a tile's bytes, so that tiles are twice as wide as bf16's at few tokens.
        """
        tokens = problem.tokens
        return {
            "tile_m": 16 if tokens <= 256 else 32 if tokens <= 1024 else 64 if tokens <= 4096 else 128,
            "tile_n": 128,
            "tile_k": 128,
            "num_buffers": 4 if tokens <= 256 else 3,
            "num_warps": 4 if tokens <= 1024 else 8,
            "group_m": 16 if tokens // problem.experts > 128 else 1,
        }

    def held(self, config: Config) -> dict[str, int]:
        """Return the accumulator and both operand tiles widened to bf16: no NVIDIA core here scales by itself."""
        tile_k = config["tile_k"]
        widened = {"widened tiles": (config["tile_m"] + config["tile_n"]) * tile_k // 2}
        return super().held(config) | widened

    def shared_bytes(self, stage: int, config: Config, problem: Problem, target: Target) -> int:
        """Return the bytes of the operand rings, on sm_90 with the widened weights that wgmma reads.

        On sm_90 operands pass through registers, so that a ring is one tile less than `num_buffers` deep; scales
        have a ring where a row has at least 4 bytes of them a step. Prefetch 1 keeps one A tile outside the ring,
        and none where wgmma takes A from registers. Never above what Triton 3.9 compiled of 120 configs: 1 KB of
        scratch below it, with prefetch 1 up to half an A tile. Elsewhere the rings alone, a lower bound.
        """
        tile_m, tile_n, tile_k = config["tile_m"], config["tile_n"], config["tile_k"]
        left, right = tile_m * tile_k, tile_n * tile_k // 2  # bytes
        if target.arch != "sm_90":
            depth = config["num_buffers"] - (1 if target.vendor == "nvidia" else 0)
            return depth * right + left * (1 if config["prefetch"] else depth)
        wgmma, depth = tile_m >= 64, config["num_buffers"] - 1
        groups = tile_k // 32 if tile_k >= 128 else 0
        need = depth * (right + tile_n * groups) + (2 * tile_n * tile_k if wgmma else 0)
        if config["prefetch"]:
            return need + (0 if wgmma else left)
        return need + depth * (left + tile_m * groups)


KERNEL = A8w4(
    name="a8w4",
    format=FORMATS["a8w4"],
    limits=Limits(floor=4e-3, cap=1e-2),
    implementation="moetune_kernels.triton_a8w4:A8w4",
    sources=("formats.py", "triton_core.py", "triton_base.py", "triton_mx.py", "triton_a8w4.py"),
    least_sm=90,
    amd=("gfx950", "gfx1250"),
    tile_n=((64, 128, 256), (32, 64, 128, 256)),
    tile_k=(64, 128, 256, 512),
)
