"""What the grouped Triton kernels share: sorting, tile map, order of programs, activation, combine."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl


@triton.jit
def locate(tiles, tiles_m, tiles_n, group_m):
    """Return (expert, first row, end row, N tile) of this program; an unused tile has first row = end row.

    The N tiles of `group_m` consecutive M tiles run together, so that those share weights and activations in
    the L2 cache.
    """
    width = group_m * tiles_n
    program = tl.program_id(0)
    first = program // width * group_m
    height = tl.minimum(tiles_m - first, group_m)
    within = program % width
    entry = tiles + (first + within % height) * 3
    return tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), within // height


@triton.jit
def silu(gate):
    """Return gate x sigmoid(gate) in fp32."""
    return gate / (1.0 + tl.exp(-gate))


@triton.jit
def to_bf16(x, WIDEN: tl.constexpr):
    """Round fp32 to bf16, to nearest even: by hand in the interpreter (WIDEN), which would cut off."""
    if WIDEN:
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        rounded = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        rounded = x.to(tl.bfloat16)
    return rounded


@triton.jit(do_not_specialize=["rows", "experts"])
def sort_slots(ids, order, offsets, rows, experts, BLOCK: tl.constexpr):
    """Sort the slots by expert, stably: int32 order [rows] from ids [rows], and offsets [experts + 1].

    The rows of expert e are order[offsets[e] : offsets[e + 1]]. Program e counts the slots of the experts before
    it, then places its own; program `experts` finds none and writes the last offset.
    """
    expert = tl.program_id(0)
    place = 0
    for start in range(0, rows, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        place += tl.sum((tl.load(ids + slot, mask=slot < rows, other=experts) < expert).to(tl.int32))
    tl.store(offsets + expert, place)
    for start in range(0, rows, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        mine = tl.load(ids + slot, mask=slot < rows, other=experts + 1) == expert
        found = mine.to(tl.int32)
        tl.store(order + place + tl.cumsum(found, 0) - 1, slot, mask=mine)
        place += tl.sum(found)


@triton.jit(do_not_specialize=["experts", "tiles_m", "tile_m"])
def map_tiles(offsets, tiles, experts, tiles_m, tile_m, EXPERTS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the M tiles of one expert: int32 rows (expert, first row, end row) of `tiles` [tiles_m, 3].

    offsets int32 [experts + 1] are where the sorted rows of each expert start. An expert's tiles follow those of
    the experts before it. Program `experts` marks the tiles left over as unused. EXPERTS is a power of two
    not below experts.
    """
    expert = tl.program_id(0)
    each = tl.arange(0, EXPERTS)
    before = each < expert
    starts = tl.load(offsets + each, mask=before, other=0)
    ends = tl.load(offsets + each + 1, mask=before, other=0)
    place = tl.sum((ends - starts + tile_m - 1) // tile_m)
    used = expert < experts
    first = tl.load(offsets + expert, mask=used, other=0)
    end = tl.load(offsets + expert + 1, mask=used, other=0)
    count = tl.where(used, (end - first + tile_m - 1) // tile_m, tiles_m - place)
    for start in range(0, count, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        entry = tiles + (place + tile) * 3
        live = tile < count
        tl.store(entry, tl.where(used, expert, 0), mask=live)
        tl.store(entry + 1, tl.where(used, first + tile * tile_m, 0), mask=live)
        tl.store(entry + 2, end, mask=live)


@triton.jit
def combine(y, output, model_dim, TOPK: tl.constexpr, BLOCK: tl.constexpr, WIDEN: tl.constexpr):
    """Sum y bf16 [tokens x TOPK, model_dim] over the slots of a token, first to last in fp32, into bf16 output.

    Program (t, b) sums block b of token t.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < model_dim
    source = y + token * TOPK * model_dim + column
    total = tl.load(source, mask=live, other=0.0).to(tl.float32)
    for slot in tl.static_range(1, TOPK):
        total += tl.load(source + slot * model_dim, mask=live, other=0.0).to(tl.float32)
    tl.store(output + token * model_dim + column, to_bf16(total, WIDEN), mask=live)
