"""Quantising rows in Triton: to int8, e4m3 and MXFP8, bit for bit as `formats` does."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

Call = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
"""One launch: JIT function, grid, arguments, options."""

Used = tuple[Any, int] | None
"""Where a kernel reads how many rows count: int32 offsets [experts + 1], and experts; None: all rows do."""

_FIXED = {"enable_fp_fusion": True}
_ELEMENTS = 2048
"""Elements per program of 4 warps: two loads of 16 bytes a thread, and enough programs for a single row."""


@triton.jit
def to_e4m3(x, WIDEN: tl.constexpr, FNUZ: tl.constexpr = False):
    """Round fp32 of at most 448 to e4m3fn (FNUZ: of at most 240 to e4m3fnuz), to nearest, ties to even.

    By hand in the interpreter (WIDEN), which would cut off.
    """
    BIAS: tl.constexpr = 8 if FNUZ else 7
    if WIDEN:
        bits = x.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - ((127 - BIAS) << 3)
        unit = 8192.0 if FNUZ else 16384.0  # the ulp of this is the subnormal spacing, 2^(-2 - BIAS)
        small = (size.to(tl.float32, bitcast=True) + unit).to(tl.int32, bitcast=True) & 15
        code = tl.where(size < ((128 - BIAS) << 23), small, normal)
        sign = (bits >> 24) & 128
        if FNUZ:
            code = tl.where(size > 0x7F800000, 128, tl.where(code == 0, 0, code | sign)).to(tl.uint8)
            rounded = code.to(tl.float8e4b8, bitcast=True)
        else:
            rounded = (tl.where(size > 0x7F800000, 127, code) | sign).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    elif FNUZ:
        rounded = x.to(tl.float8e4b8)
    else:
        rounded = x.to(tl.float8e4nv)
    return rounded


@triton.jit
def scale_of(bits, LIMIT: tl.constexpr):
    """Return the fp32 scale amax / LIMIT of the bits of an amax: 0 below 2^-126, NaN where amax is not finite."""
    scale = tl.div_rn(bits.to(tl.float32, bitcast=True), LIMIT)
    scale = tl.where(scale < 1.1754943508222875e-38, 0.0, scale)
    return tl.where(bits < 0x7F800000, scale, float("nan"))


@triton.jit
def in_units(x, scale):
    """Return fp32 x / scale, and 0 where the scale is 0 or NaN; the two broadcast.

    One division per scale: x times the reciprocal, corrected once by its residue, is the IEEE quotient wherever the
    residue is no subnormal (Markstein, "Computation of elementary functions on the IBM RISC System/6000", 1990).
    """
    divisor = tl.where(scale > 0, scale, 1.0)
    inverse = tl.div_rn(1.0, divisor)
    ratio = x * inverse
    ratio = tl.fma(tl.fma(-ratio, divisor, x), inverse, ratio)
    return tl.where(scale > 0, ratio, 0.0)


@triton.jit
def to_int8(x):
    """Quantise fp32 [ROWS, COLUMNS] by row: int8 codes, and fp32 scales [ROWS] = amax / 127."""
    scale = scale_of(tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1), 127.0)
    # 1.5 x 2^23 has an ulp of 1: adding it rounds to even, and leaves the integer in the low bits
    shifted = in_units(x, scale[:, None]) + 12582912.0
    return shifted.to(tl.int32, bitcast=True).to(tl.int8), scale


@triton.jit
def to_e4m3_groups(x, WIDEN: tl.constexpr, FNUZ: tl.constexpr = False):
    """Quantise fp32 [GROUPS, 128] by group: e4m3 codes, and fp32 scales [GROUPS]: amax / 448, or / 240 (FNUZ)."""
    scale = scale_of(tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1), 240.0 if FNUZ else 448.0)
    return to_e4m3(in_units(x, scale[:, None]), WIDEN, FNUZ), scale


@triton.jit
def in_mx_units(x, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Return fp32 [ROWS, GROUPS x 32] in units of each 32's scale, [ROWS, GROUPS, 32], and E8M0 bytes [ROWS, GROUPS].

    The scale follows the floor rule of `formats`; elements are clamped to +-448. The maximum is taken over the bits,
    where NaN stands above infinity; either gives byte 255.
    """
    block = tl.reshape(x, (ROWS, GROUPS, 32))
    exponent = tl.max(block.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2) >> 23
    byte = tl.where(exponent == 255, 255, tl.maximum(exponent - 8, 0))
    inverse = (tl.maximum(254 - byte, 0) << 23).to(tl.float32, bitcast=True)
    scaled = block * tl.reshape(inverse, (ROWS, GROUPS, 1))
    return tl.where(scaled == scaled, tl.minimum(tl.maximum(scaled, -448.0), 448.0), scaled), byte


