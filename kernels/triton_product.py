"""The product of one tile in Triton: weight rows on the left, routed rows on the right, by number format."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl

from . import triton_packed as packed
from . import triton_scaled as scaled


@triton.jit
def multiply(left, rows, total, WIDEN: tl.constexpr):
    """Add left [n, k] x rows [m, k]^T to the total; in fp32 in the interpreter (WIDEN), whose bf16 are bit patterns."""
    if WIDEN and left.dtype == tl.bfloat16:
        left = left.to(tl.float32)
        rows = rows.to(tl.float32)
    return tl.dot(left, tl.trans(rows), total)


@triton.jit
def accumulate(
    left, left_scale, rows, rows_scale, total, KIND: tl.constexpr, TWO: tl.constexpr, WIDEN: tl.constexpr
):  # fmt: skip
    """Add one K step to the total [n, m].

    fp8_block scales each step's product by left_scale [n, 1] (TWO: its elements differ) or a scalar and by rows_scale
    [m], int4x8 by left_scale [n]; the others scale before or after.
    """
    if KIND == "fp8_block":
        fresh = tl.zeros(total.shape, tl.float32)
        if TWO:  # one after the other: the scales' product would hold as many registers as the step's
            total += multiply(left, rows, fresh, WIDEN) * rows_scale[None, :] * left_scale
        else:
            total += multiply(left, rows, fresh, WIDEN) * (left_scale * rows_scale[None, :])
    elif KIND == "int4x8":
        fresh = tl.zeros(total.shape, tl.int32)
        total += tl.dot(left, tl.trans(rows), fresh, out_dtype=tl.int32).to(tl.float32) * left_scale[:, None]
    elif KIND == "int8":
        total = tl.dot(left, tl.trans(rows), total, out_dtype=tl.int32)
    else:
        total = multiply(left, rows, total, WIDEN)
    return total


@triton.jit
def spread(pointers, ROWS: tl.constexpr, THREADS: tl.constexpr):
    """Repeat pointers [ROWS] until each thread has one: fewer, and every warp would load all, in the MMA's layout."""
    EACH: tl.constexpr = THREADS // ROWS if THREADS > ROWS else 1
    return tl.broadcast_to(pointers[None, :], (EACH, ROWS))


