"""The CPU kernel's implementation: tiles of bf16 operands widened and multiplied in fp32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moetune.device.arena import Arena
from moetune.kernel import Operands
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.model.trial import Resources

from . import reference

_SIGMA = 0.02


@dataclass
class CpuOperands:
    """The tensors of one problem: bf16 activations and weights, fp32 router weights, the sorted rows.

    x [tokens, model_dim], w1 [experts, gates x inter_dim, model_dim] (gate rows first, or gate and up in turns), w2
    [experts, model_dim, inter_dim], router [tokens, topk], order [rows] int64; h [rows, inter_dim] sorted by expert,
    y [rows, model_dim] by slot, output [tokens, model_dim]. tiles maps a tile_m to the (expert, start, stop)
    of its row tiles.
    """

    problem: Problem
    seed: int
    ids: Tensor
    output: Tensor
    x: Tensor
    w1: Tensor
    w2: Tensor
    router: Tensor
    order: Tensor
    h: Tensor
    y: Tensor
    tiles: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)


class TorchCpu:
    """Runs on one thread: tiles are small enough that waking a second costs more than it computes."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def compile(self, stage: int, config: Config, problem: Problem, target: Target) -> Resources:
        """Compile nothing."""
        return Resources()

    def make_operands(
        self, problem: Problem, seed: int, arena: Arena, weights_of: Operands | None = None
    ) -> CpuOperands:
        """Draw x from N(0, 1), weights from N(0, 0.02), router weights that sum to 1 for each token."""
        p, bf16 = problem, torch.bfloat16
        inputs, weights = (torch.Generator().manual_seed(2 * seed + part) for part in (0, 1))
        x = arena.empty("x", (p.tokens, p.model_dim), bf16).normal_(generator=inputs)
        router = arena.empty("router", (p.tokens, p.topk), torch.float32).normal_(generator=inputs)
        router.copy_(router.softmax(1))
        ids = arena.empty("ids", (p.tokens, p.topk), torch.int32)
        ids.copy_(torch.from_numpy(p.draw_ids(seed)))
        if weights_of is None:
            w1 = arena.empty("w1", (p.experts, p.n(1), p.k(1)), bf16).normal_(0, _SIGMA, generator=weights)
            w2 = arena.empty("w2", (p.experts, p.n(2), p.k(2)), bf16).normal_(0, _SIGMA, generator=weights)
        else:
            assert isinstance(weights_of, CpuOperands)
            w1, w2 = weights_of.w1, weights_of.w2
        return CpuOperands(
            problem=p,
            seed=seed,
            ids=ids,
            output=arena.empty("output", (p.tokens, p.model_dim), bf16, output=True),
            x=x,
            w1=w1,
            w2=w2,
            router=router,
            order=arena.empty("order", (p.rows,), torch.int64, output=True),
            h=arena.empty("h", (p.rows, p.inter_dim), bf16, output=True),
            y=arena.empty("y", (p.rows, p.model_dim), bf16, output=True),
        )

    def quantise(self, operands: CpuOperands) -> bool:
        """Return False: bf16 needs no quantisation."""
        return False

    def sort(self, operands: CpuOperands, *configs: Config) -> None:
        """Sort the routed rows by expert (stable) and cut each expert's rows into tiles of each tile_m."""
        o = operands
        order, counts = reference.sorted_slots(o.ids, o.problem.experts)
        o.order.copy_(order)
        ends = counts.cumsum(0).tolist()
        spans = list(zip([0, *ends], ends, strict=False))
        o.tiles = {
            tile_m: [
                (expert, row, min(row + tile_m, stop))
                for expert, (start, stop) in enumerate(spans)
                for row in range(start, stop, tile_m)
            ]
            for tile_m in {config["tile_m"] for config in configs}
        }

    def launch(self, stage: int, config: Config, operands: CpuOperands) -> None:
        """Run stage 1 or 2 over the row tiles that `sort` mapped for the config."""
        o, p = operands, operands.problem
        router, weighted = o.router.flatten().unsqueeze(1), 1 if p.shape.router_on_input else 2
        columns = config["tile_n"] // (p.gates if stage == 1 else 1)
        for expert, start, stop in o.tiles[config["tile_m"]]:
            slots = o.order[start:stop]
            if stage == 1:
                rows = o.x[slots // p.topk].float()
                if weighted == 1:
                    rows *= router[slots]
                parts = (p.inter_dim, p.gates) if p.shape.interleaved else (p.gates, p.inter_dim)
                weight = o.w1[expert].view(*parts, p.model_dim).movedim(parts.index(p.gates), 0)
            else:
                rows = o.h[start:stop].float()
                weight = o.w2[expert].unsqueeze(0)
            for n in range(0, weight.shape[1], columns):
                tile = _multiply(rows, weight[:, n : n + columns], config["tile_k"])
                if stage == 1:
                    o.h[start:stop, n : n + columns] = reference.activate(tile, p.shape)
                else:
                    o.y[slots, n : n + columns] = (tile * router[slots] if weighted == 2 else tile).to(o.y.dtype)

    def combine(self, operands: CpuOperands) -> None:
        """Sum the topk slots of each token in fp32, first to last, into `operands.output`."""
        operands.output.copy_(reference.combine(self.decode(2, operands), operands.problem))

    def rivals(self, operands: CpuOperands, configs: Mapping[int, Config]) -> Mapping[str, Callable[[], None]]:
        """Return the per-expert loop: each expert alone through both stages, its whole extents one product each."""
        p = operands.problem
        whole = {stage: Config.of(tile_m=p.rows, tile_n=p.n(stage), tile_k=p.k(stage)) for stage in (1, 2)}

        def loop() -> None:
            self.sort(operands, whole[1])
            for tile in operands.tiles[p.rows]:
                operands.tiles = {p.rows: [tile]}
                for stage, config in whole.items():
                    TorchCpu.launch(self, stage, config, operands)
            self.combine(operands)

        return {"per-expert loop": loop}

    def outputs(self, stage: int, operands: CpuOperands) -> tuple[Tensor, ...]:
        """Return the intermediate, the routed output, or (stage 3) combine's."""
        return ((operands.h,), (operands.y,), (operands.output,))[stage - 1]

    def decode(self, stage: int, operands: CpuOperands) -> Tensor:
        """Return a stage's output as fp32: stage 1 in sorted rows, stage 2 in slots; zeros where none here writes."""
        out = self.outputs(stage, operands)[0].float()
        if stage == 1:
            out[int((operands.ids >= 0).sum()) :] = 0
        elif stage == 2:
            out[operands.ids.flatten() < 0] = 0
        return out

    def reference(self, stage: int, operands: CpuOperands) -> Tensor:
        """Return the fp32 oracle of a stage, of the whole layer for stage 3."""
        o, p = operands, operands.problem
        x, h = o.x.float(), o.h.float()

        def weight1(expert: int) -> Tensor:
            return o.w1[expert].float()

        def weight2(expert: int) -> Tensor:
            return o.w2[expert].float()

        if stage == 1:
            return reference.stage1(x, weight1, o.ids, o.order, p, o.router)
        if stage == 2:
            return reference.stage2(h, weight2, o.ids, o.order, o.router, p)
        return reference.layer(x, weight1, weight2, o.ids, o.order, o.router, p, _rounded)


def _rounded(h: Tensor) -> Tensor:
    return h.bfloat16().float()


def _multiply(rows: Tensor, weight: Tensor, tile_k: int) -> Tensor:
    """Multiply fp32 rows [m, K] by bf16 weights [gates, n, K], tile_k of K at a time, into [m, gates x n]."""
    out = rows.new_zeros(rows.shape[0], weight.shape[0] * weight.shape[1])
    for k in range(0, rows.shape[1], tile_k):
        tile = weight[..., k : k + tile_k].float().reshape(out.shape[1], -1)
        out.addmm_(rows[:, k : k + tile_k], tile.T)
    return out
