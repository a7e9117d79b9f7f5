"""The two stages of the grouped kernels in Triton: tiles of routed rows times an expert's weights, and what follows."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl

from . import triton_core as core
from . import triton_quantise as quantise
from .triton_product import product


@triton.jit
def finish1(
    total,
    first,
    end,
    expert,
    tile_n,
    bias,
    router,
    h,
    sh,
    order,
    inter,
    ACT: tl.constexpr,
    ALPHA: tl.constexpr,
    BETA: tl.constexpr,
    LIMIT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    STORE: tl.constexpr,
    EVEN_N: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_N: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Activate the total [TILE_N, ROWS] and store it as rows of h, in the format STORE names.

    Gate and up rows come in turns of eight: the two halves of a 16-row fragment, so that they meet in one thread.
    """
    GATED: tl.constexpr = ACT != "relu2"
    COLUMNS: tl.constexpr = TILE_N // 2 if GATED else TILE_N
    row = first + tl.arange(0, ROWS)
    live = row < end
    column = tile_n * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < inter
    if WEIGHTED:
        slot = tl.load(order + row, mask=live, other=0)
        total *= tl.load(router + slot, mask=live, other=0.0)[None, :]
    if GATED:
        pairs = tl.permute(tl.reshape(total, (TILE_N // 16, 2, 8, ROWS)), (0, 2, 3, 1))
        gate, up = tl.split(pairs)
        gate = tl.reshape(gate, (COLUMNS, ROWS))
        up = tl.reshape(up, (COLUMNS, ROWS))
        if bias is not None:
            pair = bias + expert.to(tl.int64) * 2 * inter + (column * 2 if INTERLEAVED else column)
            gate += tl.load(pair, mask=inside, other=0.0)[:, None]
            up += tl.load(pair + (1 if INTERLEAVED else inter), mask=inside, other=0.0)[:, None]
        out = core.activate(gate, up, ACT, ALPHA, BETA, LIMIT)
    else:
        if bias is not None:
            total += tl.load(bias + expert.to(tl.int64) * inter + column, mask=inside, other=0.0)[:, None]
        positive = tl.maximum(total, 0.0)
        out = positive * positive
    out = tl.trans(out)
    place = row.to(tl.int64)[:, None] * inter + column[None, :]
    stored = live[:, None] if EVEN_N else live[:, None] & inside[None, :]
    if STORE == "mxfp8":
        code, byte = quantise.to_mxfp8(out, ROWS, COLUMNS // 32, WIDEN)
        tl.store(h + place, code, mask=stored)
        block = tile_n * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
        here = live[:, None] & (block < inter // 32)[None, :]
        tl.store(sh + row.to(tl.int64)[:, None] * (inter // 32) + block[None, :], byte, mask=here)
    elif STORE == "mxfp8 as bf16":
        tl.store(h + place, quantise.round_mxfp8(out, ROWS, COLUMNS // 32, WIDEN).to(tl.bfloat16), mask=stored)
    else:
        tl.store(h + place, core.to_bf16(out, WIDEN), mask=stored)


@triton.jit
def tile1(
    x,
    sx,
    w,
    sw,
    zw,
    bias,
    router,
    h,
    sh,
    order,
    expert,
    first,
    end,
    tile_n,
    inter,
    k,
    height,
    topk,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    ACT: tl.constexpr,
    ALPHA: tl.constexpr,
    BETA: tl.constexpr,
    LIMIT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    STORE: tl.constexpr,
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
    """Write the rows `first` to `end`, at most ROWS_A + ROWS_B, of one N tile of h."""
    GATED: tl.constexpr = ACT != "relu2"
    COLUMNS: tl.constexpr = TILE_N // 2 if GATED else TILE_N
    at = tl.arange(0, TILE_N)
    if GATED:
        column = tile_n * COLUMNS + at // 16 * 8 + at % 8
        part = at // 8 % 2
        line = column * 2 + part if INTERLEAVED else column + part * inter
        lines = expert.to(tl.int64) * 2 * inter + line
    else:
        column = tile_n * COLUMNS + at
        lines = expert.to(tl.int64) * inter + column
    row_a = first + tl.arange(0, ROWS_A)
    row_b = first + ROWS_A + tl.arange(0, ROWS_B if ROWS_B > 0 else 1)
    token_a = tl.load(order + row_a, mask=row_a < end, other=0) // topk
    token_b = tl.load(order + row_b, mask=row_b < end, other=0) // topk
    total_a, total_b = product(
        x, sx, w, sw, zw, token_a.to(tl.int64), row_a < end, token_b.to(tl.int64), row_b < end,
        expert, tile_n * TILE_N, lines, column < inter, (at // 8 % 2 == 1)[:, None] if GATED else None, k, height,
        KIND, GROUP, EVEN_N, EVEN_K, ROWS_A, ROWS_B, TILE_N, TILE_K, BUFFERS, PREFETCH, THREADS, ASM, WIDEN,
    )  # fmt: skip
    finish1(
        total_a, first, end, expert, tile_n, bias, router, h, sh, order, inter,
        ACT, ALPHA, BETA, LIMIT, INTERLEAVED, WEIGHTED, STORE, EVEN_N, ROWS_A, TILE_N, WIDEN,
    )  # fmt: skip
    if ROWS_B > 0:
        finish1(
            total_b, first + ROWS_A, end, expert, tile_n, bias, router, h, sh, order, inter,
            ACT, ALPHA, BETA, LIMIT, INTERLEAVED, WEIGHTED, STORE, EVEN_N, ROWS_B, TILE_N, WIDEN,
        )  # fmt: skip


@triton.jit(do_not_specialize=["topk", "tiles_m", "group_m"])
def stage1(
    x,
    sx,
    w,
    sw,
    zw,
    bias,
    router,
    h,
    sh,
    order,
    tiles,
    inter,
    k,
    height,
    topk,
    tiles_m,
    group_m,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    ACT: tl.constexpr,
    ALPHA: tl.constexpr,
    BETA: tl.constexpr,
    LIMIT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    STORE: tl.constexpr,
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
    """Write h [rows, inter], rows sorted by expert: the activation of x Wgate^T and x Wup^T.

    x [tokens, k] with scales sx, w the first weights of all experts with scales sw and zero points zw, bias fp32
    [experts, gates x inter], order int32 [rows] the slot of each sorted row, tiles int32 [tiles_m, 4]. What is not used
    is None. h is stored as STORE says, with scales sh. A tile's second part is left out where no row reaches it.
    """
    COLUMNS: tl.constexpr = TILE_N // 2 if ACT != "relu2" else TILE_N
    expert, first, end, tile_n = core.locate(tiles, tiles_m, tl.cdiv(inter, COLUMNS), group_m)
    rows = end - first
    if rows == 0:
        return
    if ROWS_B == 0 or rows <= ROWS_A:
        tile1(
            x, sx, w, sw, zw, bias, router, h, sh, order, expert, first, end, tile_n, inter, k, height, topk,
            KIND, GROUP, ACT, ALPHA, BETA, LIMIT, INTERLEAVED, WEIGHTED, STORE, EVEN_N, EVEN_K,
            ROWS_A, 0, TILE_N, TILE_K, BUFFERS, PREFETCH, THREADS, ASM, WIDEN,
        )  # fmt: skip
    else:
        tile1(
            x, sx, w, sw, zw, bias, router, h, sh, order, expert, first, end, tile_n, inter, k, height, topk,
            KIND, GROUP, ACT, ALPHA, BETA, LIMIT, INTERLEAVED, WEIGHTED, STORE, EVEN_N, EVEN_K,
            ROWS_A, ROWS_B, TILE_N, TILE_K, BUFFERS, PREFETCH, THREADS, ASM, WIDEN,
        )  # fmt: skip


@triton.jit
def finish2(
    total,
    row,
    live,
    expert,
    tile_n,
    bias,
    router,
    y,
    order,
    n,
    WEIGHTED: tl.constexpr,
    EVEN_N: tl.constexpr,
    TILE_N: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Store the total [TILE_N, rows], plus bias, times the router weight where stage 2 applies it, as slots of y."""
    column = tile_n * TILE_N + tl.arange(0, TILE_N)
    inside = column < n
    slot = tl.load(order + row, mask=live, other=0)  # not before the product: it leaves no register free
    if bias is not None:
        total += tl.load(bias + expert.to(tl.int64) * n + column, mask=inside, other=0.0)[:, None]
    if WEIGHTED:
        total *= tl.load(router + slot, mask=live, other=0.0)[None, :]
    place = slot.to(tl.int64)[:, None] * n + column[None, :]
    stored = live[:, None] if EVEN_N else live[:, None] & inside[None, :]
    tl.store(y + place, core.to_bf16(tl.trans(total), WIDEN), mask=stored)


@triton.jit
def tile2(
    h,
    sh,
    w,
    sw,
    zw,
    bias,
    router,
    y,
    order,
    expert,
    first,
    end,
    tile_n,
    n,
    k,
    height,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    WEIGHTED: tl.constexpr,
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
    """Write the slots of rows `first` to `end`, at most ROWS_A + ROWS_B, of one N tile of y."""
    column = tile_n * TILE_N + tl.arange(0, TILE_N)
    row_a = first + tl.arange(0, ROWS_A)
    row_b = first + ROWS_A + tl.arange(0, ROWS_B if ROWS_B > 0 else 1)
    live_a = row_a < end
    live_b = row_b < end
    total_a, total_b = product(
        h, sh, w, sw, zw,
        tl.where(live_a, row_a, first).to(tl.int64), live_a, tl.where(live_b, row_b, first).to(tl.int64), live_b,
        expert, tile_n * TILE_N, expert.to(tl.int64) * n + column, column < n, None, k, height,
        KIND, GROUP, EVEN_N, EVEN_K, ROWS_A, ROWS_B, TILE_N, TILE_K, BUFFERS, PREFETCH, THREADS, ASM, WIDEN,
    )  # fmt: skip
    finish2(total_a, row_a, live_a, expert, tile_n, bias, router, y, order, n, WEIGHTED, EVEN_N, TILE_N, WIDEN)
    if ROWS_B > 0:
        finish2(total_b, row_b, live_b, expert, tile_n, bias, router, y, order, n, WEIGHTED, EVEN_N, TILE_N, WIDEN)


@triton.jit(do_not_specialize=["tiles_m", "group_m"])
def stage2(
    h,
    sh,
    w,
    sw,
    zw,
    bias,
    router,
    y,
    order,
    tiles,
    n,
    k,
    height,
    tiles_m,
    group_m,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    WEIGHTED: tl.constexpr,
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
    """Write y bf16 [slots, n], each slot of this rank once: h W^T, from h as stage 1 leaves it."""
    expert, first, end, tile_n = core.locate(tiles, tiles_m, tl.cdiv(n, TILE_N), group_m)
    rows = end - first
    if rows == 0:
        return
    if ROWS_B == 0 or rows <= ROWS_A:
        tile2(
            h, sh, w, sw, zw, bias, router, y, order, expert, first, end, tile_n, n, k, height,
            KIND, GROUP, WEIGHTED, EVEN_N, EVEN_K,
            ROWS_A, 0, TILE_N, TILE_K, BUFFERS, PREFETCH, THREADS, ASM, WIDEN,
        )  # fmt: skip
    else:
        tile2(
            h, sh, w, sw, zw, bias, router, y, order, expert, first, end, tile_n, n, k, height,
            KIND, GROUP, WEIGHTED, EVEN_N, EVEN_K,
            ROWS_A, ROWS_B, TILE_N, TILE_K, BUFFERS, PREFETCH, THREADS, ASM, WIDEN,
        )  # fmt: skip
