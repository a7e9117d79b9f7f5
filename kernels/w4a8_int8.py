"""The description of the w4a8_int8 kernel: int8 activations by token, int4 weights in groups, widened to int8."""

from __future__ import annotations

from moetune.kernel import Limits
from moetune.model.format import FORMATS

from .grouped import Grouped
from .int4_variants import variants

_PLAIN = Grouped(
    name="w4a8_int8",
    format=FORMATS["w4a8_int8"],
    limits=Limits(floor=4e-3, cap=3e-2),
    implementation="moetune_kernels.triton_grouped:W4a8Int8",
    sources=("packing.py", "triton_packed.py", "formats/int4.py", "formats/nibbles.py", "formats/int8.py"),
    defaults=(
        (8, (16, 64, 128, 4, 4, 1), (16, 128, 128, 3, 4, 1)),
        (24, (32, 256, 128, 4, 4, 1), (32, 256, 128, 4, 4, 8)),
        (100, (96, 128, 128, 4, 4, 8), (32, 256, 128, 4, 4, 8)),
        (float("inf"), (96, 128, 128, 3, 4, 8), (192, 64, 128, 3, 4, 8)),
    ),
    least_sm=80,
    amd=("gfx942", "gfx950", "gfx1250"),
    tile_k=(128,),
    row_bytes=1,
    packed=True,
    groups=True,
)
KERNELS = variants(_PLAIN)
"""By name: groups of 128, 64 (`_g64`) and 32 (`_g32`), with and without zero points (`_zp`)."""
