"""A kernel that exists only as a description, and the problems and targets to ask it about."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from moetune.kernel import Constraint, Footprint, Limits
from moetune.model.config import Config
from moetune.model.floor import Traffic
from moetune.model.format import FORMATS, Format
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.model.traffic import drawn_traffic
from moetune.model.trial import Outcome, Phase, Timing, Trial

AXES: dict[str, tuple[int, ...]] = {
    "tile_m": (16, 32, 64, 128),
    "tile_n": (32, 64, 128, 256),
    "tile_k": (32, 64, 128),
    "num_buffers": (2, 3, 4),
    "prefetch": (0, 1),
    "num_warps": (4, 8),
    "group_m": (1, 8),
}

SHAPE = Shape(
    name="fake", model_dim=1024, inter_dim=256, experts=16, topk=2, act="silu", gated=True,
    formats=("bf16",), tp=(1, 2, 4), tokens=(1, 16, 256),
)  # fmt: skip

TARGET = Target(
    name="fakegpu", arch="sm_90", vendor="nvidia", warp_size=32, shared_bytes=100_000, max_threads=1024,
    registers=65536, cu_num=64, l2_bytes=32 << 20, bandwidth=1e12, peaks={"bf16": 1e14},
    products=("Fake GPU",), source="made up for tests",
)  # fmt: skip


def fake_problem(tokens: int = 16, tp: int = 1, routing: str = "uniform", shape: Shape = SHAPE) -> Problem:
    """Return a problem of the fake kernel."""
    return Problem(shape, tp, "fake", "bf16", tokens, Routing.parse(routing))


def _shared_bytes(config: Config) -> int:
    return (config["num_buffers"] + config["prefetch"]) * (config["tile_m"] + config["tile_n"]) * config["tile_k"] * 2


def _shared_memory(config: Config, problem: Problem, target: Target) -> str | None:
    needed = _shared_bytes(config)
    return f"shared memory {needed:,} of {target.shared_bytes:,} bytes" if needed > target.shared_bytes else None


def _tile_k_of(stage: int) -> Callable[[Config, Problem, Target], str | None]:
    def check(config: Config, problem: Problem, target: Target) -> str | None:
        k = problem.k(stage)
        return f"tile_k {config['tile_k']} exceeds K {k}: reads past the row" if config["tile_k"] > k else None

    return check


def _warps(config: Config, problem: Problem, target: Target) -> str | None:
    if config["tile_m"] * config["tile_n"] < config["num_warps"] * 256:
        return f"a tile of {config['tile_m']} x {config['tile_n']} is too small for {config['num_warps']} warps"
    return None


@dataclass(frozen=True)
class FakeKernel:
    """A two-stage bf16 kernel with seven axes and three rules; `implementation` names nothing."""

    name: str = "fake"
    format: Format = FORMATS["bf16"]
    stages: tuple[int, ...] = (1, 2)
    coupling: str = "none"
    compiles_ahead: bool = True
    device: str = "gpu"
    limits: Limits = field(default_factory=lambda: Limits(floor=1e-3, cap=6e-3))
    implementation: str = "fakes:NoImplementation"
    values: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: dict(AXES), hash=False)

    def unserved(self, target: Target) -> str | None:
        return None if target.vendor == "nvidia" else f"{target.arch} is not served"

    def unsupported(self, shape: Shape, tp: int) -> str | None:
        return None if tp in shape.tp else f"tp {tp} is not one of {shape.tp}"

    def axes(self, stage: int) -> Mapping[str, tuple[int, ...]]:
        return self.values

    def constraints(self, stage: int) -> tuple[Constraint, ...]:
        return (
            Constraint("tile_k", _tile_k_of(stage)),
            Constraint("warps", _warps),
            Constraint("shared_memory", _shared_memory),
        )

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        tile_m = 16 if problem.tokens <= 64 else 64
        return Config.of(tile_m=tile_m, tile_n=64, tile_k=64, num_buffers=3, prefetch=0, num_warps=4, group_m=1)

    def footprint(self, stage: int, config: Config, problem: Problem, target: Target) -> Footprint:
        return Footprint(_shared_bytes(config), config["num_warps"] * target.warp_size)

    def binary(self, stage: int, config: Config, problem: Problem) -> Hashable:
        return (stage, config.replace(group_m=0))

    def traffic(self, stage: int, problem: Problem, rows_per_expert: Sequence[int]) -> Traffic:
        return drawn_traffic(self.format, stage, problem, rows_per_expert)

    def source_hash(self) -> str:
        return "fake"


def fake_trial(
    config: Config, us: float | None = None, *, stage: int = 1, round: int = 0, problem: str = "p",
    outcome: Outcome = Outcome.RUNTIME_ERROR, dropped: bool = False,
) -> Trial:  # fmt: skip
    """Return a trial timed at `us`, or one that failed with `outcome` where `us` is None."""
    if us is None:
        return Trial(problem, stage, config, round, Phase.CHECK, outcome, "it failed")
    timing = Timing(us, us / 100, 5 if dropped else 20, dropped)
    return Trial(problem, stage, config, round, Phase.SCREEN, Outcome.OK, timing=timing)