@triton.jit
def once(values, ROWS: tl.constexpr):
    """Undo `spread` on what the pointers gave: [ROWS]."""
    values = tl.trans(values)
    for _ in tl.static_range(10):
        if values.shape[1] > 1:
            values, _ = tl.split(tl.reshape(values, (ROWS, values.shape[1] // 2, 2)))
    return tl.reshape(values, (ROWS,))


@triton.jit
def ask(pointers):
    """Ask the cache lines of pointers into L2, where they exist."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def load(pointers, rows, columns, limit, EVEN_ROWS: tl.constexpr, EVEN_COLUMNS: tl.constexpr):
    """Load a tile; rows [n, 1] not live and columns [1, k] at or beyond the limit count as zero."""
    if EVEN_ROWS and EVEN_COLUMNS:
        tile = tl.load(pointers)
    elif EVEN_COLUMNS:
        tile = tl.load(pointers, mask=rows, other=0.0)
    elif EVEN_ROWS:
        tile = tl.load(pointers, mask=columns < limit, other=0.0)
    else:
        tile = tl.load(pointers, mask=rows & (columns < limit), other=0.0)
    return tile


@triton.jit
def widened(
    words,
    scale,
    zero,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    ASM: tl.constexpr,
):
    """Return the left operand of what the weight pointers of a step gave."""
    if KIND == "int4":
        left = packed.widen_int4(words, scale, zero, TILE_N, TILE_K // 128, GROUP, ASM)
    elif KIND == "e2m1":
        left = packed.widen_e2m1(words, scale, TILE_N, TILE_K // 128, ASM)
    elif KIND == "int4x8":
        left = packed.widen_int8(words, zero, TILE_N, TILE_K, ASM)
    else:
        left = words
    return left


@triton.jit
def streamed(
    x,
    sx,
    w,
    sw,
    zw,
    source_a,
    live_a,
    source_b,
    live_b,
    expert,
    start,
    lines,
    inside,
    second,
    k,
    height,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROWS_A: tl.constexpr,
    ROWS_B: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
    THREADS: tl.constexpr,
    ASM: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Return W X^T as fp32 [TILE_N, ROWS_A] and [TILE_N, ROWS_B] (ROWS_B 0: there is no second part).

    source int64 [rows] are rows of x [.., k], those not live count as zero. Two parts share each weight tile: widened
    once, read once. Dense weights are rows `lines` int64 [TILE_N] of w [.., k], prepacked ones rows `start` and on of
    an expert's `height` (a multiple of 64); those not inside count as zero. With 128 x 128 blocks, the tile lies in the
    block row of its first line and, where a mask `second` [TILE_N, 1] is given, that of its ninth (up after gate).

    Weights and rows stream through a ring of BUFFERS tiles in shared memory. PREFETCH first asks the ring's weights
    into the L2 cache: which rows are needed is known two dependent loads later.
    """
    WORDS: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    DENSE: tl.constexpr = not WORDS and KIND != "int4x8"
    TWO: tl.constexpr = second is not None
    PARTS: tl.constexpr = ROWS_B > 0
    ROWS_C: tl.constexpr = ROWS_B if PARTS else 1
    columns = tl.arange(0, TILE_K)[None, :]
    scale_a = sx
    scale_b = sx
    ps = sw
    pz = zw
    if DENSE:
        start_w = w + lines * k
        pw = start_w[:, None] + columns
        step_w = TILE_K
        if KIND == "fp8_block":
            ps = sw + tl.min(lines) // 128 * (k // 128)
            if second is not None:
                pz = sw + tl.max(lines) // 128 * (k // 128)
            scale_a = spread(sx + source_a * (k // 128), ROWS_A, THREADS)
            scale_b = spread(sx + source_b * (k // 128), ROWS_C, THREADS)
    else:
        UNIT: tl.constexpr = 128 if WORDS else GROUP
        EACH: tl.constexpr = UNIT // 8 if WORDS else UNIT // 2
        units = tl.cdiv(k, UNIT)
        row = tl.arange(0, TILE_N)
        place = tl.arange(0, EACH * (TILE_K // UNIT))[None, :]
        first = (expert.to(tl.int64) * height + start) // 64 * (units * EACH * 64)
        inner = row // 64 * (units * EACH * 64) + row % 64 * EACH
        start_w = w + first + inner
        pw = start_w[:, None] + place // EACH * (EACH * 64) + place % EACH
        step_w = TILE_K // UNIT * EACH * 64
        STEP: tl.constexpr = TILE_K // (128 if KIND == "e2m1" else GROUP)
        groups = units * (UNIT // (128 if KIND == "e2m1" else GROUP))
        group = expert.to(tl.int64) * groups + tl.arange(0, STEP)[:, None]
        PAIRS: tl.constexpr = 2 if KIND == "int4" else 1
        ps = sw + group * (height // PAIRS) + start // PAIRS + tl.arange(0, TILE_N // PAIRS)[None, :]
        if zw is not None:
            pz = zw + group * height + start + row[None, :]
        step_z = STEP * height
        step_s = step_z // PAIRS
    if PREFETCH and ASM:
        for step in tl.static_range(BUFFERS):
            ask(start_w + step * step_w)
    pa = x + source_a[:, None] * k + columns
    pb = x + source_b[:, None] * k + columns
    kind: tl.constexpr = tl.int32 if KIND == "int8" else tl.float32
    total_a = tl.zeros((TILE_N, ROWS_A), kind)
    total_b = tl.zeros((TILE_N if PARTS else 1, ROWS_C), kind)
    live_a = live_a[:, None]
    live_b = live_b[:, None]
    across = inside[None, :]
    within = across
    if KIND == "int4":
        within = (start + tl.arange(0, TILE_N // 2) * 2 < height)[None, :]
    inside = inside[:, None]
    FULL: tl.constexpr = EVEN_K or not DENSE
    if KIND == "int8":
        channel = tl.load(sw + lines, mask=tl.reshape(inside, (TILE_N,)), other=0.0)[:, None]
    if KIND == "int8" or KIND == "int4x8":
        each_a = tl.load(sx + source_a)
        each_b = tl.load(sx + source_b)
    for at in tl.range(0, k, TILE_K, num_stages=BUFFERS):
        words = load(pw, inside, columns, k - at, EVEN_N, FULL)
        row_scale_a = sx
        row_scale_b = sx
        if DENSE:
            scale = ps
            zero = zw
            if KIND == "fp8_block":
                scale = tl.load(ps)
                if second is not None:
                    scale = tl.where(second, tl.load(pz), scale)
                    pz += 1
                row_scale_a = once(tl.load(scale_a), ROWS_A)
                ps += 1
                scale_a += 1
                if PARTS:
                    row_scale_b = once(tl.load(scale_b), ROWS_C)
                    scale_b += 1
        else:
            scale = load(ps, within, columns, k, EVEN_N, True)
            ps += step_s
            zero = zw
            if zw is not None:
                zero = load(pz, across, columns, k, EVEN_N, True)
                pz += step_z
        rows = load(pa, live_a, columns, k - at, False, EVEN_K)
        left = widened(words, scale, zero, KIND, GROUP, TILE_N, TILE_K, ASM)
        left_scale = tl.reshape(scale, (TILE_N,)) if KIND == "int4x8" else scale
        total_a = accumulate(left, left_scale, rows, row_scale_a, total_a, KIND, TWO, WIDEN)
        pa += TILE_K
        if PARTS:
            rows = load(pb, live_b, columns, k - at, False, EVEN_K)
            total_b = accumulate(left, left_scale, rows, row_scale_b, total_b, KIND, TWO, WIDEN)
            pb += TILE_K
        pw += step_w
    if KIND == "e2m1":
        total_a *= packed.UNBIAS
        total_b *= packed.UNBIAS
    if KIND == "int8":
        total_a = total_a.to(tl.float32) * channel
        total_b = total_b.to(tl.float32) * channel if PARTS else total_b.to(tl.float32)
    if KIND == "int8" or KIND == "int4x8":
        unit = 0.0625 if KIND == "int4x8" and zw is None else 1.0
        total_a *= (each_a * unit)[None, :]
        if PARTS:
            total_b *= (each_b * unit)[None, :]
    return total_a, total_b


@triton.jit
def product(
    x,
    sx,
    w,
    sw,
    zw,
    source_a,
    live_a,
    source_b,
    live_b,
    expert,
    start,
    lines,
    inside,
    second,
    k,
    height,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ROWS_A: tl.constexpr,
    ROWS_B: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BUFFERS: tl.constexpr,
    PREFETCH: tl.constexpr,
    THREADS: tl.constexpr,
    ASM: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Return W X^T as fp32 [TILE_N, ROWS_A] and [TILE_N, ROWS_B]; see `streamed`. Kind mx scales in the instruction."""
    if KIND == "mx":
        total_a = tl.trans(
            scaled.product(
                x, sx, w, sw, source_a, lines, live_a, k, k // 2, k // 32, ROWS_A, TILE_N, TILE_K, BUFFERS, PREFETCH
            )
        )
        total_b = tl.zeros((1, 1), tl.float32)
    else:
        total_a, total_b = streamed(
            x,
            sx,
            w,
            sw,
            zw,
            source_a,
            live_a,
            source_b,
            live_b,
            expert,
            start,
            lines,
            inside,
            second,
            k,
            height,
            KIND,
            GROUP,
            EVEN_N,
            EVEN_K,
            ROWS_A,
            ROWS_B,
            TILE_N,
            TILE_K,
            BUFFERS,
            PREFETCH,
            THREADS,
            ASM,
            WIDEN,
        )
    return total_a, total_b
