"""The description that the grouped Triton kernels share: axes, constraints, shared memory, traffic."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from moetune.errors import KernelError
from moetune.kernel import Constraint, Footprint, Limits, rules_of
from moetune.model.config import Config
from moetune.model.floor import Traffic, padded_rows
from moetune.model.format import Format
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.model.traffic import stage_traffic

TILES_M = (16, 32, 64, 128)
_NVIDIA_REGISTERS = 256
"""Live values per thread that the 255 registers of an NVIDIA thread cannot hold."""


def tile_capacity(problem: Problem, tile_m: int) -> int:
    """Return the most M tiles that any routing of a problem makes.

    An expert with c rows has 1 + (c - 1) // tile_m tiles; the sum is largest when as many experts as possible
    have a row.
    """
    active = min(problem.rows, problem.experts)
    return active + (problem.rows - active) // tile_m


@dataclass(frozen=True)
class Grouped(ABC):
    """The description of a grouped Triton kernel; a subclass adds its default rule and its shared memory.

    `sources` are the modules that decide what is computed, `least_sm` the least compute capability times ten, `amd`
    the AMD architectures served, `tile_n` the values for stages 1 and 2.
    """

    name: str
    format: Format
    limits: Limits
    implementation: str
    sources: tuple[str, ...]
    least_sm: int
    amd: tuple[str, ...]
    tile_n: tuple[tuple[int, ...], tuple[int, ...]]
    tile_k: tuple[int, ...]
    stages: tuple[int, ...] = (1, 2)
    coupling: str = "none"
    compiles_ahead: bool = True
    device: str = "gpu"

    def unserved(self, target: Target) -> str | None:
        """Return why the kernel cannot run on a target, or None."""
        if target.vendor == "nvidia":
            if int(target.arch.removeprefix("sm_")) >= self.least_sm:
                return None
            return f"{self.name} needs sm_{self.least_sm} or newer, not {target.arch}"
        if target.arch in self.amd:
            return None
        return self.refusals().get(
            target.arch, f"{self.name} is written for {', '.join(self.archs())}, not {target.arch}"
        )

    def archs(self) -> list[str]:
        """Return the architectures served, in words."""
        return [f"sm_{self.least_sm} and newer", *self.amd]

    def refusals(self) -> Mapping[str, str]:
        """Return reasons for architectures that need one of their own."""
        return {}

    def unsupported(self, shape: Shape, tp: int) -> str | None:
        """Return why the kernel cannot compute a shape at a TP, or None."""
        if not shape.gated or shape.act != "silu" or shape.limit:
            kind = f"{'gated' if shape.gated else 'ungated'} {shape.act}{' with a limit' if shape.limit else ''}"
            return f"{self.name} computes gated silu, not {kind}"
        if shape.biases:
            return f"{self.name} adds no biases"
        illegal = shape.illegal(tp, self.format)
        if illegal:
            return illegal
        inter, step = shape.inter_at(tp), max(self.tile_k[0], self.tile_n[1][0], self.tile_n[0][0] // 2)
        for what, extent in (("model_dim", shape.model_dim), ("inter_dim", inter)):
            if extent % step:
                return f"{what} {extent} is no multiple of {self.name}'s smallest tile, {step}"
        return None

    def axes(self, stage: int) -> Mapping[str, tuple[int, ...]]:
        """Return the axes of a stage; kernels/README.md says what each does."""
        return {
            "tile_m": TILES_M,
            "tile_n": self.tile_n[stage - 1],
            "tile_k": self.tile_k,
            "num_buffers": (2, 3, 4, 5),
            "prefetch": (0, 1),
            "num_warps": (4, 8),
            "group_m": (1, 8, 16),
        }

    def constraints(self, stage: int) -> tuple[Constraint, ...]:
        """Return the rules of a stage, cheapest first."""
        rules = (
            ("tile_k above K", _k_above), ("tile_k divides K", _k_divides), ("tile_n divides N", _n_divides),
            ("num_buffers", _buffers), ("tile_m", _rows), ("registers", self._registers),
        )  # fmt: skip
        return tuple(Constraint(name, partial(rule, stage)) for name, rule in rules)

    def footprint(self, stage: int, config: Config, problem: Problem, target: Target) -> Footprint:
        """Return what a config is predicted to need."""
        threads = config["num_warps"] * target.warp_size
        return Footprint(self.shared_bytes(stage, config, problem, target), threads)

    @abstractmethod
    def shared_bytes(self, stage: int, config: Config, problem: Problem, target: Target) -> int:
        """Return the shared memory that a config is predicted to need."""

    def held(self, config: Config) -> dict[str, int]:
        """Return what a block certainly holds in registers at once, in words of 4 bytes."""
        return {"accumulator": config["tile_m"] * config["tile_n"]}

    @abstractmethod
    def rule(self, problem: Problem, target: Target) -> dict[str, int]:
        """Return the default's wish, before it is fitted to the problem."""

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        """Return the rule's config, shrunk until every constraint holds.

        tile_k and tile_n fall to the largest value that divides, num_buffers to the number of K tiles; then
        num_buffers, tile_k and tile_n give way, in this order, until registers and shared memory suffice.
        """
        axes, wish = self.axes(stage), self.rule(problem, target)
        n, k = problem.n(stage), problem.k(stage)
        rows = _most_rows(problem)
        choice = {
            "tile_m": [v for v in axes["tile_m"] if v <= min(wish["tile_m"], rows)],
            "tile_n": [v for v in axes["tile_n"] if n % v == 0 and v <= max(wish["tile_n"], axes["tile_n"][0])],
            "tile_k": [v for v in axes["tile_k"] if k % v == 0 and v <= max(wish["tile_k"], axes["tile_k"][0])],
            "num_buffers": [v for v in axes["num_buffers"] if v <= wish["num_buffers"]],
        }
        rules = rules_of(self, stage)
        tile_m = max(choice["tile_m"])
        for tile_n in reversed(choice["tile_n"]):
            for tile_k in reversed(choice["tile_k"]):
                for buffers in reversed(choice["num_buffers"]):
                    config = Config.of(
                        tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, num_buffers=buffers, prefetch=wish["prefetch"],
                        num_warps=wish["num_warps"], group_m=wish["group_m"],
                    )  # fmt: skip
                    if all(rule.check(config, problem, target) is None for rule in rules):
                        return config
        raise KernelError(f"kernel {self.name} has no config for {problem.key} stage {stage} on {target.name}")

    def binary(self, stage: int, config: Config, problem: Problem) -> Hashable:
        """Return what decides the compiled binary and those beside it: the config but group_m, and what is specialised.

        Triton specialises on whether an integer argument is 1 or a multiple of 16, and on AMD on whether a tensor
        exceeds 2 GB; the combine is compiled for a topk, the tile map for a power of two of experts.
        """
        d, inter, rows = problem.model_dim, problem.inter_dim, problem.rows
        integers = (d, inter, d // 2, inter // 2, d // 32, inter // 32)
        weights = self.format.weights.bytes(problem.experts * problem.n(stage), problem.k(stage))
        sizes = (weights, 2 * rows * d, 2 * rows * inter)
        return (
            self.name, stage, config.replace(group_m=0), tuple((i == 1, i % 16 == 0) for i in integers),
            tuple(size > 1 << 31 for size in sizes), problem.topk, problem.experts.bit_length(),
        )  # fmt: skip

    def traffic(self, stage: int, problem: Problem, active_experts: int) -> Traffic:
        """Return bytes at stored width and operations; see `stage_traffic`."""
        return stage_traffic(self.format, stage, problem, active_experts)

    def computed_rows(self, stage: int, config: Config, rows_per_expert: Sequence[int]) -> int:
        """Return the rows of whole tiles: each expert's rows, rounded up to tile_m."""
        return padded_rows(list(rows_per_expert), config["tile_m"])

    def source_hash(self) -> str:
        """Return a hash of the sources that decide what is computed and how fast."""
        return source_hash(self.sources)

    def _registers(self, stage: int, config: Config, problem: Problem, target: Target) -> str | None:
        held = self.held(config)
        each = sum(held.values()) // (config["num_warps"] * target.warp_size)
        if target.vendor != "nvidia" or each < _NVIDIA_REGISTERS:
            return None
        return f"{each} registers per thread for the {' and the '.join(held)}: they spill"


@cache
def source_hash(names: tuple[str, ...]) -> str:
    """Return a hash of modules of this package that changes with their code, not with comments or docstrings.

    It is taken of the source text, so that every Python agrees on it.
    """
    digest = hashlib.sha256()
    for name in names:
        digest.update(_code(Path(__file__).with_name(name).read_text("utf-8")).encode())
    return digest.hexdigest()[:16]


def _code(text: str) -> str:
    """Return a module's lines that are not blank, without comments and docstrings."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _most_rows(problem: Problem) -> int:
    """Return the smallest useful tile_m limit: an expert gets at most one row of each token."""
    return max(TILES_M[0], 1 << (problem.tokens - 1).bit_length())


def _reduced(stage: int) -> str:
    return "model_dim" if stage == 1 else "inter_dim"


def _k_above(stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    k = problem.k(stage)
    if config["tile_k"] <= k:
        return None
    return f"tile_k {config['tile_k']} exceeds {_reduced(stage)} {k}: reads past the row"


def _k_divides(stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    k = problem.k(stage)
    if k % config["tile_k"] == 0:
        return None
    return f"tile_k {config['tile_k']} does not divide {_reduced(stage)} {k}: the last tile reads past the row"


def _n_divides(stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    n = problem.n(stage)
    if n % config["tile_n"] == 0:
        return None
    what = f"the {n} gate and up rows" if stage == 1 else f"model_dim {n}"
    return f"tile_n {config['tile_n']} does not divide {what}: the last tile reads past the weights"


def _buffers(stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    steps = problem.k(stage) // config["tile_k"]
    if config["num_buffers"] <= max(2, steps):
        return None
    return f"num_buffers {config['num_buffers']} exceeds the {steps} K tiles: the rest stay empty"


def _rows(stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    most = _most_rows(problem)
    if config["tile_m"] <= most:
        return None
    return f"tile_m {config['tile_m']} only pads: an expert has at most {problem.tokens} rows, which {most} holds"
