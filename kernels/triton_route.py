"""Routing in Triton: slots sorted by expert, maps of M tiles, and the sum over the slots of a token."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, assignment, misc"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

from . import triton_core as core

Call = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
"""One launch: JIT function, grid, arguments, options."""

Maps = Sequence[tuple[int, int]]
"""Up to two tile_m, each with the rows of its map."""

FEW = 2048
"""Slots up to which one launch sorts them, comparing each with all; more are counted in chunks first."""

_CHUNK = 256
_TILES = 32
_FIXED = {"enable_fp_fusion": True}
_VARYING = ("rows", "chunks", "experts", "tile_m_a", "tile_m_b", "capacity_a", "capacity_b")


@triton.jit
def _expert_of(ids, slot, rows, experts):
    """Return the expert of each slot, `experts` where it has none here."""
    expert = tl.load(ids + slot, mask=slot < rows, other=-1)
    return tl.where((expert >= 0) & (expert < experts), expert, experts)


@triton.jit
def _write_map(counts, tiles, block, tile_m, capacity, TILES: tl.constexpr):
    """Write a block of TILES rows of a tile map, from the rows of each expert, `counts` [EXPERTS]."""
    needed = (counts + tile_m - 1) // tile_m
    ends = tl.cumsum(needed, 0)
    tile = block * TILES + tl.arange(0, TILES)
    passed = ends[None, :] <= tile[:, None]  # experts whose tiles all lie before
    here = ((ends - needed)[None, :] <= tile[:, None]) & (passed == 0)
    expert = tl.sum(passed.to(tl.int32), 1)
    start = tl.sum(tl.where(passed, counts[None, :], 0), 1)
    within = tile - tl.sum(tl.where(passed, needed[None, :], 0), 1)
    end = start + tl.sum(tl.where(here, counts[None, :], 0), 1)
    used = (tile < tl.sum(needed, 0))[:, None]
    field = tl.arange(0, 4)[None, :]
    entry = tl.where(
        field == 0, expert[:, None], tl.where(field == 1, (start + within * tile_m)[:, None], end[:, None])
    )
    entry = tl.where(used & (field < 3), entry, 0)
    tl.store(tiles + tile[:, None] * 4 + field, entry, mask=(tile < capacity)[:, None])


@triton.jit
def _write_offsets(counts, offsets, experts, EXPERTS: tl.constexpr):
    """Write where the sorted rows of each expert end, after a first zero."""
    each = tl.arange(0, EXPERTS)
    tl.store(offsets + each + 1, tl.cumsum(counts, 0), mask=each < experts)
    tl.store(offsets, 0)


@triton.jit
def _write_plan(
    program, counts, offsets, tiles_a, tiles_b, experts, tile_m_a, tile_m_b, capacity_a, capacity_b,
    EXPERTS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write the part of offsets and two tile maps that falls to a program: the offsets to program 0."""
    blocks_a = tl.cdiv(capacity_a, TILES)
    if program == 0:
        _write_offsets(counts, offsets, experts, EXPERTS)
    elif program <= blocks_a:
        _write_map(counts, tiles_a, program - 1, tile_m_a, capacity_a, TILES)
    else:
        _write_map(counts, tiles_b, program - 1 - blocks_a, tile_m_b, capacity_b, TILES)


