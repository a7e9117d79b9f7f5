"""One thing to tune: its sizes, its name, and the facts that a table row needs."""

from __future__ import annotations

import json
from dataclasses import replace

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
