"""The description of the w8a8_int8 kernel: int8 activations by token, int8 weights by channel."""

from __future__ import annotations

from moetune.kernel import Limits
from moetune.model.format import FORMATS

from .grouped import Grouped

KERNEL = Grouped(
    name="w8a8_int8",
    format=FORMATS["w8a8_int8"],
    limits=Limits(floor=4e-3, cap=3e-2),
    implementation="moetune_kernels.triton_grouped:W8a8Int8",
    sources=("formats/int8.py",),
    defaults=(
        (1, (16, 64, 256, 3, 4, 8), (16, 128, 256, 3, 4, 1)),
        (8, (16, 128, 256, 3, 4, 1), (16, 128, 256, 3, 4, 1)),
        (24, (32, 256, 256, 3, 8, 8), (48, 64, 128, 3, 4, 8)),
        (100, (96, 128, 128, 4, 8, 1), (160, 128, 128, 3, 4, 8)),
        (float("inf"), (96, 128, 128, 4, 8, 8), (160, 128, 128, 3, 4, 8)),
    ),
    least_sm=80,
    amd=("gfx942", "gfx950", "gfx1250"),
    tile_k=(64, 128, 256),
    row_bytes=1,
)
