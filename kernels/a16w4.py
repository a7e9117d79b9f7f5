"""The description of the a16w4 kernel: bf16 activations, MXFP4 weights."""

from __future__ import annotations

from moetune.kernel import Limits
from moetune.model.format import FORMATS

from .grouped import Grouped

KERNEL = Grouped(
    name="a16w4",
    format=FORMATS["a16w4"],
    limits=Limits(floor=2e-3, cap=1e-2),
    implementation="moetune_kernels.triton_grouped:A16w4",
    sources=("packing.py", "triton_packed.py", "formats/mx.py", "formats/nibbles.py"),
    defaults=(
        (8, (16, 128, 128, 3, 4, 1), (16, 128, 128, 3, 4, 1)),
        (24, (32, 128, 128, 3, 4, 1), (32, 128, 128, 3, 4, 8)),
        (float("inf"), (96, 256, 128, 3, 16, 8), (96, 256, 128, 3, 8, 8)),
    ),
    least_sm=80,
    amd=("gfx942", "gfx950", "gfx1250"),
    tile_k=(128, 256),
    row_bytes=2,
    packed=True,
)
