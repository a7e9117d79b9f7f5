"""The description of the a8w4 kernel: MXFP8 activations, MXFP4 weights, fp32 sums."""

from __future__ import annotations

from dataclasses import dataclass

from moetune.kernel import Limits
from moetune.model.config import Config
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.target import Target

from . import a16w4
from .grouped import Grouped, scales_natively


@dataclass(frozen=True)
class A8w4(Grouped):
    """Grouped MXFP8 x MXFP4: in bf16, as a16w4, where matrix instructions take no scales."""

    def wish(self, stage: int, problem: Problem, target: Target) -> dict[str, int]:
        """Return the fitted rule, or with native scales one that no GPU has measured: short steps, rows prefetched."""
        wish = super().wish(stage, problem, target)
        if not scales_natively(target.arch):
            return wish
        rows = problem.expected_rows / problem.experts
        tile_m = 16 if rows <= 8 else 32 if rows <= 32 else 64
        return wish | {"tile_m": tile_m, "tile_n": 256, "tile_k": 128, "prefetch": 1, "num_warps": 4}

    def shared_bytes(self, stage: int, config: Config, problem: Problem, target: Target) -> int:
        """Return the bytes of the operand rings: with native scales of e4m3 rows and 4-bit weights, a lower bound."""
        if not scales_natively(target.arch):
            return super().shared_bytes(stage, config, problem, target)
        tile_k, prefetch = config["tile_k"], config["prefetch"]
        depth = config["num_buffers"] - (1 if target.vendor == "nvidia" else 0)
        rows = config["tile_m"] * tile_k
        return depth * config["tile_n"] * tile_k // 2 + rows * (1 if prefetch else depth)

    def exact(self, target: Target) -> bool:
        """Return whether tiles must divide what they cover: scaled instructions have no masks."""
        return scales_natively(target.arch)


KERNEL = A8w4(
    name="a8w4",
    format=FORMATS["a8w4"],
    limits=Limits(floor=4e-3, cap=1e-2),
    implementation="moetune_kernels.triton_grouped:A8w4",
    sources=(
        "packing.py", "triton_packed.py", "triton_scaled.py",
        "formats/mx.py", "formats/nibbles.py", "formats/drawing.py",
    ),
    defaults=a16w4.KERNEL.defaults,
    least_sm=80,
    amd=("gfx942", "gfx950", "gfx1250"),
    tile_k=(128, 256),
    row_bytes=2,
    packed=True,
)  # fmt: skip
