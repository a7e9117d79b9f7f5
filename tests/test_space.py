from __future__ import annotations

import itertools
import math

import pytest
from fakes import AXES, TARGET, FakeKernel, fake_problem
from hypothesis import given
from hypothesis import strategies as st

from moetune.kernel import Constraint
from moetune.model.config import Config
from moetune.space import enumerate_pool, exclusion

KERNEL = FakeKernel()
PROBLEM = fake_problem()
POOL = enumerate_pool(KERNEL, 1, PROBLEM, TARGET)


def test_every_config_of_the_axes_is_either_feasible_or_excluded() -> None:
    everything = [Config(tuple(zip(AXES, values, strict=True))) for values in itertools.product(*AXES.values())]
    excluded = [item.config for item in POOL.exclusions]
    assert sorted([*POOL.configs, *excluded]) == sorted(everything)
    assert len(everything) == math.prod(map(len, AXES.values()))
    assert not set(POOL.configs) & set(excluded)


def test_feasible_configs_satisfy_every_constraint() -> None:
    for config in POOL.configs:
        assert all(rule.check(config, PROBLEM, TARGET) is None for rule in KERNEL.constraints(1))


def test_an_exclusion_names_the_first_constraint_and_gives_its_reason() -> None:
    config = Config.of(tile_m=128, tile_n=256, tile_k=128, num_buffers=4, prefetch=1, num_warps=4, group_m=1)
    found = exclusion(KERNEL, 1, config, PROBLEM, TARGET)
    assert found is not None
    assert (found.config, found.constraint) == (config, "shared_memory")
    assert found.reason == "shared memory 491,520 of 100,000 bytes"
    assert found in POOL.exclusions


def test_a_k_tile_above_inter_dim_is_excluded_at_that_tp_only() -> None:
    wide = [
        config for config in enumerate_pool(KERNEL, 2, fake_problem(tp=1), TARGET).configs if config["tile_k"] == 128
    ]
    narrow = enumerate_pool(KERNEL, 2, fake_problem(tp=4), TARGET)
    assert wide
    assert all(config["tile_k"] <= 64 for config in narrow.configs)
    assert "tile_k 128 exceeds K 64: reads past the row" in {item.reason for item in narrow.exclusions}


def test_the_census_counts_exclusions_most_first() -> None:
    census = POOL.census()
    assert sum(census.values()) == len(POOL.exclusions)
    assert list(census.values()) == sorted(census.values(), reverse=True)
    assert set(census) == {"shared_memory", "warps"}


def test_the_default_is_in_the_pool_of_every_problem() -> None:
    for tokens, tp, stage in itertools.product((1, 16, 256), (1, 2, 4), (1, 2)):
        problem = fake_problem(tokens, tp)
        assert KERNEL.default(stage, problem, TARGET) in enumerate_pool(KERNEL, stage, problem, TARGET)


def test_an_impossible_rule_empties_the_pool() -> None:
    class Never(FakeKernel):
        def constraints(self, stage: int) -> tuple[Constraint, ...]:
            return (Constraint("never", lambda config, problem, target: "it cannot be"),)

    pool = enumerate_pool(Never(), 1, PROBLEM, TARGET)
    assert pool.configs == ()
    assert set(pool.census()) == {"never"}


@given(st.sampled_from(POOL.configs))
def test_neighbours_are_feasible_differ_in_one_axis_and_are_mutual(config: Config) -> None:
    for near in POOL.neighbours(config):
        assert near in POOL
        assert sum(near[axis] != config[axis] for axis in config) == 1
        assert config in POOL.neighbours(near)


@given(st.sampled_from(POOL.configs))
def test_no_feasible_config_one_axis_away_is_missed(config: Config) -> None:
    apart = [other for other in POOL.configs if sum(other[axis] != config[axis] for axis in config) == 1]
    assert sorted(POOL.neighbours(config)) == sorted(apart)


@given(st.sampled_from(POOL.configs))
def test_coordinates_point_back_at_the_config(config: Config) -> None:
    values = [POOL.axes[axis][at] for axis, at in zip(POOL.axes, POOL.coordinates(config), strict=True)]
    assert values == list(config.values())


def test_positions_follow_enumeration_order() -> None:
    assert [POOL.index[config] for config in POOL.configs] == list(range(len(POOL.configs)))


def test_membership_is_of_configs_only() -> None:
    assert POOL.configs[0] in POOL
    assert POOL.configs[0].replace(tile_m=17) not in POOL
    assert "tile_m=16" not in POOL
    with pytest.raises(ValueError):
        POOL.coordinates(POOL.configs[0].replace(tile_m=17))
