from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import AXES, TARGET, FakeKernel, fake_problem

from moetune.errors import KernelError
from moetune.model.config import Config
from moetune.model.policy import Policy
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.plan import (
    Cost,
    ProblemPlan,
    StagePlan,
    estimate_seconds,
    exclusion_rows,
    first_rows,
    plan_problem,
    pool_rows,
)
from moetune.search import Known, StageSearch
from moetune.space import enumerate_pool

KERNEL = FakeKernel()
FREE = Cost(**{
    field.name: 0.0 if isinstance(field.default, float) else field.default for field in dataclasses.fields(Cost)
})  # fmt: skip
"""Nothing costs anything; the tests price one part at a time."""


def plan(tokens: int = 16, tp: int = 1, budget: int = 40, sampler: str = "auto", **changes: object) -> ProblemPlan:
    kernel = dataclasses.replace(KERNEL, **changes)  # type: ignore[arg-type]
    return plan_problem(kernel, fake_problem(tokens, tp), TARGET, budget, sampler, 0)


NO_FINALS = {"finalists": -1, "pairs": -2}
"""With the defaults, which always stand in finals, none."""


def seconds(plans: list[ProblemPlan], cores: int = 8, **changes: object) -> float:
    """Return the estimate where all but what is named is free."""
    priced = {name: value for name, value in changes.items() if name in Cost.__dataclass_fields__}
    policy = {name: value for name, value in changes.items() if name not in priced}
    cost = dataclasses.replace(FREE, **priced)  # type: ignore[arg-type]
    return estimate_seconds(plans, cores, TARGET, cost, dataclasses.replace(Policy(), **policy))  # type: ignore[arg-type]


def test_pool_rows_count_what_is_feasible_and_what_was_enumerated() -> None:
    rows = pool_rows([plan()])
    pool = enumerate_pool(KERNEL, 1, fake_problem(), TARGET)
    assert rows[0] == {
        "problem": "fake/tp1/fake/t16/uniform", "stage": 1, "feasible": len(pool.configs), "enumerated": 1152,
        "excluded": ", ".join(f"{name} {count}" for name, count in pool.census().items()),
        "sampler": "gp", "trials": 40,
    }  # fmt: skip
    assert [row["stage"] for row in rows] == [1, 2]


def test_exclusion_rows_add_up_and_give_a_reason_each() -> None:
    rows = [row for row in exclusion_rows([plan(tp=4)]) if row["stage"] == 2]
    pool = pool_rows([plan(tp=4)])[1]
    assert sum(int(row["excluded"]) for row in rows) == int(pool["enumerated"]) - int(pool["feasible"])
    reasons = {row["constraint"]: row["example"] for row in rows}
    assert reasons["tile_k"] == "tile_k 128 exceeds K 64: reads past the row"


def test_the_first_configs_are_those_a_search_asks_for() -> None:
    rows = [row for row in first_rows([plan()]) if row["stage"] == 1]
    problem = fake_problem()
    search = StageSearch(
        enumerate_pool(KERNEL, 1, problem, TARGET), KERNEL.default(1, problem, TARGET), [],
        problem=problem.key, budget=40, sampler="auto", seed=0,
    )  # fmt: skip
    assert [row["config"] for row in rows] == [str(config) for config in search.ask()[:5]]
    assert [row["default"] for row in rows] == ["yes", "", "", "", ""]


def test_a_users_configs_are_shown_after_the_default() -> None:
    config = Config.of(tile_m=64, tile_n=128, tile_k=32, num_buffers=2, prefetch=1, num_warps=8, group_m=8)
    known = [Known(fake_problem().facts(), 1, config, 5.0)]
    found = plan_problem(KERNEL, fake_problem(), TARGET, 40, "gp", 0, known)
    assert found.stages[0].first[1] == config
    assert config not in found.stages[1].first


def test_a_rank_of_several_moves_only_the_experts_that_its_own_rows_reach() -> None:
    def stages(ep: int) -> tuple[StagePlan, ...]:
        return plan_problem(KERNEL, dataclasses.replace(fake_problem(256), ep=ep), TARGET, 4, "random", 0).stages

    for whole, quarter in zip(stages(1), stages(4), strict=True):
        here = (dataclasses.replace(fake_problem(256), ep=4).draw_ids(0) >= 0).mean()
        assert quarter.traffic[0].operations == whole.traffic[0].operations * here
        assert quarter.traffic[0].bytes < whole.traffic[0].bytes / 3
        assert quarter.weight_bytes < whole.weight_bytes / 3


def test_a_small_pool_is_planned_whole() -> None:
    axes = {**AXES, "tile_m": (16,), "tile_n": (64,), "num_buffers": (3,)}
    (first, _) = pool_rows([plan(budget=100, values=axes)])
    assert first["sampler"] == "exhaustive"
    assert first["trials"] == first["feasible"]


