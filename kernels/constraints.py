"""Which configs of the grouped Triton kernels are left out, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moetune.model.config import Config
from moetune.model.padding import padded
from moetune.model.problem import Problem
from moetune.model.target import Target

if TYPE_CHECKING:
    from .grouped import Grouped

_AMD_REGISTERS = 131072
"""Vector registers of a compute unit, in words of 4 bytes."""


def _k_divides(kernel: Grouped, stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    k, tile_k = problem.k(stage), config["tile_k"]
    if k % tile_k == 0 or (padded(k) % tile_k == 0 and not kernel.exact(target)):
        return None
    how = "" if kernel.exact(target) else f", nor its padding to {padded(k)}"
    return f"tile_k {tile_k} does not divide {_reduced(stage)} {k}{how}: the last tile reads past the row"


def _n_pads(kernel: Grouped, stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    n, tile_n = problem.n(stage), config["tile_n"]
    what = f"the {n} weight rows of stage 1" if stage == 1 else f"model_dim {n}"
    if kernel.exact(target) and n % tile_n:
        return f"tile_n {tile_n} does not divide {what}: the last tile reads past the weights"
    if tile_n > padded(n, 64):
        return f"tile_n {tile_n} exceeds {what}: the rest only pads"
    block = kernel.format.tile * (problem.gates if stage == 1 else 1)
    if kernel.format.tile > 1 and tile_n > block:
        return f"tile_n {tile_n} spans blocks of {kernel.format.tile} weight rows, which have scales of their own"
    return None


def _rows(kernel: Grouped, stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    tile_m, least = config["tile_m"], kernel.axes(stage)["tile_m"][0]
    most = max(least, 1 << (problem.tokens - 1).bit_length())
    if tile_m > most:
        return f"tile_m {tile_m} only pads: an expert has at most {problem.tokens} rows, which {most} holds"
    mean = problem.expected_rows / problem.experts
    if tile_m > max(2 * least, 4 * mean) and problem.routing.kind in ("uniform", "balanced"):
        return f"tile_m {tile_m} is over four times the {mean:.3g} rows of an expert: it mostly pads"
    if tile_m & (tile_m - 1) and kernel.exact(target):
        return f"tile_m {tile_m} is no power of two, which scaled matrix instructions take"
    return None


def _warps(kernel: Grouped, stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    each = config["tile_m"] * config["tile_n"] // (config["num_warps"] * 32)
    if config["num_warps"] <= 4 or each >= 8:
        return None
    return f"{config['num_warps']} warps share a tile of {config['tile_m']} x {config['tile_n']}: too little for each"


def _registers(kernel: Grouped, stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    if target.vendor == "amd" and kernel.packed and not kernel.exact(target):
        widened = config["tile_n"] * config["tile_k"]
        if widened > _AMD_REGISTERS // 4:
            return f"{widened:,} weights to widen at once: they spill, and take minutes to compile"
    if target.vendor != "nvidia":
        return None
    held, threads = kernel.held(config), config["num_warps"] * target.warp_size
    each, most = sum(held.values()) // threads, min(255, target.registers // threads)
    if each <= most * 7 // 8:
        return None
    return f"{each} of {most} registers per thread for the {' and the '.join(held)}: they spill"


def _reduced(stage: int) -> str:
    return "model_dim" if stage == 1 else "inter_dim"


def _k_above(kernel: Grouped, stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    k = problem.k(stage)
    if config["tile_k"] <= padded(k):
        return None
    return f"tile_k {config['tile_k']} exceeds {_reduced(stage)} {k}: reads past the row"


def _buffers(kernel: Grouped, stage: int, config: Config, problem: Problem, target: Target) -> str | None:
    steps = padded(problem.k(stage)) // config["tile_k"]
    if config["num_buffers"] <= max(2, steps):
        return None
    return f"num_buffers {config['num_buffers']} exceeds the {steps} K tiles: the rest stay empty"


RULES: tuple[tuple[str, Callable[[Grouped, int, Config, Problem, Target], str | None]], ...] = (
    ("tile_k above K", _k_above), ("tile_k divides K", _k_divides), ("tile_n", _n_pads), ("num_buffers", _buffers),
    ("tile_m", _rows), ("num_warps", _warps), ("registers", _registers),
)  # fmt: skip
"""By name, cheapest first; each returns a sentence, or None where a config of a stage may run."""
