"""One thing to tune: its sizes, its name, and the facts that a table row needs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetune.catalog import load_shape
from moetune.model.problem import Problem
from moetune.model.routing import Routing

PROBLEM = Problem(load_shape("qwen3.5-397b-a17b"), 4, "a8w4", "a8w4", 64)


def test_stage_1_multiplies_gate_and_up_and_stage_2_projects_back() -> None:
    assert (PROBLEM.n(1), PROBLEM.k(1)) == (2 * 256, 4096)
    assert (PROBLEM.n(2), PROBLEM.k(2)) == (4096, 256)


def test_an_ungated_layer_has_one_weight_row_a_column() -> None:
    ungated = replace(PROBLEM, shape=load_shape("nemotron-3-nano-30b-a3b"), tp=1)
    assert (ungated.gates, ungated.n(1)) == (1, 1856)


def test_each_token_is_routed_to_topk_rows() -> None:
    assert PROBLEM.rows == 640


def test_the_key_tells_problems_apart_and_the_chain_leaves_out_the_bucket() -> None:
    other = replace(PROBLEM, tokens=128)
    assert PROBLEM.key == "qwen3.5-397b-a17b/tp4/a8w4/t64/uniform"
    assert other.key != PROBLEM.key
    assert other.chain == PROBLEM.chain
    for change in (
        replace(PROBLEM, tp=2),
        replace(PROBLEM, kernel="x"),
        replace(PROBLEM, routing=Routing("zipf", 1.2)),
    ):
        assert change.chain != PROBLEM.chain


def test_facts_survive_json_unchanged() -> None:
    facts = PROBLEM.facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["inter_dim"] == 256
    assert facts["topk"] == 10
    assert (facts["ep"], facts["router_on_input"]) == (1, False)


class TestExpertParallel:
    EIGHTH = replace(PROBLEM, ep=8)

    def test_a_rank_holds_its_share_of_the_experts_and_expects_its_share_of_the_rows(self) -> None:
        assert (self.EIGHTH.experts, self.EIGHTH.topk, self.EIGHTH.rows) == (64, 10, 640)
        assert self.EIGHTH.expected_rows == 80.0
        assert (PROBLEM.experts, PROBLEM.expected_rows, PROBLEM.expected_tokens) == (512, 640.0, 64.0)
        assert self.EIGHTH.facts()["experts"] == 512 and self.EIGHTH.facts()["ep"] == 8

    def test_the_degree_is_in_the_key_and_the_chain_only_where_there_is_one(self) -> None:
        assert self.EIGHTH.key == "qwen3.5-397b-a17b/tp4/ep8/a8w4/t64/uniform"
        assert self.EIGHTH.chain == "qwen3.5-397b-a17b/tp4/ep8/a8w4/uniform"

    def test_without_it_the_ids_are_the_routings(self) -> None:
        assert np.array_equal(PROBLEM.draw_ids(3), PROBLEM.routing.draw(64, 512, 10, 3))

    @given(st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 8), st.integers(0, 20))
    def test_ids_are_of_this_ranks_experts_or_elsewhere_and_at_least_one_is_here(
        self, tokens: int, ep: int, topk: int, seed: int
    ) -> None:
        shape = replace(PROBLEM.shape, experts=16, topk=topk)
        problem = replace(PROBLEM, shape=shape, tokens=tokens, ep=ep)
        ids = problem.draw_ids(seed)
        assert (ids.shape, ids.dtype) == ((tokens, topk), np.int32)
        assert ids.min() >= -1 and ids.max() < problem.experts
        assert (ids >= 0).any() and (ep > 1 or (ids >= 0).all())
        for row in ids.tolist():
            here = [expert for expert in row if expert >= 0]
            assert len(set(here)) == len(here)
        assert np.array_equal(ids, problem.draw_ids(seed))

    @pytest.mark.parametrize("routing", ["uniform", "balanced", "zipf:1.2", "hot:0.5"])
    def test_the_ranks_slots_are_those_the_whole_routing_sends_to_its_experts(self, routing: str) -> None:
        problem = replace(self.EIGHTH, routing=Routing.parse(routing))
        whole, ids = replace(problem, ep=1).draw_ids(5), problem.draw_ids(5)
        rank = int(whole.min()) // problem.experts
        assert np.array_equal(ids >= 0, whole // problem.experts == rank)
        assert np.array_equal(ids[ids >= 0] + rank * problem.experts, whole[whole // problem.experts == rank])

    def test_expectations_are_the_mean_of_draws(self) -> None:
        draws = [self.EIGHTH.draw_ids(seed) >= 0 for seed in range(100)]
        assert np.mean([here.sum() for here in draws]) == pytest.approx(self.EIGHTH.expected_rows, rel=0.03)
        tokens = np.mean([here.any(1).sum() for here in draws])
        assert tokens == pytest.approx(self.EIGHTH.expected_tokens, rel=0.03)
