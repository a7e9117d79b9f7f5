"""What the grouped Triton implementations share: operands, sorting, tile maps, launching, combining."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from moetune.device import ahead
from moetune.device.arena import Arena
from moetune.kernel import Operands
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.model.trial import Resources

from . import reference
from . import triton_core as core
from .grouped import TILES_M, tile_capacity

_COMBINE_BLOCK = 1024
_SORT_BLOCK = 2048
_MAP_BLOCK = 128
FIXED = {"num_warps": 4, "enable_fp_fusion": True}
INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter, which multiplies bf16 as bit patterns: they widen to fp32 there."""


class Slot(NamedTuple):
    """One tensor of a problem; kernels write an `output`, and only read the others."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    output: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


class Call(NamedTuple):
    """One launch of a JIT function."""

    function: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def launch(self) -> None:
        """Run it on the current stream."""
        self.function[self.grid](*self.arguments, **self.options)

    def compile(self, target: Target) -> Any:
        """Compile it for a target, from mock arguments."""
        return ahead.warm(self.function, self.arguments, self.options, target)


@dataclass
class GroupedOperands:
    """The tensors of one problem by name, as `layout` lists them; `oracle_h` keeps stage 1's oracle for the layer's."""

    problem: Problem
    seed: int
    ids: Tensor
    output: Tensor
    tensors: dict[str, Tensor]
    oracle_h: Tensor | None = None


class GroupedTriton:
    """A grouped kernel in Triton; a subclass adds its tensors, its two stages and its oracle."""

    weights: tuple[str, ...]
    """Names of the tensors that operands of equal dimensions share."""

    def layout(self, problem: Problem) -> dict[str, Slot]:
        """Return the tensors of a problem; a subclass adds its own."""
        rows, experts = problem.rows, problem.experts
        maps = {f"tiles{tile_m}": Slot((tile_capacity(problem, tile_m), 3), torch.int32, True) for tile_m in TILES_M}
        return {
            "ids": Slot((problem.tokens, problem.topk), torch.int32),
            "router": Slot((problem.tokens, problem.topk), torch.float32),
            "order": Slot((rows,), torch.int32, True),
            "offsets": Slot((experts + 1,), torch.int32, True),
            "y": Slot((rows, problem.model_dim), torch.bfloat16, True),
            "output": Slot((problem.tokens, problem.model_dim), torch.bfloat16, True),
            **maps,
        }

    def draw(self, tensors: dict[str, Tensor], names: set[str], generator: torch.Generator) -> None:
        """Fill the tensors named that are a subclass's own."""
        raise NotImplementedError  # abstract: each subclass has its own

    def call(self, stage: int, config: Config, problem: Problem, tensors: dict[str, Any]) -> Call:
        """Return the launch of a stage over tensors or mocks."""
        raise NotImplementedError  # abstract: each subclass has its own

    def extras(self, problem: Problem, tensors: dict[str, Any]) -> list[Call]:
        """Return the launches beside the stages: the sort, the tile map, the combine, a subclass's own."""
        return [
            self._sort(problem, tensors),
            self._map_tiles(TILES_M[0], problem, tensors),
            self._combine(problem, tensors),
        ]

    def make_operands(
        self, problem: Problem, seed: int, arena: Arena, weights_of: Operands | None = None
    ) -> GroupedOperands:
        """Draw operands: x from N(0, 1), weights from N(0, 0.02), router weights a softmax of N(0, 1)."""
        kept: dict[str, Tensor] = {}
        if isinstance(weights_of, GroupedOperands):
            kept = {name: weights_of.tensors[name] for name in self.weights}
        slots = self.layout(problem)
        tensors = {
            name: kept[name] if name in kept else arena.empty(name, slot.shape, slot.dtype, output=slot.output)
            for name, slot in slots.items()
        }
        ids = problem.routing.draw(problem.tokens, problem.experts, problem.topk, seed)
        tensors["ids"].copy_(torch.from_numpy(ids))
        generator = torch.Generator(arena.device).manual_seed(seed)
        router = tensors["router"].normal_(generator=generator)
        router.copy_(router.softmax(-1))
        self.draw(tensors, set(slots) - set(kept), generator)
        operands = GroupedOperands(problem, seed, tensors["ids"], tensors["output"], tensors)
        self.quantise(operands)
        return operands

    def quantise(self, operands: GroupedOperands) -> bool:
        """Return False: x is used as it is."""
        return False

    def sort(self, operands: GroupedOperands, *configs: Config) -> None:
        """Sort the slots by expert and map the tiles of each tile_m in the configs; waits for nothing."""
        t = operands.tensors
        self._sort(operands.problem, t).launch()
        for tile_m in sorted({config["tile_m"] for config in configs}):
            self._map_tiles(tile_m, operands.problem, t).launch()

    def launch(self, stage: int, config: Config, operands: GroupedOperands) -> None:
        """Run stage 1 or 2 on the current stream, after `sort` has mapped its tile_m."""
        self.call(stage, config, operands.problem, operands.tensors).launch()

    def combine(self, operands: GroupedOperands) -> None:
        """Sum the topk slots of each token, first to last in fp32, into bf16 `output`."""
        self._combine(operands.problem, operands.tensors).launch()

    def compile(self, stage: int, config: Config, problem: Problem, target: Target) -> Resources:
        """Compile a config, and what runs beside it, into Triton's cache; any compiler error comes through."""
        mocks = self.mocks(problem)
        for extra in self.extras(problem, mocks):
            extra.compile(target)
        return ahead.resources(self.call(stage, config, problem, mocks).compile(target))

    def isa(self, stage: int, config: Config, problem: Problem, target: Target) -> str:
        """Return the PTX or AMDGCN assembly of a config."""
        return ahead.isa(self.call(stage, config, problem, self.mocks(problem)).compile(target))

    def outputs(self, stage: int, operands: GroupedOperands) -> tuple[Tensor, ...]:
        """Return the tensors that a stage writes (stage 3: combine's)."""
        return tuple(operands.tensors[name] for name in self.written(stage))

    def written(self, stage: int) -> tuple[str, ...]:
        """Return the names of the tensors that a stage writes."""
        return {1: ("h",), 2: ("y",), 3: ("output",)}[stage]

    def decode(self, stage: int, operands: GroupedOperands) -> Tensor:
        """Return a stage's output as fp32: h [rows, inter_dim], y [slots, model_dim], output [tokens, model_dim]."""
        return self.outputs(stage, operands)[0].float()

    def oracle(self, operands: GroupedOperands) -> tuple[Tensor, reference.Weight, reference.Weight]:
        """Return x in fp32, and both stages' weights of an expert in fp32, as the kernel sees them."""
        raise NotImplementedError  # abstract: each subclass has its own

    def round_trip(self, h: Tensor) -> Tensor:
        """Return the fp32 intermediate as the kernel stores it."""
        raise NotImplementedError  # abstract: each subclass has its own

    def reference(self, stage: int, operands: GroupedOperands) -> Tensor:
        """Return the fp32 oracle of a stage, stage 1's as the kernel stores it (3 or 0: of the layer, from x)."""
        problem, ids, router = operands.problem, operands.ids, operands.tensors["router"]
        order = torch.sort(ids.flatten(), stable=True).indices
        x, weight1, weight2 = self.oracle(operands)
        if stage == 2:
            return reference.stage2(self.decode(1, operands), weight2, ids, order, router, problem)
        if operands.oracle_h is None:
            operands.oracle_h = self.round_trip(reference.stage1(x, weight1, ids, order, problem))
        h = operands.oracle_h
        if stage == 1:
            return h
        return reference.combine(reference.stage2(h, weight2, ids, order, router, problem), problem)

    def mocks(self, problem: Problem) -> dict[str, ahead.Mock]:
        """Return stand-ins for the tensors of a problem."""
        return {name: ahead.Mock(slot.dtype, slot.size_bytes) for name, slot in self.layout(problem).items()}

    def _sort(self, problem: Problem, t: dict[str, Any]) -> Call:
        arguments = (t["ids"], t["order"], t["offsets"], problem.rows, problem.experts)
        return Call(core.sort_slots, (problem.experts + 1,), arguments, {"BLOCK": _SORT_BLOCK, **FIXED})

    def _map_tiles(self, tile_m: int, problem: Problem, t: dict[str, Any]) -> Call:
        experts = problem.experts
        arguments = (t["offsets"], t[f"tiles{tile_m}"], experts, tile_capacity(problem, tile_m), tile_m)
        options = {"EXPERTS": triton.next_power_of_2(experts), "BLOCK": _MAP_BLOCK, **FIXED}
        return Call(core.map_tiles, (experts + 1,), arguments, options)

    def _combine(self, problem: Problem, t: dict[str, Any]) -> Call:
        grid = (problem.tokens, triton.cdiv(problem.model_dim, _COMBINE_BLOCK))
        options = {"TOPK": problem.topk, "BLOCK": _COMBINE_BLOCK, "WIDEN": INTERPRETED, **FIXED}
        return Call(core.combine, grid, (t["y"], t["output"], problem.model_dim), options)


def launch_options(config: Config) -> dict[str, Any]:
    """Return the compile-time options of a stage; group_m is none, so that it costs no binary."""
    return {
        "TILE_M": config["tile_m"], "TILE_N": config["tile_n"], "TILE_K": config["tile_k"],
        "BUFFERS": config["num_buffers"], "PREFETCH": config["prefetch"], "num_warps": config["num_warps"],
        "WIDEN": INTERPRETED, "enable_fp_fusion": True,
    }  # fmt: skip
