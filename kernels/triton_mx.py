"""The MX functions in Triton: quantising to MXFP8, and the two stages over MXFP8 rows and MXFP4 weights."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl

from . import triton_core as core


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


@triton.jit
def scales_of(rows, pitch, scales, TILE_K: tl.constexpr):
    """Return pointers to the scales of one K step: to words of four where there are that many, else to bytes.

    A copy to shared memory moves at least 4 bytes a thread; bytes would be loaded in the loop, waiting for each.
    """
    if TILE_K >= 128:
        word = tl.arange(0, TILE_K // 128)
        pointers = scales.to(tl.pointer_type(tl.int32)) + rows[:, None] * (pitch // 4) + word[None, :]
    else:
        byte = tl.arange(0, TILE_K // 32)
        pointers = scales + rows[:, None] * pitch + byte[None, :]
    return pointers


@triton.jit
def unpack(scales, ROWS: tl.constexpr, TILE_K: tl.constexpr):
    """Return E8M0 bytes [ROWS, TILE_K / 32] of what the pointers of `scales_of` give."""
    if TILE_K >= 128:
        shift = tl.arange(0, 4) * 8
        scales = tl.reshape((scales[:, :, None] >> shift[None, None, :]) & 255, (ROWS, TILE_K // 32)).to(tl.uint8)
    return scales


@triton.jit
def multiply(
    left, left_scales, right, right_scales, total, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr
):
    """Add the scaled product of one K step to the total."""
    left_scales = unpack(left_scales, TILE_M, TILE_K)
    right_scales = unpack(right_scales, TILE_N, TILE_K)
    return tl.dot_scaled(left, left_scales, "e4m3", right, right_scales, "e2m1", total)


@triton.jit
def product(
    a,
    sa,
    live,
    w,
    sw,
    k,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
):
    """Return the scaled product as fp32 [TILE_M, TILE_N], from pointers to the first K step of A, W and scales.

    PREFETCH as in the bf16 kernel; A's scales go the way of A.
    """
    STEP: tl.constexpr = TILE_K // 128 if TILE_K >= 128 else TILE_K // 32
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    if PREFETCH:
        left = tl.load(a, mask=live, other=0.0)
        scale = tl.load(sa, mask=live, other=0)
        for step in tl.range(TILE_K, k + TILE_K, TILE_K, num_stages=BUFFERS):
            a += TILE_K
            sa += STEP
            more = live & (tl.full((1, 1), step, tl.int32) < k)
            next_left = tl.load(a, mask=more, other=0.0)
            next_scale = tl.load(sa, mask=more, other=0)
            total = multiply(left, scale, tl.load(w), tl.load(sw), total, TILE_M, TILE_N, TILE_K)
            left = next_left
            scale = next_scale
            w += TILE_K // 2
            sw += STEP
    else:
        for _ in tl.range(0, k, TILE_K, num_stages=BUFFERS):
            left = tl.load(a, mask=live, other=0.0)
            scale = tl.load(sa, mask=live, other=0)
            total = multiply(left, scale, tl.load(w), tl.load(sw), total, TILE_M, TILE_N, TILE_K)
            a += TILE_K
            sa += STEP
            w += TILE_K // 2
            sw += STEP
    return total


@triton.jit
def expert_tile(
    a,
    sa,
    w,
    sw,
    source,
    lines,
    live,
    k,
    packed,
    groups,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
):
    """Return the product of rows `source` of A and rows `lines` of W (int64, flat over the experts)."""
    step = tl.arange(0, TILE_K)
    half = tl.arange(0, TILE_K // 2)
    return product(
        a + source[:, None] * k + step[None, :],
        scales_of(source, groups, sa, TILE_K),
        live[:, None],
        w + lines[None, :] * packed + half[:, None],
        scales_of(lines, groups, sw, TILE_K),
        k,
        TILE_M,
        TILE_N,
        TILE_K,
        BUFFERS,
        PREFETCH,
    )


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
    total = expert_tile(
        x, sx, w, sw, token.to(tl.int64), line, live, k, packed, groups, TILE_M, TILE_N, TILE_K, BUFFERS, PREFETCH
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
    total = expert_tile(
        h, sh, w, sw, row.to(tl.int64), line, live, k, packed, groups, TILE_M, TILE_N, TILE_K, BUFFERS, PREFETCH
    )
    slot = tl.load(order + row, mask=live, other=0)
    share = tl.load(router + slot, mask=live, other=0.0)
    tl.store(
        y + slot.to(tl.int64)[:, None] * n + column[None, :],
        core.to_bf16(total * share[:, None], WIDEN),
        mask=live[:, None],
    )
