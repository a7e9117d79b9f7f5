"""The product of MXFP8 rows and MXFP4 weights in Triton, on targets that scale within the matrix instruction."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl


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
    left,
    left_scales,
    right,
    right_scales,
    total,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """Add the scaled product of one K step to the total."""
    left_scales = unpack(left_scales, TILE_M, TILE_K)
    right_scales = unpack(right_scales, TILE_N, TILE_K)
    return tl.dot_scaled(left, left_scales, "e4m3", tl.trans(right), right_scales, "e2m1", total)


@triton.jit
def product(
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
    """Return rows `source` of A [.., k] times rows `lines` of W [.., packed], both int64, as fp32 [TILE_M, TILE_N].

    sa and sw [.., groups] hold their scales; rows of A not `live` count as zero. PREFETCH as in the bf16 kernel; A's
    scales go the way of A.
    """
    STEP: tl.constexpr = TILE_K // 128 if TILE_K >= 128 else TILE_K // 32
    live = live[:, None]
    a += source[:, None] * k + tl.arange(0, TILE_K)[None, :]
    w += lines[:, None] * packed + tl.arange(0, TILE_K // 2)[None, :]
    sa = scales_of(source, groups, sa, TILE_K)
    sw = scales_of(lines, groups, sw, TILE_K)
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
