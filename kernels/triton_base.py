"""The grouped kernels in Triton: operands, sorting, the two stages, combining, for any pair of formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from moetune.device import ahead
from moetune.device.arena import Arena
from moetune.errors import UsageError
from moetune.kernel import LOOP, Operands
from moetune.model.config import Config
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.model.trial import Resources

from . import reference, triton_stages
from . import triton_route as route
from .grouped import TILES_M, tile_capacity, tile_parts
from .triton_launch import INTERPRETED, Call, Slot
from .triton_rows import Rows
from .triton_weights import Weights, arguments, height


@dataclass
class GroupedOperands:
    """The tensors of one problem by name, as `layout` lists them, and the rows of each expert.

    `oracle_h` keeps stage 1's oracle for the layer's.
    """

    problem: Problem
    seed: int
    ids: Tensor
    output: Tensor
    tensors: dict[str, Tensor]
    counts: tuple[int, ...]
    oracle_h: Tensor | None = None


class GroupedTriton:
    """A grouped kernel in Triton, of a format of rows and one of weights."""

    def __init__(self, rows: Rows, weights: Weights) -> None:
        self.rows, self.weights = rows, weights

    def layout(self, problem: Problem) -> dict[str, Slot]:
        """Return the tensors of a problem; where the shape has biases, b1 and b2 among them."""
        rows, experts, d = problem.rows, problem.experts, problem.model_dim
        maps = {f"tiles{tile_m}": Slot((tile_capacity(problem, tile_m), 4), torch.int32, True) for tile_m in TILES_M}
        biases = {"b1": Slot((experts, problem.n(1)), torch.float32), "b2": Slot((experts, d), torch.float32)}
        return {
            "ids": Slot((problem.tokens, problem.topk), torch.int32),
            "router": Slot((problem.tokens, problem.topk), torch.float32),
            "order": Slot((rows,), torch.int32, True),
            "offsets": Slot((experts + 1,), torch.int32, True),
            "y": Slot((rows, d), torch.bfloat16, True),
            "output": Slot((problem.tokens, d), torch.bfloat16, True),
            **{name: Slot(shape, torch.int32, True) for name, shape in route.workspaces(problem.rows, experts).items()},
            **maps,
            **self.rows.slots(problem),
            **self.weights.slots(1, problem),
            **self.weights.slots(2, problem),
            **(biases if problem.shape.biases else {}),
        }

    def make_operands(
        self, problem: Problem, seed: int, arena: Arena, weights_of: Operands | None = None
    ) -> GroupedOperands:
        """Draw x from N(0, 1), weights and biases from N(0, 0.02), router weights as a softmax of N(0, 1)."""
        shared = {"b1", "b2"}.union(*(self.weights.slots(stage, problem) for stage in (1, 2)))
        kept: dict[str, Tensor] = {}
        if isinstance(weights_of, GroupedOperands):
            kept = {name: tensor for name, tensor in weights_of.tensors.items() if name in shared}
        tensors = {
            name: kept[name] if name in kept else arena.empty(name, slot.shape, slot.dtype, output=slot.output)
            for name, slot in self.layout(problem).items()
        }
        ids = problem.draw_ids(seed)
        tensors["ids"].copy_(torch.from_numpy(ids))
        generator = torch.Generator(arena.device).manual_seed(seed)
        router = tensors["router"].normal_(generator=generator)
        router.copy_(router.softmax(-1))
        tensors["x"].normal_(generator=generator)
        if not kept:
            for stage in (1, 2):
                self.weights.draw(stage, problem, tensors, generator)
                if problem.shape.biases:
                    tensors[f"b{stage}"].normal_(std=0.02, generator=generator)
        counts = torch.from_numpy(ids[ids >= 0]).bincount(minlength=problem.experts).tolist()
        operands = GroupedOperands(problem, seed, tensors["ids"], tensors["output"], tensors, tuple(counts))
        self.validate(operands)
        self.quantise(operands)
        return operands

    def validate(self, operands: GroupedOperands) -> None:
        """Raise UsageError, naming the operand, on a wrong dtype, shape, stride or value; waits for the device."""
        problem, tensors = operands.problem, operands.tensors
        for name, slot in self.layout(problem).items():
            have = tensors.get(name)
            if have is None:
                raise UsageError(f"operand {name} of {problem.key} is missing: give {slot.dtype} {list(slot.shape)}")
            if have.dtype != slot.dtype or tuple(have.shape) != slot.shape:
                raise UsageError(
                    f"operand {name} of {problem.key} is {have.dtype} {list(have.shape)}: "
                    f"give {slot.dtype} {list(slot.shape)}"
                )
            if not have.is_contiguous():
                raise UsageError(f"operand {name} of {problem.key} is not contiguous: give {name}.contiguous()")
        least, most = -1 if problem.ep > 1 else 0, problem.experts - 1
        ids, router = tensors["ids"], tensors["router"]
        if ids.numel() and (int(ids.min()) < least or int(ids.max()) > most):
            raise UsageError(
                f"operand ids of {problem.key} spans {int(ids.min())} to {int(ids.max())}: give {least} to {most}"
            )
        if not bool(router.isfinite().all()):
            raise UsageError(f"operand router of {problem.key} is not finite everywhere: give weights without NaN")

    def quantise(self, operands: GroupedOperands) -> bool:
        """Quantise x, where the format does."""
        calls = self.rows.quantise(operands.problem, operands.tensors)
        for call in calls:
            call.launch()
        return bool(calls)

    def sort(self, operands: GroupedOperands, *configs: Config) -> None:
        """Sort the slots by expert and map the tiles of each tile_m in the configs; waits for nothing."""
        for call in self._route(operands.problem, operands.tensors, {config["tile_m"] for config in configs}):
            call.launch()

    def launch(self, stage: int, config: Config, operands: GroupedOperands) -> None:
        """Run stage 1 or 2 on the current stream, after `sort` has mapped its tile_m; a loop kernel's by expert."""
        problem, tensors = operands.problem, operands.tensors
        first, *after = self.calls(stage, config, problem, tensors)
        if problem.kernel.endswith(LOOP):
            self._loop(first, stage, config, operands)
        else:
            first.launch()
        for call in after:
            call.launch()

    def combine(self, operands: GroupedOperands) -> None:
        """Sum the slots of each token that are here, first to last in fp32, into bf16 `output`."""
        self._combine(operands.problem, operands.tensors).launch()

    def rivals(self, operands: GroupedOperands, configs: Mapping[int, Config]) -> Mapping[str, Callable[[], None]]:
        """Return the other ways to compute the layer: each expert's launches alone."""

        def loop() -> None:
            self.sort(operands, *configs.values())
            for stage, config in configs.items():
                first, *after = self.calls(stage, config, operands.problem, operands.tensors)
                self._loop(first, stage, config, operands)
                for call in after:
                    call.launch()
            self.combine(operands)

        return {"per-expert loop": loop}

    def compile(self, stage: int, config: Config, problem: Problem, target: Target) -> Resources:
        """Compile a config, and what runs beside it, into Triton's cache; any compiler error comes through."""
        mocks = self.mocks(problem)
        routing = [Call(*call) for call in route.binaries(problem.rows, problem.experts, mocks)]
        first, *after = self.calls(stage, config, problem, mocks, target)
        for call in [*routing, self._combine(problem, mocks), *self.rows.quantise(problem, mocks), *after]:
            call.compile(target)
        return ahead.resources(first.compile(target))

    def isa(self, stage: int, config: Config, problem: Problem, target: Target) -> str:
        """Return the PTX or AMDGCN assembly of a config."""
        return ahead.isa(self.calls(stage, config, problem, self.mocks(problem), target)[0].compile(target))

    def calls(
        self, stage: int, config: Config, problem: Problem, tensors: dict[str, Any], target: Target | None = None
    ) -> list[Call]:
        """Return the launches of a stage over tensors or mocks, for a target (None: the device at hand)."""
        t, shape, tile_m, tile_n = tensors, problem.shape, config["tile_m"], config["tile_n"]
        n, k, inter = problem.n(stage), problem.k(stage), problem.inter_dim
        columns = tile_n // (problem.gates if stage == 1 else 1)
        across = inter if stage == 1 else n
        capacity = tile_capacity(problem, tile_m)
        rows_a, rows_b = tile_parts(tile_m)
        nvidia = target.vendor == "nvidia" if target else torch.version.hip is None
        options = {
            "KIND": self.weights.kind, "GROUP": max(0, FORMATS[problem.format].weights.group),
            "WEIGHTED": shape.router_on_input == (stage == 1),
            "EVEN_N": across % columns == 0, "EVEN_K": k % config["tile_k"] == 0,
            "ROWS_A": rows_a, "ROWS_B": rows_b, "TILE_N": tile_n, "TILE_K": config["tile_k"],
            "BUFFERS": config["num_buffers"], "PREFETCH": config["prefetch"], "num_warps": config["num_warps"],
            "THREADS": config["num_warps"] * (32 if nvidia else 64),
            "ASM": nvidia and not INTERPRETED, "WIDEN": INTERPRETED, "enable_fp_fusion": True,
        }  # fmt: skip
        grid = (capacity * triton.cdiv(across, columns),)
        inputs = (*self.rows.source(stage, t), *arguments(stage, t), t.get(f"b{stage}"), t["router"])
        end = (height(stage, problem), *((problem.topk,) if stage == 1 else ()), capacity, config["group_m"])
        if stage == 2:
            function, outputs, sizes = triton_stages.stage2, [t["y"]], (n, k)
        else:
            store, h, scales = self.rows.target(config, problem, t)
            function, outputs, sizes = triton_stages.stage1, [h, scales], (inter, k)
            options |= {
                "ACT": shape.act, "ALPHA": shape.alpha, "BETA": shape.beta, "LIMIT": shape.limit,
                "INTERLEAVED": shape.interleaved, "STORE": store,
            }  # fmt: skip
        first = Call(function, grid, (*inputs, *outputs, t["order"], t[f"tiles{tile_m}"], *sizes, *end), options)
        return [first, *(self.rows.passes(config, problem, t) if stage == 1 else [])]

    def outputs(self, stage: int, operands: GroupedOperands) -> tuple[Tensor, ...]:
        """Return the tensors that a stage writes (stage 3: combine's)."""
        names = {1: self.rows.written(), 2: ("y",), 3: ("output",)}[stage]
        return tuple(operands.tensors[name] for name in names)

    def decode(self, stage: int, operands: GroupedOperands) -> Tensor:
        """Return a stage's output as fp32: h [rows, inter_dim], y [slots, model_dim], output [tokens, model_dim].

        What belongs to experts elsewhere, which nobody writes, counts as zero.
        """
        if stage == 3:
            return operands.output.float()
        out = self.rows.h(operands.tensors) if stage == 1 else operands.tensors["y"].float()
        if stage == 1:
            out[sum(operands.counts) :] = 0.0
        else:
            out[operands.ids.flatten() < 0] = 0.0
        return out

    def reference(self, stage: int, operands: GroupedOperands) -> Tensor:
        """Return the fp32 oracle of a stage, stage 1's as the kernel stores it (3 or 0: of the layer, from x)."""
        problem, ids, t = operands.problem, operands.ids, operands.tensors
        order, _ = reference.sorted_slots(ids, problem.experts)

        def weight(stage: int) -> reference.Weight:
            return lambda expert: self.weights.logical(stage, expert, problem, t)

        if stage != 2 and operands.oracle_h is None:
            h = reference.stage1(self.rows.x(t), weight(1), ids, order, problem, t["router"], t.get("b1"))
            operands.oracle_h = self.rows.round_trip(h)
        if stage == 1:
            assert operands.oracle_h is not None
            return operands.oracle_h
        rows = self.decode(1, operands) if stage == 2 else operands.oracle_h
        assert rows is not None
        y = reference.stage2(rows, weight(2), ids, order, t["router"], problem, t.get("b2"))
        return y if stage == 2 else reference.combine(y, problem)

    def mocks(self, problem: Problem) -> dict[str, ahead.Mock]:
        """Return stand-ins for the tensors of a problem."""
        return {name: ahead.Mock(slot.dtype, slot.size_bytes) for name, slot in self.layout(problem).items()}

    def _loop(self, call: Call, stage: int, config: Config, operands: GroupedOperands) -> None:
        """Launch a stage once for each expert that has rows, over that expert's tiles alone."""
        tile_m, start = config["tile_m"], 0
        tiles = operands.tensors[f"tiles{tile_m}"]
        across = call.grid[0] // tile_capacity(operands.problem, tile_m)
        at = next(i for i, argument in enumerate(call.arguments) if argument is tiles)
        for count in operands.counts:
            used = -(-count // tile_m)
            if used:
                arguments = [*call.arguments]
                arguments[at], arguments[-2] = tiles[start:], used
                Call(call.function, (used * across,), tuple(arguments), call.options).launch()
                start += used

    def _route(self, problem: Problem, t: dict[str, Any], tiles_m: set[int]) -> list[Call]:
        capacities = {tile_m: tile_capacity(problem, tile_m) for tile_m in tiles_m}
        return [Call(*call) for call in route.plan(problem.rows, problem.experts, t, capacities)]

    def _combine(self, problem: Problem, t: dict[str, Any]) -> Call:
        return Call(*route.combine(problem.tokens, problem.topk, problem.model_dim, t, INTERPRETED, problem.ep))
