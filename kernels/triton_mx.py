"""The MX functions in Triton: quantising to MXFP8, and the two stages over MXFP8 rows and MXFP4 weights."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl

from . import triton_core as core
from .triton_scaled import product


@triton.jit
def to_e4m3(x, WIDEN: tl.constexpr):
    """Round fp32 of at most 448 to e4m3, to nearest even: by hand in the interpreter (WIDEN), which would cut off."""
    if WIDEN:
        bits = x.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
        small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) & 15
        code = tl.where(size < 0x3C800000, small, normal)  # below 2^-6, in units of 2^-9
        code = tl.where(size > 0x7F800000, 127, code) | ((bits >> 24) & 128)
        rounded = code.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    else:
        rounded = x.to(tl.float8e4nv)
    return rounded


@triton.jit
def to_mxfp8(x, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDEN: tl.constexpr):
    """Quantise fp32 [ROWS, GROUPS x 32] by the floor rule of `formats`: e4m3 codes, and E8M0 bytes [ROWS, GROUPS].

    The maximum is taken over the bits, where NaN stands above infinity; either gives byte 255.
    """
    block = tl.reshape(x, (ROWS, GROUPS, 32))
    bits = tl.max(block.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2)
    exponent = bits >> 23
    byte = tl.where(exponent == 255, 255, tl.maximum(exponent - 8, 0))
    inverse = (tl.maximum(254 - byte, 0) << 23).to(tl.float32, bitcast=True)
    scaled = block * tl.reshape(inverse, (ROWS, GROUPS, 1))
    scaled = tl.where(scaled == scaled, tl.minimum(tl.maximum(scaled, -448.0), 448.0), scaled)
    return to_e4m3(tl.reshape(scaled, (ROWS, GROUPS * 32)), WIDEN), byte.to(tl.uint8)


@triton.jit(do_not_specialize=["blocks"])
def quantise(x, codes, scales, blocks, BLOCK: tl.constexpr, WIDEN: tl.constexpr):
    """Quantise x bf16 [blocks x 32] to e4m3 codes of the same shape and E8M0 scales [blocks]."""
    GROUPS: tl.constexpr = BLOCK // 32
    start = tl.program_id(0).to(tl.int64)
    element = start * BLOCK + tl.arange(0, BLOCK)
    group = start * GROUPS + tl.arange(0, GROUPS)
    values = tl.load(x + element, mask=element // 32 < blocks, other=0.0).to(tl.float32)
    code, byte = to_mxfp8(tl.reshape(values, (1, BLOCK)), 1, GROUPS, WIDEN)
    tl.store(codes + element, tl.reshape(code, (BLOCK,)), mask=element // 32 < blocks)
    tl.store(scales + group, tl.reshape(byte, (GROUPS,)), mask=group < blocks)


@triton.jit(do_not_specialize=["topk", "tiles_m", "group_m"])
def stage1(
    x,
    sx,
    w,
    sw,
    h,
    sh,
    order,
    tiles,
    inter,
    inter_groups,
    k,
    packed,
    groups,
    topk,
    tiles_m,
    group_m,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write h as MXFP8 [rows, inter], rows sorted by expert: silu(x Wgate^T) x (x Wup^T), requantised.

    x e4m3 [tokens, k] with scales [tokens, groups], w e2m1 [experts, 2 x inter, packed] with scales [..., groups],
    where packed = k / 2 and groups = k / 32; h e4m3 with scales [rows, inter_groups]. Else as in bf16.
    """
    HALF: tl.constexpr = TILE_N // 2
    expert, first, end, tile_n = core.locate(tiles, tiles_m, inter // HALF, group_m)
    if first == end:
        return
    row = first + tl.arange(0, TILE_M)
    live = row < end
    token = tl.load(order + row, mask=live, other=0) // topk
    column = tl.arange(0, TILE_N)
    line = expert.to(tl.int64) * 2 * inter + tile_n * HALF + column // 2 + (column % 2) * inter
    total = product(
        x,
        sx,
        w,
        sw,
        token.to(tl.int64),
        line,
        live,
        k,
        packed,
        groups,
        TILE_M,
        TILE_N,
        TILE_K,
        BUFFERS,
        PREFETCH,
        WIDEN,
    )
    gate, up = tl.split(tl.reshape(total, (TILE_M, HALF, 2)))
    code, byte = to_mxfp8(core.silu(gate) * up, TILE_M, HALF // 32, WIDEN)
    target = row.to(tl.int64)[:, None]
    tl.store(h + target * inter + (tile_n * HALF + tl.arange(0, HALF))[None, :], code, mask=live[:, None])
    tl.store(
        sh + target * inter_groups + (tile_n * (HALF // 32) + tl.arange(0, HALF // 32))[None, :],
        byte,
        mask=live[:, None],
    )


@triton.jit(do_not_specialize=["tiles_m", "group_m"])
def stage2(
    h,
    sh,
    w,
    sw,
    y,
    order,
    router,
    tiles,
    n,
    k,
    packed,
    groups,
    tiles_m,
    group_m,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Write y bf16 [slots, n], each slot once: router x (h W^T), from h as stage 1 leaves it."""
    expert, first, end, tile_n = core.locate(tiles, tiles_m, n // TILE_N, group_m)
    if first == end:
        return
    row = first + tl.arange(0, TILE_M)
    live = row < end
    column = tile_n * TILE_N + tl.arange(0, TILE_N)
    line = expert.to(tl.int64) * n + column
    total = product(
        h, sh, w, sw, row.to(tl.int64), line, live, k, packed, groups, TILE_M, TILE_N, TILE_K, BUFFERS, PREFETCH, WIDEN
    )
    slot = tl.load(order + row, mask=live, other=0)
    share = tl.load(router + slot, mask=live, other=0.0)
    tl.store(
        y + slot.to(tl.int64)[:, None] * n + column[None, :],
        core.to_bf16(total * share[:, None], WIDEN),
        mask=live[:, None],
    )
