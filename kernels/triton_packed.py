"""Four-bit weights in Triton: words of eight codes, prepacked so that they widen in registers to a left operand.

A block of 64 weight rows x 128 of K is 64 x 16 words of 32 bits, contiguous (`packing` makes it). Word t x 4 + c of a
row holds the eight elements that thread t of four holds of K elements 32 c to 32 c + 31 in the fragment of a 64 x 16
left operand (PTX ISA, wgmma register fragments): k = 32 c + 16 s + 8 h + 2 t + p for s, h, p in 0, 1. So a thread
reads 16 contiguous bytes for 128 elements, and no widened weight passes through shared memory.
"""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl

UNBIAS = tl.constexpr(2.0**16)
"""What a product of e2m1 weights is short of: their scales are stored times 2^110, and bits alone give 2^-126."""

# Code q of an int4 under bf16's exponent of 128 is 128 + q; $9 holds -(128 + zero) twice, $10 the scale twice.
_INT4 = tl.constexpr("""
{
    .reg .b32 a, b, c, d, s, m, x;
    mov.b32 m, 0x000F000F;
    mov.b32 x, 0x43004300;
    lop3.b32 a, $8, m, x, 0xEA;
    shr.b32 s, $8, 4;
    lop3.b32 b, s, m, x, 0xEA;
    shr.b32 s, $8, 8;
    lop3.b32 c, s, m, x, 0xEA;
    shr.b32 s, $8, 12;
    lop3.b32 d, s, m, x, 0xEA;
    add.rn.bf16x2 a, a, $9;
    add.rn.bf16x2 b, b, $9;
    add.rn.bf16x2 c, c, $9;
    add.rn.bf16x2 d, d, $9;
    mul.rn.bf16x2 a, a, $10;
    mul.rn.bf16x2 b, b, $10;
    mul.rn.bf16x2 c, c, $10;
    mul.rn.bf16x2 d, d, $10;
    mov.b32 {$0, $1}, a;
    mov.b32 {$2, $3}, b;
    mov.b32 {$4, $5}, c;
    mov.b32 {$6, $7}, d;
}
""")

# Sign and e2m1 of elements 0 to 2 lie 3 bits apart at bits 15, 8-6; element 3 has bits 14, 13, 11 and 10. $9 is the
# scale twice.
_E2M1 = tl.constexpr("""
{
    .reg .b32 a, b, c, d, s, m;
    mov.b32 m, 0x81C081C0;
    and.b32 a, $8, m;
    shl.b32 b, $8, 3;
    and.b32 b, b, m;
    shl.b32 c, $8, 6;
    and.b32 c, c, m;
    shl.b32 d, $8, 1;
    and.b32 d, d, 0x80008000;
    shr.b32 s, $8, 5;
    lop3.b32 d, s, 0x01000100, d, 0xEA;
    shr.b32 s, $8, 4;
    lop3.b32 d, s, 0x00C000C0, d, 0xEA;
    mul.rn.bf16x2 a, a, $9;
    mul.rn.bf16x2 b, b, $9;
    mul.rn.bf16x2 c, c, $9;
    mul.rn.bf16x2 d, d, $9;
    mov.b32 {$0, $1}, a;
    mov.b32 {$2, $3}, b;
    mov.b32 {$4, $5}, c;
    mov.b32 {$6, $7}, d;
}
""")

_INT8 = tl.constexpr("""
{
    .reg .b32 s;
    shl.b32 s, $2, 4;
    and.b32 $0, s, 0xF0F0F0F0;
    and.b32 $1, $2, 0xF0F0F0F0;
}
""")


# $3 holds the zero points of the four bytes; bit 7 keeps a byte's borrow from the next; the exclusive or puts it right.
_INT8_LESS_ZERO = tl.constexpr("""
{
    .reg .b32 s, t;
    and.b32 s, $2, 0x0F0F0F0F;
    or.b32 s, s, 0x80808080;
    sub.u32 s, s, $3;
    xor.b32 $0, s, 0x80808080;
    shr.u32 t, $2, 4;
    and.b32 t, t, 0x0F0F0F0F;
    or.b32 t, t, 0x80808080;
    sub.u32 t, t, $3;
    xor.b32 $1, t, 0x80808080;
}
""")


