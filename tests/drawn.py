"""Configs drawn from the legal space of a grouped kernel, with a fixed seed, and what compiling one gives."""

from __future__ import annotations

import random
from typing import NamedTuple

from moetune.kernel import load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.model.trial import Resources
from moetune.space import enumerate_pool
from moetune.targets import load_target

FAMILIES = ("bf16", "fp8_block", "a8w4", "a16w4", "w4a16", "w8a8_int8", "w4a8_int8")
ARCHS = ("sm_90", "gfx942", "gfx950", "gfx1250")
EACH = {"sm_90": 8, "gfx942": 4, "gfx950": 4, "gfx1250": 4}
"""Configs drawn for each kernel by target, over both stages: 20 in all."""

LARGE = Shape("large", 4096, 1024, 512, 10, "silu", True, tuple(FORMATS), (1, 2), (1,))
SMALL = Shape("small", 256, 128, 8, 2, "silu", True, tuple(FORMATS), (1,), (1,))


class Binary(NamedTuple):
    """The assembly of one config and, on sm_90, its resources."""

    text: str
    resources: Resources | None


def problem(kernel: str, arch: str) -> Problem:
    """Return 8192 tokens of a large layer for sm_90; elsewhere, where large tiles take minutes, 32 of a small."""
    shape, tokens = (LARGE, 8192) if arch == "sm_90" else (SMALL, 32)
    return Problem(shape, 1, kernel, kernel, tokens)


def draw(kernel: str, arch: str) -> list[tuple[int, Config]]:
    """Return stages and configs, which differ in more than group_m."""
    description, drawn = load_kernel(kernel), []
    for stage in (1, 2):
        pool = enumerate_pool(description, stage, problem(kernel, arch), load_target(arch))
        distinct = sorted({config.replace(group_m=1) for config in pool.configs})
        drawn += [(stage, c) for c in random.Random(f"{kernel} {arch} {stage}").sample(distinct, EACH[arch] // 2)]
    return drawn


def build(kernel: str, arch: str, stage: int, config: Config) -> Binary:
    """Compile a config for a target, without a device."""
    code, on, target = load_implementation(load_kernel(kernel).implementation), problem(kernel, arch), load_target(arch)
    text = code.isa(stage, config, on, target)  # type: ignore[attr-defined]
    return Binary(text, code.compile(stage, config, on, target) if arch == "sm_90" else None)
