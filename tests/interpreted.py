"""Runs grouped Triton kernels in Triton's interpreter and prints what came out as JSON; a script of `interpreter`.

A kernel is named as its entry point is, with `@` and an architecture where its formats depend on that.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from moetune.device.arena import Arena
from moetune.kernel import load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.targets import load_target

SHAPE = Shape("small", 256, 128, 4, 2, "silu", True, (), (1,), (1,))
SMALL = Config.of(tile_m=16, tile_n=128, tile_k=128, num_buffers=2, prefetch=0, num_warps=4, group_m=1)
LARGE = Config.of(tile_m=48, tile_n=128, tile_k=128, num_buffers=2, prefetch=1, num_warps=8, group_m=8)
NATIVE = "a8w4@gfx950"


@dataclass(frozen=True)
class Case:
    """A problem; stages in `large` run in LARGE, which is 256 weight rows wide if `wide`; `expert` takes every row."""

    tokens: int = 6
    routing: str = "uniform"
    expert: int | None = None
    ep: int = 1
    large: tuple[int, ...] = (2,)
    wide: bool = False
    shape: dict[str, Any] = field(default_factory=dict)


CASES = {
    "rows that do not fill a tile": Case(9),
    "one token": Case(1, large=(1,)),
    "experts without rows": Case(9, "hot:0.5"),
    "one expert with all rows": Case(19, expert=3, large=(1, 2), wide=True),
    "experts elsewhere": Case(12, ep=2),
}
AGAIN, LOOPED = CASES["one expert with all rows"], CASES["experts elsewhere"]
"""Cases that run again, over and between other bytes; the second expert by expert."""
AWKWARD = {
    32: Case(shape={"model_dim": 192, "inter_dim": 160}),
    64: Case(shape={"model_dim": 192, "inter_dim": 192}),
    128: Case(shape={"model_dim": 384}, wide=True),
}
"""Dimensions that tiles do not divide, by what a format's K is a multiple of."""
VARIED = ("bf16", "w8a8_int8", "w4a16_g32_zp")
_ODD = AWKWARD[32].shape | {"biases": True}
VARIANTS = {
    "clamped swiglu, interleaved": Case(
        shape=_ODD | {"act": "swiglu", "alpha": 1.702, "beta": 1.0, "limit": 0.3, "interleaved": True}
    ),
    "clamped silu": Case(large=(1,), shape=_ODD | {"limit": 0.3}),
    "gelu_tanh": Case(large=(1,), shape=_ODD | {"act": "gelu_tanh"}),
    "ungated relu2": Case(shape=_ODD | {"act": "relu2", "gated": False}),
    "router weights on the input": Case(12, ep=2, shape=_ODD | {"topk": 1, "router_on_input": True}),
}


def cases(kernel: Any, native: bool) -> dict[str, Case]:
    """Return the cases of a kernel by name; native scales take no masks, and blocks no tile that spans them."""
    awkward = AWKWARD[max(32, kernel.format.k_multiple)]
    if native or kernel.format.tile > 1:
        awkward = Case(shape={"model_dim": 384})
    return CASES | {"dimensions that tiles do not divide": awkward} | (VARIANTS if kernel.name in VARIED else {})


def configs_of(kernel: Any, native: bool, case: Case, problem: Problem, arch: str) -> tuple[Config, Config]:
    """Return the configs of the stages, which the kernel's own rules must allow, but for rows that only pad."""
    tile_k = 128 if 128 in kernel.tile_k else kernel.tile_k[0]
    large = LARGE.replace(tile_m=32 if native else 48, tile_n=256 if case.wide else 128)
    pair = [(large if stage in case.large else SMALL).replace(tile_k=tile_k) for stage in (1, 2)]
    if kernel.format.tile > 1:
        pair[1] = pair[1].replace(tile_n=128)
    target = load_target(arch or "sm_90")
    broken = [kernel.unsupported(problem.shape, 1)]
    for stage, config in zip((1, 2), pair, strict=True):
        broken += [axis for axis, values in kernel.axes(stage).items() if config[axis] not in values]
        rules = [rule for rule in kernel.constraints(stage) if rule.name != "tile_m"]
        broken += [rule.check(config, problem, target) for rule in rules]
    assert not any(broken), (problem.key, list(filter(None, broken)))
    return pair[0], pair[1]