@triton.jit
def _spread(scale, ROWS: tl.constexpr, BLOCKS: tl.constexpr, EACH: tl.constexpr):
    """Repeat [ROWS, BLOCKS x EACH] for every word: [ROWS, BLOCKS x 16], each for the 4 / EACH chunks it covers."""
    scale = tl.reshape(scale, (ROWS, BLOCKS, 1, EACH, 1))
    return tl.reshape(tl.broadcast_to(scale, (ROWS, BLOCKS, 4, EACH, 4 // EACH)), (ROWS, BLOCKS * 16))


@triton.jit
def _spread_pairs(pairs, ROWS: tl.constexpr, BLOCKS: tl.constexpr, EACH: tl.constexpr):
    """Repeat 16-bit scales for every word, twice a word: int32 [ROWS, BLOCKS x 16] of int32 [BLOCKS x EACH, ROWS / 2].

    A pair holds the scales of rows j and j + 8 of 16: those of one thread.
    """
    pairs = pairs.to(tl.int32)
    pairs = tl.join((pairs & 0xFFFF) * 0x00010001, ((pairs >> 16) & 0xFFFF) * 0x00010001)
    pairs = tl.reshape(pairs, (BLOCKS * EACH, ROWS // 16, 8, 2))
    pairs = tl.reshape(tl.permute(pairs, (1, 3, 2, 0)), (ROWS, BLOCKS * EACH))
    return _spread(pairs, ROWS, BLOCKS, EACH)


@triton.jit
def _in_order(parts, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Return [ROWS, BLOCKS x 128] in the order of K of [ROWS, words, s, h, p]."""
    parts = tl.reshape(parts, (ROWS, BLOCKS, 4, 4, 2, 2, 2))
    return tl.reshape(tl.permute(parts, (0, 1, 3, 4, 5, 2, 6)), (ROWS, BLOCKS * 128))


@triton.jit
def _joined(e0, e1, e2, e3, e4, e5, e6, e7):
    """Return [..., s, h, p] of eight tensors, p running fastest."""
    even = tl.join(tl.join(e0, e4), tl.join(e2, e6))
    odd = tl.join(tl.join(e1, e5), tl.join(e3, e7))
    return tl.join(even, odd)


@triton.jit
def widen_int4(words, scale, zero, ROWS: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, ASM: tl.constexpr):
    """Return (q - zero) x scale in bf16 [ROWS, BLOCKS x 128].

    words int32 [ROWS, BLOCKS x 16]; scale int32 [BLOCKS x 128 / GROUP, ROWS / 2], pairs of bf16; zero uint8
    [BLOCKS x 128 / GROUP, ROWS], or None: 8.
    """
    EACH: tl.constexpr = 128 // GROUP
    bits = _spread_pairs(scale, ROWS, BLOCKS, EACH)
    if zero is None:
        offset = tl.full((ROWS, BLOCKS * 16), -0x3CF73CF8, tl.int32)  # 0xC308C308
    else:
        offset = _spread(tl.trans(zero).to(tl.int32), ROWS, BLOCKS, EACH) * 0x00010001 - 0x3CFF3D00
    if ASM:
        e0, e1, e2, e3, e4, e5, e6, e7 = tl.inline_asm_elementwise(
            _INT4,
            "=h,=h,=h,=h,=h,=h,=h,=h,r,r,r",
            [words, offset, bits],
            dtype=(
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
            ),
            is_pure=True,
            pack=1,
        )
        parts = _joined(e0, e1, e2, e3, e4, e5, e6, e7)
    else:
        code = _codes(words, ROWS, BLOCKS)
        less = (offset & 127)[:, :, None, None, None]
        factor = (bits & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)[:, :, None, None, None]
        parts = _bf16((code - less).to(tl.float32) * factor.to(tl.float32))
    return _in_order(parts, ROWS, BLOCKS)


@triton.jit
def _codes(words, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Return the codes 0..15 of int4 words, int32 [ROWS, words, s, h, p]."""
    s = (tl.arange(0, 2) * 8)[None, None, :, None, None]
    h = (tl.arange(0, 2) * 4)[None, None, None, :, None]
    p = (tl.arange(0, 2) * 16)[None, None, None, None, :]
    return (words[:, :, None, None, None] >> (s + h + p)) & 15


@triton.jit
def _bf16(x):
    """Round fp32 to bf16, to nearest even (the interpreter would cut off)."""
    bits = x.to(tl.int32, bitcast=True)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def widen_e2m1(words, scale, ROWS: tl.constexpr, BLOCKS: tl.constexpr, ASM: tl.constexpr):
    """Return the elements times their scales times 2^-16 in bf16 [ROWS, BLOCKS x 128].

    words int32 [ROWS, BLOCKS x 16]; scale int32 [BLOCKS, ROWS], four bytes for the 32-element blocks of 128: E8M0
    bytes plus 110, at most 254. Exact while a scale is at most 2^17.
    """
    even = tl.join((scale & 255) * 0x00800080, ((scale >> 16) & 255) * 0x00800080)
    odd = tl.join(((scale >> 8) & 255) * 0x00800080, ((scale >> 24) & 255) * 0x00800080)
    each = tl.reshape(tl.permute(tl.join(even, odd), (1, 0, 2, 3)), (ROWS, BLOCKS * 4))
    bits = _spread(each, ROWS, BLOCKS, 4)
    if ASM:
        e0, e1, e2, e3, e4, e5, e6, e7 = tl.inline_asm_elementwise(
            _E2M1,
            "=h,=h,=h,=h,=h,=h,=h,=h,r,r",
            [words, bits],
            dtype=(
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
            ),
            is_pure=True,
            pack=1,
        )
        parts = _joined(e0, e1, e2, e3, e4, e5, e6, e7)
    else:
        s = (tl.arange(0, 2) * 2)[None, None, :, None, None]
        element = s + tl.arange(0, 2)[None, None, None, :, None]
        half = words[:, :, None, None, None] >> (tl.arange(0, 2) * 16)[None, None, None, None, :]
        plain = (half << (element * 3)) & 0x81C0
        last = ((half << 1) & 0x8000) | ((half >> 5) & 0x0100) | ((half >> 4) & 0x00C0)
        code = tl.where(element == 3, last, plain)
        value = (code << 16).to(tl.float32, bitcast=True)
        factor = ((bits & 0xFFFF) << 16).to(tl.float32, bitcast=True)[:, :, None, None, None]
        parts = _bf16(value * 1.329227995784916e36 * factor * 7.52316384526264e-37)  # x 2^120, x 2^-120: no subnormals
    return _in_order(parts, ROWS, BLOCKS)


@triton.jit
def widen_int8(packed, zero, ROWS: tl.constexpr, BLOCK: tl.constexpr, ASM: tl.constexpr):
    """Return int8 [ROWS, BLOCK] of uint8 [ROWS, BLOCK / 2] of codes: 16 x a signed code, or the code less its zero.

    Byte t x BLOCK / 8 + 4 c + b holds k = 32 c + 4 t + b in its low and 16 more in its high nibble: what thread t of
    four holds in the fragment of an 8-bit left operand. zero uint8 [1, ROWS], or None: the codes are signed.
    """
    if zero is None:
        if ASM:
            low, high = tl.inline_asm_elementwise(
                _INT8, "=r,=r,r", [packed], dtype=(tl.int8, tl.int8), is_pure=True, pack=4
            )
        else:
            low = (packed << 4).to(tl.int8, bitcast=True)
            high = (packed & 0xF0).to(tl.int8, bitcast=True)
    else:
        zero = tl.broadcast_to(tl.trans(zero), (ROWS, BLOCK // 2))
        if ASM:
            low, high = tl.inline_asm_elementwise(
                _INT8_LESS_ZERO, "=r,=r,r,r", [packed, zero], dtype=(tl.int8, tl.int8), is_pure=True, pack=4
            )
        else:
            low = ((packed & 15) - zero).to(tl.int8, bitcast=True)
            high = ((packed >> 4) - zero).to(tl.int8, bitcast=True)
    both = tl.reshape(tl.join(low, high), (ROWS, 4, BLOCK // 32, 4, 2))
    return tl.reshape(tl.permute(both, (0, 2, 4, 1, 3)), (ROWS, BLOCK))
