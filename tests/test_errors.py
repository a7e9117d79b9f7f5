"""Exit codes, and the words that an error offers instead of a wrong one."""

from __future__ import annotations

import signal

import pytest

from moetune import errors
from moetune.errors import Interrupted, MoetuneError, UsageError, nearest


def test_a_slip_is_answered_with_the_word_it_is_nearest_to() -> None:
    assert nearest("silo", ["silu", "relu2"]) == "did you mean 'silu'?"


def test_case_does_not_hide_the_nearest_word() -> None:
    assert nearest("SILU", ["Silu", "relu2"]) == "did you mean 'Silu'?"


def test_several_near_words_are_all_offered_up_to_three() -> None:
    assert nearest("ab1", ["ab2", "ab3", "ab4", "ab5"]).count(" or ") == 2


def test_a_word_like_none_is_answered_with_all_that_are_known_in_order() -> None:
    assert nearest("xyz", ["silu", "relu2"]) == "known: relu2, silu"


def test_wrong_usage_exits_2_and_failed_work_exits_1() -> None:
    tree = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, MoetuneError)]
    usage = {e.__name__ for e in tree if e.exit_code == 2}
    assert usage == {"UsageError", "ShapeError", "KernelError", "TargetError"}
    assert {e.exit_code for e in tree if not issubclass(e, UsageError)} == {1}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_exits_with_128_and_the_signal(number: int, code: int) -> None:
    assert Interrupted("stopped", number).exit_code == code