def tiles_of(counts: list[int], tile_m: int, capacity: int) -> list[list[int]]:
    """Return the tile map, as plain Python would write it."""
    tiles, start = [], 0
    for expert, count in enumerate(counts):
        tiles += [[expert, row, start + count, 0] for row in range(start, start + count, tile_m)]
        start += count
    return tiles + [[0, 0, 0, 0]] * (capacity - len(tiles))


def layer(code: Any, configs: tuple[Config, Config], operands: Any, fill: int) -> tuple[list[torch.Tensor], bool]:
    """Run the stages over outputs filled with a byte; return what they wrote, and whether they left the rest."""
    here = operands.ids.flatten() >= 0
    rows = {1: torch.arange(len(here)) < here.sum(), 2: here, 3: torch.ones(operands.problem.tokens).bool()}
    written, kept = [], True
    for stage in (1, 2, 3):
        outputs = [tensor.view(torch.uint8) for tensor in code.outputs(stage, operands)]
        for tensor in outputs:
            tensor.fill_(fill)
        if stage == 3:
            code.combine(operands)
        else:
            code.launch(stage, configs[stage - 1], operands)
        for tensor in outputs:
            lines = tensor.view(len(rows[stage]), -1)
            written.append(lines[rows[stage]])
            kept &= bool((lines[~rows[stage]] == fill).all())
    return written, kept


def run(word: str, case: Case) -> dict[str, object]:
    """Run a layer and say what came out."""
    name, _, arch = word.partition("@")
    kernel: Any = load_kernel(name)
    module, _, attribute = kernel.implementation.partition(":")
    code = getattr(importlib.import_module(module), attribute)(*([arch] if arch else []))
    shape = replace(SHAPE, **case.shape)
    problem = Problem(shape, 1, name, kernel.format.name, case.tokens, Routing.parse(case.routing), case.ep)
    configs = configs_of(kernel, word == NATIVE, case, problem, arch)
    arena = Arena(torch.device("cpu"), 256)
    operands = code.make_operands(problem, 7, arena)
    if case.expert is not None:
        operands.ids.fill_(case.expert)
        operands.counts = tuple(problem.rows * (expert == case.expert) for expert in range(problem.experts))
    before = arena.checksum()

    ids, t = operands.ids.flatten().tolist(), operands.tensors
    here = sorted((slot for slot in range(problem.rows) if ids[slot] >= 0), key=ids.__getitem__)
    counts = [ids.count(expert) for expert in range(problem.experts)]
    maps = {config["tile_m"]: t[f"tiles{config['tile_m']}"] for config in configs}
    for tensor in (t["order"], t["offsets"], *maps.values()):
        tensor.fill_(-7)
    code.sort(operands, *configs)
    facts: dict[str, object] = {
        "order": t["order"].tolist() == here + [-7] * (problem.rows - len(here)),
        "offsets": t["offsets"].tolist() == [sum(counts[:expert]) for expert in range(problem.experts + 1)],
        "tiles": all(tiles.tolist() == tiles_of(counts, m, len(tiles)) for m, tiles in maps.items()),
        "elsewhere": problem.rows - len(here),
    }

    written, kept = layer(code, configs, operands, 0xFF)
    facts["errors"] = {
        stage: float((code.decode(stage, operands) - oracle).norm() / oracle.norm())
        for stage in (1, 2, 3)
        for oracle in [code.reference(stage, operands)]
    }
    damaged = arena.damaged_guards()
    facts["rest kept"] = kept
    if case in (AGAIN, LOOPED):
        arena.fill_guards(0)  # NaN read beyond a tensor makes NaN, which NaN around the outputs would hide
        operands.problem = replace(problem, kernel=kernel.loop().name if case == LOOPED else name)
        again, kept = layer(code, configs, operands, 0)
        facts["repeats"] = kept and all(map(torch.equal, written, again))
    facts |= {"damaged": damaged + arena.damaged_guards(), "operands kept": arena.checksum() == before}

    operands.problem = problem
    other = code.make_operands(replace(problem, tokens=2), 8, arena, operands)
    weights = [name for name in t if name[0] in "wszb" and name[1:] in ("1", "2")]
    facts["weights shared"] = all(other.tensors[name].data_ptr() == t[name].data_ptr() for name in weights)
    return facts


if __name__ == "__main__":
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for word in sys.argv[1:]:
        for name, case in cases(load_kernel(word.partition("@")[0]), word == NATIVE).items():
            results.setdefault(word, {})[name] = run(word, case)
    print(json.dumps(results))
