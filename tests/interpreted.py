"""Runs a grouped Triton kernel in Triton's interpreter and prints what came out as JSON; its own process.

The interpreter is chosen by TRITON_INTERPRET before Triton is imported, so that it cannot share a process with
the tests that compile.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch
from moetune_kernels import formats

from moetune.device.arena import Arena
from moetune.kernel import load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape

SHAPE = Shape("small", 192, 64, 6, 2, "silu", True, ("bf16", "a8w4"), (1,), (1,))
CASES = {
    "rows that do not fill a tile": (21, "uniform", None),
    "one token": (1, "uniform", None),
    "experts without rows": (24, "hot:0.5", None),
    "one expert with all rows": (19, "uniform", 3),
}
PAIRS = (
    dict(tile_m=16, tile_n=64, tile_k=64, num_buffers=2, prefetch=0, num_warps=4, group_m=1),
    dict(tile_m=32, tile_n=128, tile_k=64, num_buffers=3, prefetch=1, num_warps=8, group_m=8),
)  # tile_k 64 divides K 192, which the larger tiles do not


def poison(tensors: tuple[torch.Tensor, ...]) -> None:
    for tensor in tensors:
        tensor.view(torch.uint8).fill_(0xFF)


def tiles_of(operands, tile_m: int) -> list[list[int]]:
    """Return the tile map, as plain Python would write it."""
    counts = torch.bincount(operands.ids.flatten(), minlength=SHAPE.experts).tolist()
    tiles, start = [], 0
    for expert, count in enumerate(counts):
        tiles += [[expert, row, start + count] for row in range(start, start + count, tile_m)]
        start += count
    unused = operands.tensors[f"tiles{tile_m}"].shape[0] - len(tiles)
    return tiles + [[0, 0, 0]] * unused


def run(kernel: str, tokens: int, routing: str, expert: int | None, axes: dict[str, int]) -> dict[str, object]:
    implementation = load_implementation(load_kernel(kernel).implementation)
    problem = Problem(SHAPE, 1, kernel, kernel, tokens, Routing.parse(routing))
    arena = Arena(torch.device("cpu"), 128)
    operands = implementation.make_operands(problem, 7, arena)
    if expert is not None:
        operands.ids.fill_(expert)
    before = arena.checksum()
    config = Config.of(**axes)
    second = config.replace(tile_m=48 - config["tile_m"], tile_n=64)  # the other of 16 and 32
    implementation.sort(operands, config, second)
    facts: dict[str, object] = {
        "tiles": all(operands.tensors[f"tiles{m}"].tolist() == tiles_of(operands, m) for m in (16, 32)),
        "order": operands.tensors["order"].tolist()
        == sorted(range(problem.rows), key=operands.ids.flatten().tolist().__getitem__),
    }
    errors = {}
    for stage in (1, 2, 3):
        poison(implementation.outputs(stage, operands))
        if stage == 3:
            implementation.combine(operands)
            once = operands.output.clone()
            implementation.combine(operands)
            facts["combine repeats"] = torch.equal(once.view(torch.int16), operands.output.view(torch.int16))
        else:
            implementation.launch(stage, (config, second)[stage - 1], operands)
        found = implementation.decode(stage, operands)
        wanted = implementation.reference(stage, operands)
        errors[stage] = float((found - wanted).norm() / wanted.norm())
    facts |= {"errors": errors, "damaged": arena.damaged_guards(), "operands kept": arena.checksum() == before}
    again = implementation.make_operands(replace(problem, tokens=2), 8, arena, operands)
    facts["weights shared"] = again.tensors["w1"].data_ptr() == operands.tensors["w1"].data_ptr()
    return facts


def quantised() -> dict[str, object]:
    """Compare the device's quantisation of x with `formats`, block by awkward block."""
    implementation = load_implementation(load_kernel("a8w4").implementation)
    problem = Problem(SHAPE, 1, "a8w4", "a8w4", 9)
    operands = implementation.make_operands(problem, 0, Arena(torch.device("cpu"), 16))
    x = operands.tensors["x"]
    x[0] = 0.0
    x[1] = torch.linspace(2e-38, 1e-37, x.shape[1])  # below the least scale; the interpreter misreads subnormals
    x[2] = 500.0
    x[3, 0] = float("nan")
    x[3, 40] = float("inf")
    x[4] = torch.linspace(-448, 448, x.shape[1])
    x[5] = torch.linspace(-2e-2, 2e-2, x.shape[1])
    x[5, ::32] = 1.9  # leaves the rest of each block among the subnormals
    x[6] = -0.0
    x[7] = 3e38
    implementation.quantise(operands)
    codes, scales = formats.quantise_mxfp8(x)
    found = operands.tensors["codes"].view(torch.uint8)
    nan = codes.float().isnan()
    return {
        "codes": torch.equal(torch.where(nan, 127, found & 127), torch.where(nan, 127, codes.view(torch.uint8) & 127)),
        "signs": torch.equal((found & 128)[~nan], (codes.view(torch.uint8) & 128)[~nan]),
        "scales": torch.equal(operands.tensors["scales"], scales),
    }


if __name__ == "__main__":
    name = sys.argv[1]
    results = {
        f"{case}, prefetch {axes['prefetch']}": run(name, *arguments, axes)
        for case, arguments in CASES.items()
        for axes in PAIRS
    }
    if name == "a8w4":
        results["quantise"] = quantised()
    print(json.dumps(results))