@triton.jit(do_not_specialize=_VARYING)
def _sort_few(
    ids, order, offsets, tiles_a, tiles_b, rows, experts, tile_m_a, tile_m_b, capacity_a, capacity_b,
    EXPERTS: tl.constexpr, TILES: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sort up to 65536 slots, and write offsets and two tile maps: every program counts, or ranks SLOTS, on its own."""
    program = tl.program_id(0)
    planners = 1 + tl.cdiv(capacity_a, TILES) + tl.cdiv(capacity_b, TILES)
    if program < planners:
        counts = tl.zeros([EXPERTS], tl.int32)
        for start in range(0, rows, BLOCK):
            expert = _expert_of(ids, start + tl.arange(0, BLOCK), rows, experts)
            counts += tl.histogram(expert, EXPERTS, mask=expert < experts)
        _write_plan(
            program, counts, offsets, tiles_a, tiles_b, experts, tile_m_a, tile_m_b, capacity_a, capacity_b,
            EXPERTS, TILES,
        )  # fmt: skip
    else:
        slot = (program - planners) * SLOTS + tl.arange(0, SLOTS)
        mine = _expert_of(ids, slot, rows, experts)
        key = (mine << 16) | slot
        smaller = tl.zeros([SLOTS, BLOCK], tl.int32)
        for start in range(0, rows, BLOCK):
            other = start + tl.arange(0, BLOCK)
            smaller += (((_expert_of(ids, other, rows, experts) << 16) | other)[None, :] < key[:, None]).to(tl.int32)
        tl.store(order + tl.sum(smaller, 1), slot, mask=mine < experts)


@triton.jit(do_not_specialize=_VARYING)
def _count(ids, counts, rows, experts, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    """Count the slots of each expert in one chunk: a row of `counts` [chunks + 1, experts]."""
    chunk = tl.program_id(0)
    expert = _expert_of(ids, chunk * CHUNK + tl.arange(0, CHUNK), rows, experts)
    each = tl.arange(0, EXPERTS)
    found = tl.histogram(expert, EXPERTS, mask=expert < experts)
    tl.store(counts + chunk * experts + each, found, mask=each < experts)


@triton.jit(do_not_specialize=_VARYING)
def _accumulate(counts, chunks, experts, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Replace the counts of COLUMNS experts by their sums over the chunks before; the last row takes the totals."""
    expert = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.int32)
    for start in range(0, chunks, BLOCK):
        chunk = start + tl.arange(0, BLOCK)
        place = counts + chunk[:, None] * experts + expert[None, :]
        live = (chunk < chunks)[:, None] & (expert < experts)[None, :]
        found = tl.load(place, mask=live, other=0)
        tl.store(place, total[None, :] + tl.cumsum(found, 0) - found, mask=live)
        total += tl.sum(found, 0)
    tl.store(counts + chunks * experts + expert, total, mask=expert < experts)


