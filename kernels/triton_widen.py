"""MXFP8 and MXFP4 tiles widened to bf16 by bit arithmetic, for NVIDIA GPUs without scaled matrix instructions.

An element's bits, moved under bf16's sign, exponent and mantissa, are the element times a power of two: 2^-120 for
e4m3, 2^-126 for e2m1, subnormals included. The multiplication by the block's scale brings that back, all but 2^-16,
which keeps large scales within bf16: a product of two such tiles is to be multiplied by `UNBIAS`. Everything is
exact up to scales of 2^23 for e4m3 and 2^17 for e2m1; beyond, and for the NaN scale, results are infinite or NaN.
`dot_scaled` computes the same in some 1.4 to 1.7 times the instructions.
"""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl

UNBIAS = tl.constexpr(2.0**32)

# Four bytes to the low nibbles ($0, $1) and the high nibbles ($2, $3), two bf16 a register.
_E2M1 = tl.constexpr("""
{
    .reg .b32 p, q, s, t;
    prmt.b32 p, $4, 0, 0x4140;
    prmt.b32 q, $4, 0, 0x4342;
    shl.b32 s, p, 6;
    and.b32 s, s, 0x01C001C0;
    shl.b32 t, p, 12;
    lop3.b32 $0, t, 0x80008000, s, 0xEA;
    shl.b32 s, q, 6;
    and.b32 s, s, 0x01C001C0;
    shl.b32 t, q, 12;
    lop3.b32 $1, t, 0x80008000, s, 0xEA;
    shl.b32 s, p, 2;
    and.b32 s, s, 0x01C001C0;
    shl.b32 t, p, 8;
    lop3.b32 $2, t, 0x80008000, s, 0xEA;
    shl.b32 s, q, 2;
    and.b32 s, s, 0x01C001C0;
    shl.b32 t, q, 8;
    lop3.b32 $3, t, 0x80008000, s, 0xEA;
}
""")

# Four bytes to four bf16 ($0, $1).
_E4M3 = tl.constexpr("""
{
    .reg .b32 p, q, s;
    prmt.b32 p, $2, 0, 0x1404;
    prmt.b32 q, $2, 0, 0x3424;
    shr.b32 s, p, 4;
    and.b32 s, s, 0x07F007F0;
    lop3.b32 $0, p, 0x80008000, s, 0xEA;
    shr.b32 s, q, 4;
    and.b32 s, s, 0x07F007F0;
    lop3.b32 $1, q, 0x80008000, s, 0xEA;
}
""")


@triton.jit
def _powers(scales, OFFSET: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, EACH: tl.constexpr):
    """Return 2^(scale + OFFSET - 127) in bf16, each of the K / 32 scales of a row EACH times."""
    field = tl.minimum(scales.to(tl.int32) + OFFSET, 255)
    power = (field << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return tl.reshape(tl.broadcast_to(power[:, :, None], (ROWS, K // 32, EACH)), (ROWS, K // 32 * EACH))


@triton.jit
def widen_e4m3(codes, scales, ROWS: tl.constexpr, K: tl.constexpr):
    """Return bf16 [ROWS, K] of e4m3 codes [ROWS, K] and scales [ROWS, K / 32], times 2^-16."""
    source = codes.to(tl.uint8, bitcast=True)
    value = tl.inline_asm_elementwise(_E4M3, "=r,=r,r", [source], dtype=tl.bfloat16, is_pure=True, pack=4)
    return value * _powers(scales, 120 - 16, ROWS, K, 32)


@triton.jit
def widen_e2m1(packed, scales, ROWS: tl.constexpr, K: tl.constexpr):
    """Return bf16 [ROWS, K] of packed e2m1 [ROWS, K / 2] and scales [ROWS, K / 32], times 2^-16."""
    low, high = tl.inline_asm_elementwise(
        _E2M1, "=r,=r,=r,=r,r", [packed], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
    )
    power = _powers(scales, 126 - 16, ROWS, K, 16)
    return tl.reshape(tl.join(low * power, high * power), (ROWS, K))
