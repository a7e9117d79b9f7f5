"""The description that the grouped Triton kernels share: axes, constraints, shared memory, traffic."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from moetune.errors import KernelError
from moetune.kernel import LOOP, Constraint, Footprint, Limits, rules_of
from moetune.model.config import Config
from moetune.model.floor import Traffic, padded_rows
from moetune.model.format import Format
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.model.traffic import drawn_traffic

from .constraints import RULES
from .sources import source_hash

TILES_M = (16, 32, 48, 64, 96, 128, 160, 192)
"""Rows a tile: a power of two, or two of them whose products share each weight tile (96 is 64 and 32)."""
Wish = tuple[int, int, int, int, int, int]
"""tile_m, tile_n, tile_k, num_buffers, num_warps and group_m."""
_COMMON = (
    "reference.py", "triton_base.py", "triton_core.py", "triton_grouped.py", "triton_launch.py", "triton_product.py",
    "triton_quantise.py", "triton_route.py", "triton_rows.py", "triton_stages.py", "triton_weights.py",
)  # fmt: skip


def tile_parts(tile_m: int) -> tuple[int, int]:
    """Return the two powers of two that make up a tile's rows, the larger first; the second may be 0."""
    first = 1 << tile_m.bit_length() - 1
    return first, tile_m - first


def tile_capacity(problem: Problem, tile_m: int) -> int:
    """Return the most M tiles that any routing of a problem makes.

    An expert with c rows has 1 + (c - 1) // tile_m tiles; the sum is largest when as many experts as possible
    have a row.
    """
    active = min(problem.rows, problem.experts)
    return active + (problem.rows - active) // tile_m


def scales_natively(arch: str) -> bool:
    """Return whether an architecture's matrix instructions take MX scales."""
    return int(arch.removeprefix("sm_")) >= 100 if arch.startswith("sm_") else arch in ("gfx950", "gfx1250")


