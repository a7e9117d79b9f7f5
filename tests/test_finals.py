"""The decisions that end a problem."""

from __future__ import annotations

import pytest
from fakes import fake_problem

from moetune.device.answers import Run
from moetune.device.child import ChildDied
from moetune.finals import choose_pairs, decide, isolated
from moetune.model.config import Config
from moetune.model.trial import Accuracy, Timing
from moetune.model.verdict import Decision
from moetune.workbench import identity_of

A, B, C = (Config.of(tile_m=m) for m in (16, 32, 64))
RIGHT = Accuracy(1e-3, 2e-3, 0.0, 100, 0)


def _run(us: float, spread: float) -> Run:
    return Run(Timing(us, spread, 20), RIGHT)


def test_a_gain_beyond_both_spreads_is_tuned() -> None:
    results = {(A, A): _run(100, 2), (B, B): _run(95, 2)}
    assert decide((A, A), results) == (Decision.TUNED, (B, B))


def test_a_gain_inside_the_spread_is_a_tie_and_the_default_stays() -> None:
    results = {(A, A): _run(100, 3), (B, B): _run(95, 3)}
    assert decide((A, A), results) == (Decision.TIE, (A, A))


def test_the_default_wins_where_nothing_is_faster() -> None:
    results = {(A, A): _run(100, 3), (B, B): _run(105, 3)}
    assert decide((A, A), results) == (Decision.DEFAULT, (A, A))


def _final(*entries: tuple[Config, float]) -> dict[Config, Timing]:
    return {c: Timing(us, 0.1, 9) for c, us in entries}


def test_pairs_are_the_default_the_fixed_default_then_the_best_sums() -> None:
    finals = [_final((A, 10), (B, 11), (C, 30)), _final((B, 5), (A, 6))]
    pairs = choose_pairs((A, A), (C, C), finals, "none", 4)
    assert pairs[:2] == [(A, A), (C, C)]
    assert pairs[2:] == [(A, B), (B, B), (B, A), (C, B)]


def test_coupled_tiles_pair_with_their_equals_only() -> None:
    finals = [_final((A, 10), (B, 11)), _final((B, 5), (A, 6))]
    pairs = choose_pairs((A, A), None, finals, "tile_m", 4)
    assert pairs == [(A, A), (B, B)]


def test_one_config_for_both_stages_pairs_alone() -> None:
    assert choose_pairs((A,), None, [_final((A, 10), (B, 9))], "config", 4) == [(A,), (B,)]


def test_a_measurement_is_used_again_only_where_all_agree() -> None:
    machine, policy = {"product": "P", "torch": "2.11"}, {"cache": "cold"}
    same = identity_of(fake_problem(16), machine, policy, 0)
    assert same == identity_of(fake_problem(16), dict(reversed(machine.items())), policy, 0)
    others = {
        identity_of(fake_problem(32), machine, policy, 0),
        identity_of(fake_problem(16), {**machine, "torch": "2.12"}, policy, 0),
        identity_of(fake_problem(16), machine, {"cache": "warm"}, 0),
        identity_of(fake_problem(16, routing="zipf:1.2"), machine, policy, 0),
        identity_of(fake_problem(16), machine, policy, 1),
    }
    assert len(others) == 5 and same not in others


def _dies_with(*bad: str):
    def call(items: list[str]) -> list[int]:
        if any(item in bad for item in items):
            raise ChildDied(f"died of {items}")
        return [len(item) for item in items]

    return call


def test_a_finalist_that_kills_the_worker_is_left_out_and_told() -> None:
    answers, failed = isolated(_dies_with("bad"), ["default", "bad", "good"])
    assert answers == {"default": 7, "good": 4} and list(failed) == ["bad"]


def test_a_finalist_that_kills_only_in_company_is_left_out_and_the_others_stay() -> None:
    def call(items: list[str]) -> list[int]:
        if "late" in items and len(items) > 1:
            raise ChildDied(f"died of {items}")
        return [len(item) for item in items]

    answers, failed = isolated(call, ["default", "one", "late", "three"])
    assert answers == {"default": 7, "one": 3, "three": 5}
    assert list(failed) == ["late"] and "lost in company" in failed["late"]


def test_a_lost_default_is_lost() -> None:
    with pytest.raises(ChildDied):
        isolated(_dies_with("default"), ["default", "good"])