@triton.jit(do_not_specialize=_VARYING)
def _place(
    ids, order, offsets, counts, tiles_a, tiles_b, rows, chunks, experts, tile_m_a, tile_m_b, capacity_a,
    capacity_b, EXPERTS: tl.constexpr, TILES: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write offsets and two tile maps, and put each chunk's slots in their places, from the sums of `_accumulate`."""
    program = tl.program_id(0)
    planners = 1 + tl.cdiv(capacity_a, TILES) + tl.cdiv(capacity_b, TILES)
    each = tl.arange(0, EXPERTS)
    totals = tl.load(counts + chunks * experts + each, mask=each < experts, other=0)
    if program < planners:
        _write_plan(
            program, totals, offsets, tiles_a, tiles_b, experts, tile_m_a, tile_m_b, capacity_a, capacity_b,
            EXPERTS, TILES,
        )  # fmt: skip
    else:
        chunk = program - planners
        slot = chunk * CHUNK + tl.arange(0, CHUNK)
        mine = _expert_of(ids, slot, rows, experts)
        live = mine < experts
        expert = tl.where(live, mine, 0)
        place = tl.gather(tl.cumsum(totals, 0) - totals, expert, 0)
        place += tl.load(counts + chunk * experts + expert, mask=live, other=0)
        equal = tl.zeros([CHUNK, BLOCK], tl.int32)
        for start in tl.static_range(0, CHUNK, BLOCK):
            other = chunk * CHUNK + start + tl.arange(0, BLOCK)
            same = _expert_of(ids, other, rows, experts)[None, :] == mine[:, None]
            equal += (same & (other[None, :] < slot[:, None])).to(tl.int32)
        tl.store(order + place + tl.sum(equal, 1), slot, mask=live)


@triton.jit
def _combine(
    y, ids, output, model_dim, TOPK: tl.constexpr, BLOCK: tl.constexpr, ELSEWHERE: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Sum block program_id(1) of token program_id(0) over its slots."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < model_dim
    source = y + token * TOPK * model_dim + column
    terms = ()  # all in flight before the first is added: else the loads wait for each other
    for slot in tl.static_range(TOPK):
        live = inside
        if ELSEWHERE:  # the interpreter spreads no scalar mask over a block
            live = column < tl.where(tl.load(ids + token * TOPK + slot) >= 0, model_dim, 0)
        terms = terms + (tl.load(source + slot * model_dim, mask=live, other=0.0),)  # noqa: RUF005 (Triton unpacks no star)
    tl.debug_barrier()
    total = terms[0].to(tl.float32)
    for slot in tl.static_range(1, TOPK):
        total += terms[slot].to(tl.float32)
    tl.store(output + token * model_dim + column, core.to_bf16(total, WIDEN), mask=inside)


def workspaces(rows: int, experts: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the int32 tensors that `plan` needs beside its results, by name."""
    return {"counts": (triton.cdiv(rows, _CHUNK) + 1, experts)}


def plan(rows: int, experts: int, t: Mapping[str, Any], capacities: Mapping[int, int]) -> list[Call]:
    """Return the launches that sort the slots by expert, stably, and map the M tiles of each tile_m in `capacities`.

    t: ids int32 [tokens, topk], where an id outside 0..experts - 1 drops its slot; order int32 [rows], of which the
    first offsets[experts] are written; offsets int32 [experts + 1]; for each tile_m its tiles int32 [capacity, 4], rows
    (expert, first row, end row, 0), zeros where unused; and `workspaces`.

    Up to FEW slots take one launch, more take three; beyond two tile_m the last is repeated for each two more.
    """
    maps = sorted(capacities.items())
    pairs = [maps[i : i + 2] for i in range(0, len(maps), 2)] or [maps]
    if rows <= FEW:
        return [_sorting(rows, experts, t, pair) for pair in pairs]
    return [*_counting(rows, experts, t), *(_placing(rows, experts, t, pair) for pair in pairs)]


def binaries(rows: int, experts: int, t: Mapping[str, Any]) -> list[Call]:
    """Return launches that compile every binary that `plan` takes, whatever the number of slots and the tile_m."""
    return [_sorting(rows, experts, t, []), *_counting(rows, experts, t), _placing(rows, experts, t, [])]


def combine(tokens: int, topk: int, model_dim: int, t: Mapping[str, Any], interpreted: bool, ep: int = 2) -> Call:
    """Return the launch that sums y bf16 [tokens x topk, model_dim] over the slots of a token into bf16 output.

    It adds in fp32, first slot to last. Slots whose id in ids int32 [tokens, topk] is negative are not read; with `ep`
    1 there are none, and ids is not read. `interpreted` says whether Triton's interpreter will run it.
    """
    options = {"TOPK": topk, "BLOCK": 512, "ELSEWHERE": ep > 1, "WIDEN": interpreted, "num_warps": 2, **_FIXED}
    return _combine, (tokens, triton.cdiv(model_dim, 512)), (t["y"], t["ids"], t["output"], model_dim), options


def _sorting(rows: int, experts: int, t: Mapping[str, Any], maps: Maps) -> Call:
    planners, tiles, sizes = _maps(t, maps)
    options = {"EXPERTS": _power(experts), "TILES": _TILES, "SLOTS": 16, "BLOCK": 512, "num_warps": 8, **_FIXED}
    arguments = (t["ids"], t["order"], t["offsets"], *tiles, rows, experts, *sizes)
    return _sort_few, (planners + triton.cdiv(rows, 16),), arguments, options


def _counting(rows: int, experts: int, t: Mapping[str, Any]) -> list[Call]:
    chunks, counts = triton.cdiv(rows, _CHUNK), t["counts"]
    count = {"EXPERTS": _power(experts), "CHUNK": _CHUNK, "num_warps": 4, **_FIXED}
    accumulate = {"COLUMNS": 8, "BLOCK": 512, "num_warps": 8, **_FIXED}
    return [
        (_count, (chunks,), (t["ids"], counts, rows, experts), count),
        (_accumulate, (triton.cdiv(experts, 8),), (counts, chunks, experts), accumulate),
    ]


def _placing(rows: int, experts: int, t: Mapping[str, Any], maps: Maps) -> Call:
    planners, tiles, sizes = _maps(t, maps)
    chunks = triton.cdiv(rows, _CHUNK)
    options = {"EXPERTS": _power(experts), "TILES": _TILES, "CHUNK": _CHUNK, "BLOCK": 64, "num_warps": 8, **_FIXED}
    arguments = (t["ids"], t["order"], t["offsets"], t["counts"], *tiles, rows, chunks, experts, *sizes)
    return _place, (planners + chunks,), arguments, options


def _maps(t: Mapping[str, Any], maps: Maps) -> tuple[int, list[Any], list[int]]:
    """Return programs, tensors and sizes of the offsets and of up to two maps; one without rows stands for none."""
    tiles = [t[f"tiles{tile_m}"] for tile_m, _ in maps] + [t["offsets"]] * (2 - len(maps))
    (tile_m_a, capacity_a), (tile_m_b, capacity_b) = [*maps, (1, 0), (1, 0)][:2]
    planners = 1 + triton.cdiv(capacity_a, _TILES) + triton.cdiv(capacity_b, _TILES)
    return planners, tiles, [tile_m_a, tile_m_b, capacity_a, capacity_b]


def _power(experts: int) -> int:
    """Return the power of two that holds the experts, and a bin for each thread of a warp."""
    return max(64, 1 << (experts - 1).bit_length())
