"""How a row stands."""

from __future__ import annotations

import dataclasses

import pytest

from moetune.model.config import Config
from moetune.model.contest import DEFAULT, ROW, Contestant, Standing
from moetune.model.trial import Timing
from moetune.referee import stand

A, B = ((Config.of(tile_m=m),) * 2 for m in (16, 32))
BASE = Contestant(DEFAULT, A, Timing(100.0, 2.0, 9))


@pytest.mark.parametrize(
    ("us", "spread_us", "standing"),
    [(90, 2, "faster"), (97, 2, "tie"), (103, 1, "tie"), (103.1, 1, "slower"), (120, 2, "slower"), (120, 20, "tie")],
)
def test_a_difference_counts_beyond_both_spreads(us: float, spread_us: float, standing: str) -> None:
    found, reason = stand(Contestant(ROW, B, Timing(us, spread_us, 9)), BASE)
    assert found == standing and found.holds == (standing != "slower")
    assert bool(reason) == (standing == "slower")


def test_a_wrong_row_is_wrong_however_fast_and_the_reason_is_kept() -> None:
    row = Contestant(ROW, B, Timing(1.0, 0.1, 9), reason="rel_l2 0.3 above 0.006")
    assert stand(row, BASE) == (Standing.WRONG, "rel_l2 0.3 above 0.006")
    assert stand(Contestant(ROW, B), BASE)[0] is Standing.WRONG


def test_against_a_default_that_is_wrong_nothing_stands() -> None:
    wrong = dataclasses.replace(BASE, reason="wrong on another draw (9 tokens): rel_l2 1")
    for row in (Contestant(ROW, B, Timing(50.0, 1.0, 9)), dataclasses.replace(wrong, name=ROW)):
        assert stand(row, wrong) == (Standing.FAILED, "the default: wrong on another draw (9 tokens): rel_l2 1")


def test_the_defaults_own_config_is_no_tie() -> None:
    assert stand(Contestant(ROW, A, BASE.layer), BASE) == (Standing.DEFAULT, "")


def test_only_what_is_right_and_not_slower_holds() -> None:
    assert {standing for standing in Standing if standing.holds} == {"faster", "tie", "default"}
