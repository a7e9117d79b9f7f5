"""Predicted shared memory against the compiler's own figure."""

import importlib.util
import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor

import pytest

from moetune.kernel import load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.space import enumerate_pool
from moetune.targets import load_target

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton's compiler")

SHAPE = Shape("layer", 4096, 1024, 512, 10, "silu", True, ("bf16", "a8w4"), (1,), (1,))
SAMPLE = 60
SLACK_BYTES = {"bf16": 8192, "a8w4": 16384}
"""What the compiler may need above the prediction: scratch of layout conversions."""


def problem(kernel: str) -> Problem:
    return Problem(SHAPE, 1, kernel, kernel, 8192)


def sample(kernel: str) -> list[tuple[int, Config]]:
    """Return configs of both stages, a fifth of them the nearest to the limit on either side."""
    description, target = load_kernel(kernel), load_target("sm_90")
    chosen = []
    for stage in (1, 2):
        pool = enumerate_pool(description, stage, problem(kernel), target)
        over = [e.config for e in pool.exclusions if e.constraint == "shared memory"]
        distinct = {c.replace(group_m=1) for c in (*pool.configs, *over)}
        need = {c: description.footprint(stage, c, problem(kernel), target).shared_bytes for c in sorted(distinct)}
        edge = sorted(need, key=lambda c: abs(need[c] - target.shared_bytes))[: SAMPLE // 10]
        rest = sorted(set(need) - set(edge))
        chosen += [(stage, c) for c in edge + random.Random(stage).sample(rest, SAMPLE // 2 - len(edge))]
    return chosen


def measure(kernel: str, stage: int, config: Config, cache: str) -> int:
    os.environ["TRITON_CACHE_DIR"] = cache
    implementation = load_implementation(load_kernel(kernel).implementation)
    return implementation.compile(stage, config, problem(kernel), load_target("sm_90")).shared_bytes


@pytest.mark.parametrize("kernel", ["bf16", "a8w4"])
def test_prediction_matches_the_compiler_and_excludes_nothing_that_fits(kernel, tmp_path):
    description, target = load_kernel(kernel), load_target("sm_90")
    configs = sample(kernel)
    assert len(configs) == SAMPLE
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context) as pool:
        futures = [pool.submit(measure, kernel, stage, config, str(tmp_path)) for stage, config in configs]
        found = [future.result() for future in futures]
    wrong = []
    for (stage, config), shared in zip(configs, found, strict=True):
        predicted = description.footprint(stage, config, problem(kernel), target).shared_bytes
        excluded_though_fits = shared <= target.shared_bytes < predicted
        if excluded_though_fits or not 0 <= shared - predicted <= SLACK_BYTES[kernel]:
            wrong.append((stage, str(config), shared, predicted))
    assert wrong == []
