"""Sorting, tile maps and combine in Triton's interpreter, beside plain Python; a script of `interpreter` as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import interpret

SORTS = {
    "one slot": (1, 1, 1, (16,)),
    "one expert": (40, 1, 1, (16, 48)),
    "slots elsewhere": (41, 6, 2, (16, 48, 192)),
    "more experts than slots": (3, 300, 2, (16, 32)),
    "as many experts as bins": (150, 64, 1, (64,)),
    "an expert beyond a power of two": (70, 65, 3, (16, 32, 48, 64)),
    "the most that one launch sorts": (1024, 8, 2, (16, 128)),
    "one token more": (1025, 8, 2, (16, 128, 192)),
    "many slots, some elsewhere": (1100, 70, 4, (48, 96, 128)),
}
"""Tokens, experts, topk and the tile_m mapped."""
ELSEWHERE = ("slots elsewhere", "many slots, some elsewhere")
COMBINES = {
    f"topk {topk}, width {width}, ep {ep}": (topk, width, ep)
    for topk, width, ep in [(1, 32, 1), (2, 96, 2), (4, 544, 1), (4, 544, 2)]
}
GUARD = -7


def sort(name: str) -> list[str]:
    """Return what of a case's order, offsets, maps and spare memory is wrong; a small case runs twice."""
    from moetune_kernels import triton_route as route

    tokens, experts, topk, tiles_m = SORTS[name]
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, experts, (tokens, topk), dtype=torch.int32, generator=generator)
    if name in ELSEWHERE:
        ids[torch.rand(ids.shape, generator=generator) < 0.4] = -1
        ids[0], ids[-1, -1] = -1, experts  # beyond the last counts as elsewhere as well
    rows = ids.numel()
    flat = ids.flatten().tolist()
    order = sorted((slot for slot in range(rows) if 0 <= flat[slot] < experts), key=flat.__getitem__)
    counts = [flat.count(expert) for expert in range(experts)]
    offsets = [sum(counts[:expert]) for expert in range(experts + 1)]
    wanted: dict[str, list[int]] = {"order": order + [GUARD] * (rows - len(order)), "offsets": offsets}
    capacities = {}
    for tile_m in tiles_m:
        tiles = [
            [expert, row, offsets[expert + 1], 0]
            for expert in range(experts)
            for row in range(offsets[expert], offsets[expert + 1], tile_m)
        ]
        capacities[tile_m] = len(tiles) + 3
        wanted[f"tiles{tile_m}"] = [field for tile in tiles for field in tile] + [0] * 12
    sizes = {name: len(values) for name, values in wanted.items()}
    sizes |= {name: shape[0] * shape[1] for name, shape in route.workspaces(rows, experts).items()}
    memory = {name: torch.empty(size + 64, dtype=torch.int32) for name, size in sizes.items()}
    t = {name: tensor[32:-32] for name, tensor in memory.items()}
    wrong = []
    for run in ("first", "second")[: 1 if rows > 1000 else 2]:
        for tensor in memory.values():
            tensor.fill_(GUARD)
        for function, grid, arguments, options in route.plan(rows, experts, t | {"ids": ids}, capacities):
            function[grid](*arguments, **options)
        wrong += [f"{run} {name}" for name, values in wanted.items() if t[name].tolist() != values]
        wrong += [
            f"{run} beside {name}" for name, tensor in memory.items()
            if set(tensor[:32].tolist() + tensor[-32:].tolist()) != {GUARD}
        ]  # fmt: skip
    return wrong


def combine(topk: int, width: int, ep: int) -> bool:
    """Return whether a sum has the bits of torch's, added in fp32 first to last; slots elsewhere hold NaN."""
    from moetune_kernels import triton_route as route

    tokens, generator = 5, torch.Generator().manual_seed(width)
    y = torch.randn(tokens * topk, width, generator=generator) * torch.logspace(-3, 3, topk).repeat(tokens)[:, None]
    t: dict[str, Any] = {"y": y.bfloat16(), "output": torch.full((tokens, width), torch.nan, dtype=torch.bfloat16)}
    t["ids"] = torch.zeros(tokens, topk, dtype=torch.int32)
    if ep > 1:
        t["ids"][torch.rand(tokens, topk, generator=generator) < 0.4] = -1
        t["ids"][1] = -1
        t["y"][t["ids"].flatten() < 0] = torch.nan
    function, grid, arguments, options = route.combine(tokens, topk, width, t, True, ep)
    function[grid](*arguments, **options)
    terms = t["y"].float().nan_to_num(0.0).view(tokens, topk, width)
    wanted = terms[:, 0].clone()
    for slot in range(1, topk):
        wanted += terms[:, slot]
    return torch.equal(t["output"].view(torch.int16), wanted.bfloat16().view(torch.int16))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return interpret(tmp_path_factory, Path(__file__))


@pytest.mark.parametrize("case", SORTS)
def test_slots_are_sorted_stably_tiles_mapped_and_nothing_else_written(found, case):
    assert found["sorts"][case] == []


@pytest.mark.parametrize("case", COMBINES)
def test_combine_adds_the_slots_that_are_here_in_order(found, case):
    assert found["combines"][case]


def test_every_plan_launches_only_what_is_compiled_for_any_number_of_slots():
    from moetune_kernels import triton_route as route

    names = ["ids", "order", "offsets", "counts", *(f"tiles{m}" for m in (16, 48, 64, 96))]
    mocks = dict.fromkeys(names, "any")

    def binaries(calls: list[route.Call]) -> set[str]:
        return {f"{function.fn.__name__} {sorted(options.items())}" for function, _, _, options in calls}

    compiled = binaries(route.binaries(16, 40, mocks))
    launched: set[str] = set()
    for rows in (1, 16, route.FEW, route.FEW + 1, 65536):
        for tiles in ({16: 4}, {16: 4, 48: 4}, {16: 4, 48: 4, 64: 4}, {16: 4, 48: 4, 64: 4, 96: 4}):
            launched |= binaries(route.plan(rows, 40, mocks, tiles))
    assert launched == compiled


def test_few_slots_take_one_launch_and_many_three():
    from moetune_kernels import triton_route as route

    mocks = dict.fromkeys(["ids", "order", "offsets", "counts", "tiles16", "tiles48", "tiles64"], "any")
    launches = [len(route.plan(rows, 8, mocks, {16: 4, 48: 4})) for rows in (route.FEW, route.FEW + 1)]
    assert launches == [1, 3]
    assert len(route.plan(16, 8, mocks, {16: 4, 48: 4, 64: 4})) == 2


if __name__ == "__main__":
    torch.set_num_threads(1)
    sorts, combines = {name: sort(name) for name in SORTS}, {name: combine(*case) for name, case in COMBINES.items()}
    print(json.dumps({"sorts": sorts, "combines": combines}))
