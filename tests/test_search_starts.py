from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fakes import TARGET, FakeKernel, fake_problem

from moetune.model.config import Config
from moetune.search import Known, starting_configs
from moetune.search.starts import distance, nearest_feasible
from moetune.space import enumerate_pool

PROBLEM = fake_problem(tokens=16)
POOL = enumerate_pool(FakeKernel(), 1, PROBLEM, TARGET)


def known(config: Config, us: float = 10.0, *, stage: int = 1, **changes: Any) -> Known:
    return Known({**PROBLEM.facts(), **changes}, stage, config, us)


def test_the_fastest_few_of_a_neighbour_come_fastest_first() -> None:
    items = [known(config, us=100 - i, tokens=8) for i, config in enumerate(POOL.configs[:10])]
    assert starting_configs(PROBLEM, 1, POOL, items, few=3) == [POOL.configs[9], POOL.configs[8], POOL.configs[7]]


def test_the_next_smaller_bucket_comes_before_the_next_larger_and_the_neighbouring_tp() -> None:
    a, b, c, d = POOL.configs[:4]
    items = [
        known(a, tokens=32),
        known(b, tp=2, inter_dim=128),
        known(c, tokens=8),
        known(d, us=1.0, kernel="other"),
    ]
    assert starting_configs(PROBLEM, 1, POOL, items) == [c, a, b, d]


def test_the_next_expert_parallel_degree_counts_as_the_next_tp() -> None:
    facts = PROBLEM.facts()
    assert distance(facts, facts | {"ep": 2}) == distance(facts, facts | {"topk": 4}) == 2.0
    ranks = [known(config, ep=ep) for config, ep in zip(POOL.configs, (1, 2), strict=False)]
    assert starting_configs(PROBLEM, 1, POOL, ranks[::-1], few=1) == list(POOL.configs[:2])


def test_the_same_problem_comes_before_all_others() -> None:
    a, b = POOL.configs[:2]
    assert starting_configs(PROBLEM, 1, POOL, [known(a, us=1.0, tokens=8), known(b)])[0] == b


def test_no_more_than_the_limit_and_no_config_twice() -> None:
    items = [known(config, tokens=tokens) for tokens in (1, 2, 4, 8) for config in POOL.configs[:4]]
    assert starting_configs(PROBLEM, 1, POOL, items) == list(POOL.configs[:4])
    items = [known(POOL.configs[i], tokens=1 + i) for i in range(30)]
    assert len(starting_configs(PROBLEM, 1, POOL, items, limit=6)) == 6


def test_another_stages_configs_are_not_taken_but_a_shared_config_is() -> None:
    a, b = POOL.configs[:2]
    assert starting_configs(PROBLEM, 1, POOL, [known(a, stage=2), known(b, stage=0)]) == [b]


def test_nothing_known_or_an_empty_pool_give_nothing() -> None:
    assert starting_configs(PROBLEM, 1, POOL, []) == []
    empty = dataclasses.replace(POOL, configs=())
    assert starting_configs(PROBLEM, 1, empty, [known(POOL.configs[0])]) == []


def test_values_off_the_axes_move_to_the_nearest_on_a_log_scale() -> None:
    foreign = Config.of(tile_m=8, tile_n=96, tile_k=64, num_buffers=9, prefetch=0, num_warps=2, group_m=4)
    found = nearest_feasible(POOL, foreign)
    assert found == Config.of(tile_m=16, tile_n=128, tile_k=64, num_buffers=4, prefetch=0, num_warps=4, group_m=8)


def test_an_infeasible_config_moves_by_one_axis_and_one_step() -> None:
    wish = Config.of(tile_m=128, tile_n=128, tile_k=64, num_buffers=3, prefetch=1, num_warps=8, group_m=1)
    assert wish not in POOL
    found = nearest_feasible(POOL, wish)
    changed = [axis for axis in wish if wish[axis] != found[axis]]
    assert len(changed) == 1
    values = POOL.axes[changed[0]]
    assert abs(values.index(wish[changed[0]]) - values.index(found[changed[0]])) == 1


def test_a_tables_config_without_some_axes_and_facts_still_helps() -> None:
    row = Known(
        {"model_dim": 1024, "inter_dim": 256, "tokens": 16}, 1, Config.of(tile_m=64, tile_n=128, cluster=2), 5.0
    )
    (found,) = starting_configs(PROBLEM, 1, POOL, [row])
    assert (found["tile_m"], found["tile_n"]) == (64, 128)


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({}, {"tokens": 8}),
        ({"tokens": 8}, {"tokens": 32}),
        ({"tokens": 8}, {"tokens": 4}),
        ({"tokens": 8}, {"inter_dim": 512}),
        ({"inter_dim": 512}, {"model_dim": 8192}),
        ({"tokens": 1}, {"kernel": "other"}),
        ({"routing": "zipf:1.2"}, {"kernel": "other"}),
        ({"shape": "twin"}, {"tokens": 8}),
    ],
)
def test_nearness(nearer: dict[str, Any], farther: dict[str, Any]) -> None:
    wanted = PROBLEM.facts()
    assert distance(wanted, wanted | nearer) < distance(wanted, wanted | farther)