@triton.jit
def to_mxfp8(x, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDEN: tl.constexpr):
    """Quantise fp32 [ROWS, GROUPS x 32] to MXFP8: e4m3 codes of the same shape, and E8M0 bytes uint8 [ROWS, GROUPS]."""
    scaled, byte = in_mx_units(x, ROWS, GROUPS)
    return to_e4m3(tl.reshape(scaled, (ROWS, GROUPS * 32)), WIDEN), byte.to(tl.uint8)


@triton.jit
def round_mxfp8(x, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDEN: tl.constexpr):
    """Return fp32 [ROWS, GROUPS x 32] as MXFP8 would hold it, in fp32: exactly a bf16 from an amax of 2^-116 on.

    A block with a NaN or an infinity becomes NaN throughout, a zero comes out positive. The arithmetic is the
    interpreter's too (WIDEN).
    """
    scaled, byte = in_mx_units(x, ROWS, GROUPS)
    # adding 1.5 x 2^(20 + e) to a number of exponent e (of 2^-6 at least) leaves it 3 bits after the leading one
    exponent = tl.maximum(scaled.to(tl.int32, bitcast=True) & 0x7F800000, 121 << 23)
    magic = (exponent + ((20 << 23) | 0x400000)).to(tl.float32, bitcast=True)
    bits = tl.where(byte == 0, 1 << 22, byte << 23)  # 2^-127 is subnormal in fp32
    scale = tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
    rounded = ((scaled + magic) - magic) * tl.reshape(scale, (ROWS, GROUPS, 1))
    return tl.reshape(rounded, (ROWS, GROUPS * 32))


@triton.jit
def rows_used(offsets, rows, experts):
    """Return `rows`, or where `offsets` [experts + 1] are given, the rows that any expert has."""
    used = rows
    if offsets is not None:
        used = tl.load(offsets + experts)
    return used


