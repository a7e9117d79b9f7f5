"""Options that several commands share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetune.cli.options import form_of, integers, split
from moetune.errors import UsageError


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,2,4", [1, 2, 4]),
        ("4, 1 ,4", [1, 4]),
        ("1-256", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ("1-4,1024,4096", [1, 2, 4, 1024, 4096]),
        ("3-20", [4, 8, 16]),
        ("8-8", [8]),
    ],
)
def test_numbers_and_ranges_of_powers_of_two_are_read_sorted(text: str, numbers: list[int]) -> None:
    assert integers(text, "--tokens") == numbers


@pytest.mark.parametrize("text", ["", "x", "1,,2", "0", "-1", "4-1", "1-", "1.5", "0-4"])
def test_anything_else_names_the_option_and_what_was_written(text: str) -> None:
    with pytest.raises(UsageError, match="--tokens") as caught:
        integers(text, "--tokens")
    assert repr(text) in str(caught.value)


def test_a_range_without_a_power_of_two_is_refused() -> None:
    with pytest.raises(UsageError, match="--tokens '5-7'"):
        integers("5-7", "--tokens")


def test_a_number_no_machine_holds_is_refused() -> None:
    with pytest.raises(UsageError, match="--tokens"):
        integers("9" * 400, "--tokens")


@given(st.text(max_size=12))
def test_any_text_gives_positive_sorted_numbers_or_a_usage_error(text: str) -> None:
    try:
        numbers = integers(text, "--tp")
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert numbers == sorted(set(numbers))
        assert numbers and numbers[0] >= 1


def test_an_option_repeats_or_takes_commas() -> None:
    assert split(["a,b", " c ", ""]) == ["a", "b", "c"]
    assert split(None) == []


def test_json_is_short_for_the_format() -> None:
    assert form_of("text", True) == "json"
    assert form_of("csv", False) == "csv"


def test_an_unknown_format_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="--format 'jsn': did you mean 'json'"):
        form_of("jsn", False)
