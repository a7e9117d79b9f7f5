"""Predicted shared memory and registers against the compiler's own figures, on sm_90."""

import pytest
from drawn import FAMILIES, build, draw, problem

from moetune.kernel import load_kernel
from moetune.model.config import Config
from moetune.space import enumerate_pool
from moetune.targets import load_target

pytest.importorskip("triton")
pytestmark = [pytest.mark.compile, pytest.mark.timeout(1200)]

H200 = load_target("sm_90")
NEAR = 1
"""Configs of a stage nearest to a limit."""


def slack_bytes(kernel: str, config: Config) -> int:
    """Return what the compiler may need above the prediction: scratch of layout conversions, and rings of scales."""
    scales = (
        (config["tile_n"] + config["tile_m"]) * 8 * config["num_buffers"] if kernel not in ("bf16", "w8a8_int8") else 0
    )
    return 1024 + scales


def excluded(kernel: str, stage: int, constraint: str) -> list[Config]:
    """Return the configs that a constraint leaves out, without those that differ only in prefetch and group_m."""
    pool = enumerate_pool(load_kernel(kernel), stage, problem(kernel, "sm_90"), H200)
    return sorted({e.config.replace(group_m=1, prefetch=0) for e in pool.exclusions if e.constraint == constraint})


def predicted(kernel: str, stage: int, config: Config) -> int:
    return load_kernel(kernel).footprint(stage, config, problem(kernel, "sm_90"), H200).shared_bytes


@pytest.mark.parametrize("kernel", FAMILIES)
def test_shared_memory_is_close_to_the_compilers_figure_and_up_to_8_warps_a_lower_bound(kernel, compiled):
    configs = draw(kernel, "sm_90")
    for stage in (1, 2):
        pool = enumerate_pool(load_kernel(kernel), stage, problem(kernel, "sm_90"), H200).configs
        within = {config.replace(group_m=1, prefetch=0) for config in pool}
        configs += [(stage, c) for c in sorted(within, key=lambda c: -predicted(kernel, stage, c))[:NEAR]]
    wrong = []
    for stage, config in configs:
        resources = build(kernel, "sm_90", stage, config).resources
        assert resources is not None
        over = resources.shared_bytes - predicted(kernel, stage, config)
        # 16 warps may multiply a part of few rows by mma.sync, whose operands pass through registers
        step = predicted(kernel, stage, config) // config["num_buffers"] if config["num_warps"] == 16 else 0
        if not -step <= over <= slack_bytes(kernel, config) + step:
            wrong.append((stage, str(config), over))
    assert wrong == []


@pytest.mark.parametrize("kernel", FAMILIES)
def test_no_config_that_fits_is_left_out_for_its_shared_memory(kernel, compiled):
    fits = []
    for stage in (1, 2):
        over = sorted(excluded(kernel, stage, "shared memory"), key=lambda c: predicted(kernel, stage, c))[:NEAR]
        for config in over:
            resources = build(kernel, "sm_90", stage, config).resources
            assert resources is not None
            if resources.shared_bytes <= H200.shared_bytes:
                fits.append((stage, str(config), resources.shared_bytes))
    assert fits == []


@pytest.mark.parametrize("kernel", FAMILIES)
def test_no_config_that_keeps_its_registers_is_left_out_for_them(kernel, compiled):
    keeps = []
    for stage in (1, 2):
        one_each = {
            (c["tile_m"], c["tile_n"], c["num_warps"]): c for c in reversed(excluded(kernel, stage, "registers"))
        }

        def share(config: Config) -> float:
            threads = config["num_warps"] * H200.warp_size
            return sum(load_kernel(kernel).held(config).values()) / min(255 * threads, H200.registers)

        for config in sorted(one_each.values(), key=share)[:NEAR]:
            if predicted(kernel, stage, config) > H200.shared_bytes:
                continue
            resources = build(kernel, "sm_90", stage, config).resources
            assert resources is not None
            if resources.spills == 0:
                keeps.append((stage, str(config), resources.registers))
    assert keeps == []