@triton.jit(do_not_specialize=["rows", "experts"])
def _int8(x, codes, scales, offsets, rows, experts, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    used = rows_used(offsets, rows, experts)
    if tl.program_id(0) * ROWS >= used:
        return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = (row < used)[:, None] & (column < k)[None, :]
    place = row.to(tl.int64)[:, None] * k + column[None, :]
    code, scale = to_int8(tl.load(x + place, mask=live, other=0.0).to(tl.float32))
    tl.store(codes + place, code, mask=live)
    tl.store(scales + row, scale, mask=row < used)


@triton.jit(do_not_specialize=["rows", "experts"])
def _e4m3(x, codes, scales, offsets, rows, experts, k, GROUPS: tl.constexpr, WIDEN: tl.constexpr, FNUZ: tl.constexpr):
    width = tl.cdiv(k, 128)
    groups = rows_used(offsets, rows, experts) * width
    if tl.program_id(0) * GROUPS >= groups:
        return
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    column = (group % width * 128)[:, None] + tl.arange(0, 128)[None, :]
    live = (group < groups)[:, None] & (column < k)
    place = (group // width).to(tl.int64)[:, None] * k + column
    values = tl.load(x + place, mask=live, other=0.0).to(tl.float32)
    code, scale = to_e4m3_groups(values, WIDEN, FNUZ)
    tl.store(codes + place, code, mask=live)
    tl.store(scales + group, scale, mask=group < groups)


@triton.jit(do_not_specialize=["rows", "experts"])
def _mxfp8(x, codes, scales, offsets, rows, experts, k, GROUPS: tl.constexpr, WIDEN: tl.constexpr):
    groups = rows_used(offsets, rows, experts) * (k // 32)
    if tl.program_id(0) * GROUPS >= groups:
        return
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    live = (group < groups)[:, None]
    place = group.to(tl.int64)[:, None] * 32 + tl.arange(0, 32)[None, :]
    values = tl.load(x + place, mask=live, other=0.0).to(tl.float32)
    if scales is None:
        tl.store(codes + place, round_mxfp8(values, GROUPS, 1, WIDEN).to(tl.bfloat16), mask=live)
    else:
        code, byte = to_mxfp8(values, GROUPS, 1, WIDEN)
        tl.store(codes + place, code, mask=live)
        tl.store(scales + group, tl.reshape(byte, (GROUPS,)), mask=group < groups)


def int8_rows(x: Any, codes: Any, scales: Any, rows: int, k: int, interpreted: bool, used: Used = None) -> Call:
    """Return the launch that quantises x bf16 or fp32 [rows, k] to int8 codes and fp32 scales [rows].

    `used` is (offsets, experts) where only the first offsets[experts] rows count; the others are left alone.
    `interpreted` says whether Triton's interpreter will run it.
    """
    columns = triton.next_power_of_2(k)
    height = max(1, 2 * _ELEMENTS // columns)
    options = {"ROWS": height, "COLUMNS": columns, "num_warps": min(16, max(4, columns // 1024))}
    return _int8, (triton.cdiv(rows, height),), _arguments(x, codes, scales, rows, k, used), options | _FIXED


def e4m3_rows(
    x: Any, codes: Any, scales: Any, rows: int, k: int, interpreted: bool, used: Used = None, fnuz: bool = False
) -> Call:
    """Return the launch that quantises x [rows, k] to e4m3 codes and fp32 scales [rows, ceil(k / 128)].

    The codes are e4m3fn, or e4m3fnuz (`fnuz`). Else as `int8_rows`.
    """
    groups = _ELEMENTS // 128
    options = {"GROUPS": groups, "WIDEN": interpreted, "FNUZ": fnuz, "num_warps": 4}
    grid = (triton.cdiv(rows * triton.cdiv(k, 128), groups),)
    return _e4m3, grid, _arguments(x, codes, scales, rows, k, used), options | _FIXED


def mxfp8_rows(x: Any, codes: Any, scales: Any, rows: int, k: int, interpreted: bool, used: Used = None) -> Call:
    """Return the launch that quantises x [rows, k] to e4m3 codes and E8M0 bytes [rows, k / 32]; else as `int8_rows`."""
    groups = _ELEMENTS // 32
    options = {"GROUPS": groups, "WIDEN": interpreted, "num_warps": 4}
    grid = (triton.cdiv(rows * (k // 32), groups),)
    return _mxfp8, grid, _arguments(x, codes, scales, rows, k, used), options | _FIXED


def round_rows(x: Any, rounded: Any, rows: int, k: int, interpreted: bool, used: Used = None) -> Call:
    """Return the launch that rounds x [rows, k] to what its MXFP8 stands for, in bf16; `rounded` may be x itself."""
    return mxfp8_rows(x, rounded, None, rows, k, interpreted, used)


def _arguments(x: Any, codes: Any, scales: Any, rows: int, k: int, used: Used) -> tuple[Any, ...]:
    offsets, experts = used or (None, 0)
    return x, codes, scales, offsets, rows, experts, k
