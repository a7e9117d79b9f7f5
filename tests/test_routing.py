"""Routings: how they are written, and what they draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetune.errors import UsageError
from moetune.model.routing import Routing

KINDS = ["uniform", "balanced", "zipf:1.2", "hot:0.5"]
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(1, 24)).filter(lambda s: s[2] <= s[1])


@pytest.mark.parametrize("text", KINDS)
def test_what_is_written_is_read_back(text: str) -> None:
    assert str(Routing.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "unform", "uniform:1", "zipf", "zipf:0", "zipf:-1", "zipf:nan", "zipf:9", "hot", "hot:1", "hot:x"],
)
def test_a_wrong_routing_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="routing") as caught:
        Routing.parse(text)
    assert repr(text) in str(caught.value)


def test_a_misspelt_routing_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'uniform'"):
        Routing.parse("unform")


@given(SIZES, st.sampled_from(KINDS), st.integers(0, 50))
def test_a_token_goes_to_distinct_experts_and_both_ends_are_reached(
    size: tuple[int, int, int], text: str, seed: int
) -> None:
    tokens, experts, topk = size
    ids = Routing.parse(text).draw(tokens, experts, topk, seed)
    assert ids.shape == (tokens, topk)
    assert ids.dtype == np.int32
    assert ids.min() >= 0 and ids.max() < experts
    assert all(len(set(row)) == topk for row in ids.tolist())
    assert (ids == experts - 1).any()
    assert (ids == 0).any() or tokens * topk == 1


@pytest.mark.parametrize(("tokens", "experts", "topk"), [(2, 5, 1), (1, 5, 2), (3, 24, 2), (1, 2, 1)])
def test_reaching_the_last_expert_never_costs_the_first_its_only_row(tokens: int, experts: int, topk: int) -> None:
    for seed in range(40):
        reached = set(Routing().draw(tokens, experts, topk, seed).ravel().tolist())
        assert experts - 1 in reached
        assert 0 in reached or tokens * topk == 1


@pytest.mark.parametrize("text", KINDS)
def test_the_seed_decides_the_draw(text: str) -> None:
    routing = Routing.parse(text)
    first = routing.draw(64, 32, 4, seed=1)
    assert np.array_equal(first, routing.draw(64, 32, 4, seed=1))
    assert text == "balanced" or not np.array_equal(first, routing.draw(64, 32, 4, seed=2))


def loads(text: str) -> np.ndarray:
    return np.bincount(Routing.parse(text).draw(2048, 32, 4, seed=0).ravel(), minlength=32)


def test_balanced_gives_each_expert_the_same_rows() -> None:
    assert set(loads("balanced")) == {256}


def test_uniform_gives_each_expert_about_the_same_rows() -> None:
    assert loads("uniform").min() > 190 and loads("uniform").max() < 330


def test_zipf_grows_more_uneven_with_its_exponent() -> None:
    uniform, mild, strong = (loads(text).max() for text in ("uniform", "zipf:0.5", "zipf:1.5"))
    assert uniform < mild < strong


def test_zipf_does_not_always_favour_the_same_expert() -> None:
    draws = [Routing.parse("zipf:1.5").draw(512, 32, 4, seed) for seed in range(6)]
    assert len({int(np.bincount(ids.ravel()).argmax()) for ids in draws}) > 1


def test_hot_sends_every_token_to_one_expert_and_leaves_experts_empty() -> None:
    rows = loads("hot:0.5")
    assert rows.max() == 2048
    assert (rows == 0).sum() == 16
