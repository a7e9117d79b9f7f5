"""The decisions of tuning one problem."""

from __future__ import annotations

from fakes import fake_problem

from moetune.device.answers import Run
from moetune.model.config import Config
from moetune.model.trial import Accuracy, Decision, Timing
from moetune.tuning import choose_pairs, decide, identity_of

A, B, C = (Config.of(tile_m=m) for m in (16, 32, 64))
RIGHT = Accuracy(1e-3, 2e-3, 0.0, 100, 0)


def _run(us: float, spread: float) -> Run:
    return Run(Timing(us, spread, 20), RIGHT)


def test_a_gain_beyond_both_spreads_is_tuned() -> None:
    results = {(A, A): _run(100, 2), (B, B): _run(95, 2)}
    assert decide((A, A), (B, B), results) == (Decision.TUNED, (B, B))


def test_a_gain_inside_the_spread_is_a_tie_and_the_default_stays() -> None:
    results = {(A, A): _run(100, 3), (B, B): _run(95, 3)}
    assert decide((A, A), (B, B), results) == (Decision.TIE, (A, A))


def test_the_default_wins_where_nothing_is_faster() -> None:
    results = {(A, A): _run(100, 3), (B, B): _run(105, 3)}
    assert decide((A, A), (A, A), results) == (Decision.DEFAULT, (A, A))


def _final(*entries: tuple[Config, float]) -> list[tuple[Config, Timing]]:
    return [(c, Timing(us, 0.1, 9)) for c, us in entries]


def test_pairs_are_the_default_the_fixed_default_then_the_best_sums() -> None:
    finals = [_final((A, 10), (B, 11), (C, 30)), _final((B, 5), (A, 6))]
    pairs = choose_pairs((A, A), (C, C), finals, "none")
    assert pairs[:2] == [(A, A), (C, C)]
    assert pairs[2:] == [(A, B), (B, B), (B, A), (C, B)]


def test_coupled_tiles_pair_with_their_equals_only() -> None:
    finals = [_final((A, 10), (B, 11)), _final((B, 5), (A, 6))]
    pairs = choose_pairs((A, A), (A, A), finals, "tile_m")
    assert pairs == [(A, A), (B, B)]


def test_one_config_for_both_stages_pairs_alone() -> None:
    assert choose_pairs((A,), (A,), [_final((A, 10), (B, 9))], "config") == [(A,), (B,)]


def test_a_measurement_is_used_again_only_where_all_agree() -> None:
    machine, policy = {"product": "P", "torch": "2.11"}, {"cache": "cold"}
    same = identity_of(fake_problem(16), machine, policy)
    assert same == identity_of(fake_problem(16), dict(reversed(machine.items())), policy)
    others = {
        identity_of(fake_problem(32), machine, policy),
        identity_of(fake_problem(16), {**machine, "torch": "2.12"}, policy),
        identity_of(fake_problem(16), machine, {"cache": "warm"}),
        identity_of(fake_problem(16, routing="zipf:1.2"), machine, policy),
    }
    assert len(others) == 4 and same not in others
