"""The description of the bf16 kernel: bf16 activations and weights, fp32 sums."""

from __future__ import annotations

from moetune.kernel import Limits
from moetune.model.format import FORMATS

from .grouped import Grouped

KERNEL = Grouped(
    name="bf16",
    format=FORMATS["bf16"],
    limits=Limits(floor=2e-3, cap=6e-3),
    implementation="moetune_kernels.triton_grouped:Bf16",
    sources=(),
    defaults=(
        (1, (16, 128, 128, 3, 4, 1), (16, 64, 128, 3, 4, 8)),
        (8, (16, 64, 256, 5, 4, 8), (16, 128, 128, 3, 4, 8)),
        (24, (32, 256, 128, 3, 4, 1), (32, 256, 128, 3, 8, 8)),
        (100, (96, 128, 64, 4, 8, 1), (96, 128, 64, 4, 4, 8)),
        (float("inf"), (192, 256, 64, 3, 8, 1), (96, 128, 64, 4, 8, 1)),
    ),
    least_sm=80,
    amd=("gfx942", "gfx950", "gfx1250"),
    tile_k=(32, 64, 128, 256),
    row_bytes=2,
)
