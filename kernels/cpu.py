"""The CPU kernel: a blocked grouped product in torch, for machines without a GPU."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from moetune.kernel import Constraint, Footprint, Limits
from moetune.model.config import Config
from moetune.model.floor import Traffic
from moetune.model.format import FORMATS, Format
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.model.traffic import drawn_traffic

from .sources import source_hash

_AXES = {"tile_m": (16, 32, 64), "tile_n": (64, 128, 256, 512), "tile_k": (16, 32, 64, 128, 256)}
_K = {1: "model_dim", 2: "inter_dim"}


def _idle(axis: str, size: int, what: str, config: Config) -> str | None:
    """Refuse a tile of which a smaller one already covers the whole extent."""
    smaller = [value for value in _AXES[axis] if value < config[axis]]
    if smaller and smaller[-1] >= size:
        return f"{axis} {config[axis]} exceeds the {size} {what}: the same as {axis} {smaller[-1]}"
    return None


def _tile_m(config: Config, problem: Problem, target: Target) -> str | None:
    return _idle("tile_m", problem.tokens, "rows an expert can get", config)


def _k_exceeded(stage: int, config: Config, problem: Problem) -> str | None:
    tile_k, k = config["tile_k"], problem.k(stage)
    return f"tile_k {tile_k} exceeds {_K[stage]} {k}: reads past the row" if tile_k > k else None


def _k_remainder(stage: int, config: Config, problem: Problem) -> str | None:
    tile_k, k = config["tile_k"], problem.k(stage)
    return f"tile_k {tile_k} does not divide {_K[stage]} {k}" if k % tile_k else None


def _k_short(stage: int, config: Config, problem: Problem) -> str | None:
    tile_k, k = config["tile_k"], problem.k(stage)
    if tile_k > 16 or k % 32:
        return None
    return f"tile_k {tile_k} only adds calls where 32 divides {_K[stage]} {k}"


class CpuKernel:
    """bf16 operands multiplied in fp32, tile by tile.

    tile_m is the most rows of one expert in a tile, tile_n its weight rows (half gate, half up in a gated
    stage 1), tile_k the part of the reduction that one product takes. Each tile reads its weights again.
    """

    name = "cpu"
    format: Format = FORMATS["bf16"]
    stages: tuple[int, ...] = (1, 2)
    coupling = "none"
    compiles_ahead = False
    device = "cpu"
    limits = Limits(floor=1e-3, cap=6e-3)
    implementation = "moetune_kernels.torch_cpu:TorchCpu"

    def unserved(self, target: Target) -> str | None:
        """Return why the kernel cannot run on a target, or None."""
        return None if target.arch == "cpu" else f"kernel cpu runs on the CPU, not on {target.arch}"

    def unsupported(self, shape: Shape, tp: int) -> str | None:
        """Return why the kernel cannot compute a shape at a TP, or None."""
        if shape.act == "situ":
            return "kernel cpu has no activation situ"
        if shape.biases:
            return "kernel cpu adds no biases"
        return shape.illegal(tp, self.format)

    def axes(self, stage: int) -> Mapping[str, tuple[int, ...]]:
        """Return tile_m, tile_n and tile_k, the same in both stages."""
        return _AXES

    def constraints(self, stage: int) -> tuple[Constraint, ...]:
        """Return the rules of a stage."""
        what = f"weight rows of stage {stage}"
        return (
            Constraint("tile_m beyond tokens", _tile_m),
            Constraint("tile_n beyond N", lambda c, p, _: _idle("tile_n", p.n(stage), what, c)),
            Constraint("tile_k exceeds K", lambda c, p, _: _k_exceeded(stage, c, p)),
            Constraint("tile_k does not divide K", lambda c, p, _: _k_remainder(stage, c, p)),
            Constraint("tile_k too short", lambda c, p, _: _k_short(stage, c, p)),
        )

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        """Return the least tile_m that holds an expert's mean rows, tile_n 128, the longest tile_k to 128."""
        mean = problem.expected_rows / problem.experts
        return Config.of(
            tile_m=next((value for value in _AXES["tile_m"] if value >= mean), _AXES["tile_m"][-1]),
            tile_n=128 if problem.n(stage) > 64 else 64,
            tile_k=next(value for value in (128, 64, 32, 16) if problem.k(stage) % value == 0),
        )

    def footprint(self, stage: int, config: Config, problem: Problem, target: Target) -> Footprint:
        """Return no shared memory and one thread."""
        return Footprint(shared_bytes=0, threads=1)

    def binary(self, stage: int, config: Config, problem: Problem) -> Hashable:
        """Return the same for all: nothing is compiled."""
        return self.name

    def traffic(self, stage: int, problem: Problem, rows_per_expert: Sequence[int]) -> Traffic:
        """Return bytes and operations of a stage."""
        return drawn_traffic(self.format, stage, problem, rows_per_expert)

    def computed_rows(self, stage: int, config: Config, rows_per_expert: Sequence[int]) -> int:
        """Return the useful rows: the last tile of an expert is as short as its rows."""
        return sum(rows_per_expert)

    def source_hash(self) -> str:
        """Return a hash of the implementation and of the reference, whose activation and combine it uses."""
        return source_hash(("torch_cpu.py", "reference.py"))


KERNEL = CpuKernel()
