"""The floor of a problem and its padded rows."""

from __future__ import annotations

import pytest

from moetune.model.floor import Traffic, floor_us, padded_rows
from moetune.model.target import Target

TARGET = Target("t", "sm_90", "nvidia", 32, 1, 1, 1, 1, 1, bandwidth=1e12, peaks={"bf16": 1e14})
BYTES_BOUND = Traffic(bytes=2_000_000, operations=10_000_000, rate="bf16")  # 2 us against 0.1 us
RATE_BOUND = Traffic(bytes=1_000_000, operations=300_000_000, rate="bf16")  # 1 us against 3 us


def test_each_stage_takes_the_longer_of_moving_and_computing() -> None:
    assert floor_us([BYTES_BOUND], TARGET) == pytest.approx(2.0)
    assert floor_us([RATE_BOUND], TARGET) == pytest.approx(3.0)
    assert floor_us([BYTES_BOUND, RATE_BOUND], TARGET) == pytest.approx(5.0)


def test_padding_stretches_the_operations_only() -> None:
    assert floor_us([BYTES_BOUND, RATE_BOUND], TARGET, padding=2.0) == pytest.approx(2.0 + 6.0)


def test_there_is_no_floor_without_a_stated_peak_or_bandwidth() -> None:
    assert floor_us([Traffic(1, 1, "fp8")], TARGET) is None
    blind = Target("t", "cpu", "cpu", 1, 0, 1, 0, 0, 0, bandwidth=0.0, peaks={"bf16": 1e14})
    assert floor_us([BYTES_BOUND], blind) is None


def test_tiles_compute_whole_tiles_of_each_expert_and_none_of_an_empty_one() -> None:
    assert padded_rows([0, 1, 16, 17], 16) == 0 + 16 + 16 + 32
    assert padded_rows([], 16) == 0
