"""The description of the fp8_block kernel: e4m3 activations by token and 128, e4m3 weights by 128 x 128 block."""

from __future__ import annotations

from moetune.kernel import Limits
from moetune.model.format import FORMATS

from .grouped import Grouped

KERNEL = Grouped(
    name="fp8_block",
    format=FORMATS["fp8_block"],
    limits=Limits(floor=4e-3, cap=1e-2),
    implementation="moetune_kernels.triton_grouped:Fp8Block",
    sources=("formats/fp8.py",),
    defaults=(
        (8, (16, 128, 128, 5, 4, 1), (16, 128, 128, 5, 4, 1)),
        (24, (32, 128, 128, 5, 4, 1), (32, 128, 128, 5, 4, 1)),
        (float("inf"), (96, 256, 128, 4, 8, 8), (96, 128, 128, 3, 4, 8)),
    ),
    least_sm=89,
    amd=("gfx942", "gfx950", "gfx1250"),
    tile_k=(128,),
    row_bytes=1,
    groups=True,
)