@dataclass(frozen=True)
class Grouped:
    """The description of a grouped Triton kernel.

    `defaults` lists, by the mean rows of an expert up to which they hold, the wishes of stage 1 and 2: tile_m, tile_n,
    tile_k, num_buffers, num_warps and group_m; fitted to sweeps on an H200 (kernels/README.md).
    `sources` are the modules beside the common ones that decide what is computed, `least_sm` the least compute
    capability times ten, `amd` the AMD architectures served. `row_bytes` is what one element of an activation tile
    takes in shared memory. `packed` says that weights are four-bit codes prepacked, `groups` that each K step has
    scales of its own, so that its product is a second accumulator.
    """

    name: str
    format: Format
    limits: Limits
    implementation: str
    sources: tuple[str, ...]
    defaults: tuple[tuple[float, Wish, Wish], ...]
    least_sm: int
    amd: tuple[str, ...]
    tile_k: tuple[int, ...]
    row_bytes: int
    packed: bool = False
    groups: bool = False
    tile_n: tuple[tuple[int, ...], tuple[int, ...]] = ((64, 128, 256, 512), (64, 128, 256, 512))
    stages: tuple[int, ...] = (1, 2)
    coupling: str = "none"
    compiles_ahead: bool = True
    device: str = "gpu"

    def loop(self) -> Self:
        """Return the same kernel, launched expert by expert."""
        return replace(self, name=self.name + LOOP)

    def unserved(self, target: Target) -> str | None:
        """Return why the kernel cannot run on a target, or None."""
        if target.vendor == "nvidia":
            if int(target.arch.removeprefix("sm_")) >= self.least_sm:
                return None
            return f"{self.name} needs sm_{self.least_sm} or newer, not {target.arch}"
        if target.arch in self.amd:
            return None
        return f"{self.name} is written for sm_{self.least_sm} and newer, {', '.join(self.amd)}, not {target.arch}"

    def unsupported(self, shape: Shape, tp: int) -> str | None:
        """Return why the kernel cannot compute a shape at a TP, or None."""
        if shape.act not in ("silu", "swiglu", "gelu_tanh", "relu2"):
            return f"{self.name} has no activation {shape.act}"
        if shape.gated == (shape.act == "relu2"):
            return f"{self.name} computes {shape.act} {'un' if shape.gated else ''}gated only"
        illegal = shape.illegal(tp, self.format)
        if illegal:
            return illegal
        if shape.interleaved and self.format.tile > 1:
            return f"{self.name}: blocks of {self.format.tile} weight rows cannot hold gate and up rows in turns"
        for what, extent in (("model_dim", shape.model_dim), ("inter_dim", shape.inter_at(tp))):
            if extent % 32:
                return f"{what} {extent} is no multiple of 32, which {self.name}'s loads need"
        return None

    def axes(self, stage: int) -> Mapping[str, tuple[int, ...]]:
        """Return the axes of a stage; kernels/README.md says what each does."""
        return {
            "tile_m": TILES_M,
            "tile_n": self.tile_n[stage - 1],
            "tile_k": self.tile_k,
            "num_buffers": (2, 3, 4, 5),
            "prefetch": (0, 1),
            "num_warps": (4, 8, 16),
            "group_m": (1, 8),
        }

    def constraints(self, stage: int) -> tuple[Constraint, ...]:
        """Return the rules of a stage, cheapest first."""
        return tuple(Constraint(name, partial(rule, self, stage)) for name, rule in RULES)

    def exact(self, target: Target) -> bool:
        """Return whether tiles must divide what they cover: no masks."""
        return False

    def footprint(self, stage: int, config: Config, problem: Problem, target: Target) -> Footprint:
        """Return what a config is predicted to need."""
        threads = config["num_warps"] * target.warp_size
        return Footprint(self.shared_bytes(stage, config, problem, target), threads)

    def shared_bytes(self, stage: int, config: Config, problem: Problem, target: Target) -> int:
        """Return the bytes of the operand rings.

        On sm_90 wgmma reads rows, and weights that are not widened, in shared memory while the next step is copied: a
        ring of num_buffers tiles. What passes through registers (packed weights, and on other targets everything but
        what gfx950 and gfx1250 copy straight to shared memory) needs one tile less. Scales are left out: a lower bound.
        """
        tile_k, depth = config["tile_k"], config["num_buffers"]
        rows = config["tile_m"] * tile_k * self.row_bytes
        weights = config["tile_n"] * tile_k * self.format.weights.bits // 8
        if target.arch == "sm_90":
            return depth * rows + (depth - self.packed) * weights
        direct = target.arch in ("gfx950", "gfx1250")
        return (depth - (not direct)) * (weights + rows)

    def held(self, config: Config) -> dict[str, int]:
        """Return what a block certainly holds in registers at once, in words of 4 bytes."""
        tile = config["tile_m"] * config["tile_n"]
        held = {"accumulator": tile}
        if self.groups:
            held["step's product"] = tile_parts(config["tile_m"])[0] * config["tile_n"]
        if self.packed:
            # warps beyond one per 16 weight rows repeat them
            each = max(1, config["num_warps"] * 16 // config["tile_n"])
            held["widened tile"] = each * config["tile_n"] * config["tile_k"] * self.row_bytes // 4
        return held

    def wish(self, stage: int, problem: Problem, target: Target) -> dict[str, int]:
        """Return the default before it is fitted to the problem: our own rule, by the mean rows of an expert.

        On AMD, where nothing has been measured, it is held to tiles that leave room for what the footprint omits.
        """
        rows = problem.expected_rows / problem.experts
        _, *stages = next(row for row in self.defaults if rows <= row[0])
        axes = ("tile_m", "tile_n", "tile_k", "num_buffers", "num_warps", "group_m")
        wish = dict(zip(axes, stages[stage - 1], strict=True)) | {"prefetch": 0}
        if target.vendor != "nvidia":
            most = {"tile_m": 64, "tile_n": 128, "tile_k": 128, "num_buffers": 2, "num_warps": 8}
            wish |= {axis: min(wish[axis], value) for axis, value in most.items()}
        return wish

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        """Return the wish, shrunk until every constraint holds.

        tile_m falls to the largest value that can be filled, tile_n and tile_k to the largest that fits; then
        num_buffers, tile_k, tile_n and tile_m give way, in this order, until registers and shared memory suffice.
        """
        axes, wish = self.axes(stage), self.wish(stage, problem, target)
        rules = rules_of(self, stage)
        below = {
            axis: [v for v in reversed(axes[axis]) if v <= max(wish[axis], axes[axis][0])]
            for axis in ("tile_m", "tile_n", "tile_k", "num_buffers")
        }
        warps = [wish["num_warps"], *(v for v in axes["num_warps"] if v != wish["num_warps"])]
        for num_warps in warps:
            for tile_m in below["tile_m"]:
                for tile_n in below["tile_n"]:
                    for tile_k in below["tile_k"]:
                        for buffers in below["num_buffers"]:
                            config = Config.of(
                                tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, num_buffers=buffers,
                                prefetch=wish["prefetch"], num_warps=num_warps, group_m=wish["group_m"],
                            )  # fmt: skip
                            if all(rule.check(config, problem, target) is None for rule in rules):
                                return config
        raise KernelError(f"kernel {self.name} has no config for {problem.key} stage {stage} on {target.name}")

    def binary(self, stage: int, config: Config, problem: Problem) -> Hashable:
        """Return what decides the compiled binary and those beside it: the config but group_m, and what is specialised.

        Triton specialises on whether an integer argument is 1 or a multiple of 16, and on AMD on whether a tensor
        exceeds 2 GB; masks and the activation are compiled in; the combine is compiled for a topk, sorting for a power
        of two of experts.
        """
        d, inter, rows, shape = problem.model_dim, problem.inter_dim, problem.rows, problem.shape
        weights = self.format.weights.bytes(problem.experts * problem.n(stage), problem.k(stage))
        sizes = (weights, 2 * rows * d, 2 * rows * inter)
        even = tuple(extent % tile == 0 for extent in (d, inter) for tile in (128, config["tile_n"], config["tile_k"]))
        by_row = self.format.activations.group < 0  # whose row pass spans a row in one block
        spans = tuple((extent - 1).bit_length() for extent in (d, inter)) if by_row else ()
        layer = (
            shape.act,
            shape.alpha,
            shape.beta,
            shape.limit,
            shape.interleaved,
            shape.biases,
            shape.router_on_input,
        )
        return (
            self.name.removesuffix(LOOP), stage, config.replace(group_m=0), even, spans, layer,
            tuple((i == 1, i % 16 == 0) for i in (d, inter)),
            tuple(size > 1 << 31 for size in sizes), problem.topk, problem.experts.bit_length(),
        )  # fmt: skip

    def traffic(self, stage: int, problem: Problem, rows_per_expert: Sequence[int]) -> Traffic:
        """Return bytes at stored width and operations; see `moetune.model.traffic`."""
        return drawn_traffic(self.format, stage, problem, rows_per_expert)

    def computed_rows(self, stage: int, config: Config, rows_per_expert: Sequence[int]) -> int:
        """Return the rows of whole tiles: each expert's rows, rounded up to tile_m."""
        return padded_rows(list(rows_per_expert), config["tile_m"])

    def source_hash(self) -> str:
        """Return a hash of the sources that decide what is computed and how fast."""
        return source_hash((*_COMMON, *self.sources))
