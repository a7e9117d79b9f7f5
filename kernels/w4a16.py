"""The description of the w4a16 kernel: bf16 activations, int4 weights in groups."""

from __future__ import annotations

from dataclasses import replace

from moetune.model.format import FORMATS

from . import a16w4
from .int4_variants import variants

_PLAIN = replace(
    a16w4.KERNEL,
    name="w4a16",
    format=FORMATS["w4a16"],
    implementation="moetune_kernels.triton_grouped:W4a16",
    sources=("packing.py", "triton_packed.py", "formats/int4.py", "formats/nibbles.py"),
)
KERNELS = variants(_PLAIN)
"""By name: groups of 128, 64 (`_g64`) and 32 (`_g32`), with and without zero points (`_zp`)."""
