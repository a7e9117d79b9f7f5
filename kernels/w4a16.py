"""The description of the w4a16 kernel: bf16 activations, int4 weights in groups."""

from __future__ import annotations

from moetune.kernel import Limits
from moetune.model.format import FORMATS

from .grouped import Grouped
from .int4_variants import variants

_PLAIN = Grouped(
    name="w4a16",
    format=FORMATS["w4a16"],
    limits=Limits(floor=2e-3, cap=1e-2),
    implementation="moetune_kernels.triton_grouped:W4a16",
    sources=("packing.py", "triton_packed.py", "formats/int4.py", "formats/nibbles.py"),
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
KERNELS = variants(_PLAIN)
"""By name: groups of 128, 64 (`_g64`) and 32 (`_g32`), with and without zero points (`_zp`)."""
