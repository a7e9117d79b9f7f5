"""Number formats of activations and weights: quantise, dequantise and draw, in plain torch on any device.

Layouts are the logical ones, K in its natural order and contiguous; a kernel may keep its weights in another.
"""

from .fp8 import (
    GROUP,
    dequantise_e4m3,
    dequantise_e4m3_blocks,
    draw_e4m3_blocks,
    quantise_e4m3,
    quantise_e4m3_blocks,
)
from .int4 import dequantise_int4, draw_int4, quantise_int4
from .int8 import dequantise_int8, draw_int8, quantise_int8
from .mx import (
    BLOCK,
    dequantise_mxfp4,
    dequantise_mxfp8,
    draw_mxfp4,
    quantise_mxfp4,
    quantise_mxfp8,
)
from .nibbles import pack_nibbles, unpack_nibbles

__all__ = [
    "BLOCK",
    "GROUP",
    "dequantise_e4m3",
    "dequantise_e4m3_blocks",
    "dequantise_int4",
    "dequantise_int8",
    "dequantise_mxfp4",
    "dequantise_mxfp8",
    "draw_e4m3_blocks",
    "draw_int4",
    "draw_int8",
    "draw_mxfp4",
    "pack_nibbles",
    "quantise_e4m3",
    "quantise_e4m3_blocks",
    "quantise_int4",
    "quantise_int8",
    "quantise_mxfp4",
    "quantise_mxfp8",
    "unpack_nibbles",
]