def test_no_feasible_config_is_said_before_anything_runs() -> None:
    with pytest.raises(KernelError, match="the default of stage 1"):
        plan_problem(KERNEL, fake_problem(), dataclasses.replace(TARGET, shared_bytes=1000), 10, "auto", 0)


def test_every_trial_is_checked_and_timed() -> None:
    assert seconds([plan()], check_s=1.0, **NO_FINALS) == pytest.approx(80)
    assert seconds([plan(), plan(tokens=1)], check_s=1.0, **NO_FINALS) == pytest.approx(160)


def test_the_flush_is_paid_for_each_sample() -> None:
    assert seconds([plan()], flush_us=1e6, screen_samples=(10, 10), **NO_FINALS) == pytest.approx(800)
    assert seconds([plan()], flush_us=1e6, screen_samples=(0, 0), final_rounds=(5, 5)) == pytest.approx(5 * (2 * 9 + 6))


def test_timing_grows_with_the_floor() -> None:
    fast, slow = plan(tokens=1), plan(tokens=256)
    prices = {"over_floor": 2.0, "screen_samples": (5, 5), "final_rounds": (8, 8)}
    assert seconds([slow], **prices) > 2 * seconds([fast], **prices)


def test_compiling_ahead_is_shared_among_cores_and_else_is_serial() -> None:
    start = len(plan().stages[0].start_binaries)
    alone = seconds([plan(compiles_ahead=False)], compile_s=1.0)
    ahead = seconds([plan()], compile_s=1.0, cores=8)
    assert alone > 2 * start
    assert ahead < alone / 4
    assert seconds([plan()], compile_s=1.0, cores=1) == pytest.approx(alone)


def test_configs_that_differ_only_in_group_m_share_a_binary() -> None:
    (stage, _) = plan().stages
    assert len(stage.binaries) == stage.feasible // len(AXES["group_m"])


def test_binaries_compiled_for_one_problem_are_not_compiled_for_the_next() -> None:
    one = seconds([plan()], compile_s=1.0, cores=1)
    two = seconds([plan(), plan(tokens=1)], compile_s=1.0, cores=1)
    many = seconds([plan(tokens=t, tp=p) for t in (1, 2, 4, 8, 16, 32, 64) for p in (1, 2)], compile_s=1.0, cores=1)
    every = sum(len(stage.binaries) for stage in plan().stages)
    assert one < two < 1.9 * one
    assert many <= every


def test_timing_hides_behind_compiling_and_the_other_way_round() -> None:
    both = seconds([plan()], compile_s=1.0, check_s=0.25, cores=1, **NO_FINALS)
    compiling = seconds([plan()], compile_s=1.0, cores=1, **NO_FINALS)
    checking = seconds([plan()], check_s=0.25, **NO_FINALS)
    assert max(compiling, checking) <= both < compiling + checking


@pytest.mark.parametrize("arch", ["cpu", "sm_90"])
def test_a_target_without_rates_gets_a_positive_estimate(arch: str) -> None:
    target = dataclasses.replace(TARGET, arch=arch, bandwidth=0.0, peaks={})
    assert 0 < estimate_seconds([plan()], 2, target) < 3600


def test_an_unstated_rate_counts_as_the_slowest() -> None:
    def over(peaks: dict[str, float]) -> float:
        target = dataclasses.replace(TARGET, peaks=peaks, bandwidth=1e15)
        return estimate_seconds([plan()], 8, target, dataclasses.replace(FREE, over_floor=1.0))

    assert over({"fp8": 1e12, "int8": 2e12}) == pytest.approx(over({"bf16": 1e12}))


def test_planning_runs_nothing_loads_no_torch_and_writes_nothing(tmp_path: Path) -> None:
    class Strict(FakeKernel):
        implementation = "no_such_module:Nothing"

    code = """
import sys
for name in ("torch", "triton", "pandas"):
    sys.modules[name] = None
from fakes import TARGET, FakeKernel, fake_problem
from moetune.plan import estimate_seconds, plan_problem
print(estimate_seconds([plan_problem(FakeKernel(), fake_problem(), TARGET, 20, "auto", 0)], 2, TARGET))
"""
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {here!r})\n{code}"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_with_one_config_for_both_stages_is_one_row() -> None:
    class Whole(FakeKernel):
        def default(self, stage: int, problem: Problem, target: Target) -> Config:
            return FakeKernel().default(1, problem, target)

    found = plan_problem(Whole(stages=(0,), coupling="config"), fake_problem(), TARGET, 10, "gp", 0)
    assert [stage.stage for stage in found.stages] == [0]
    assert len(found.stages[0].traffic) == 2
