"""Bytes and operations of a stage, against figures worked out apart."""

from __future__ import annotations

import numpy as np
import pytest

from moetune.catalog import load_shape
from moetune.model.floor import floor_us
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.traffic import drawn_traffic, expected_active_experts, stage_traffic, weight_bytes
from moetune.targets import load_target

QWEN = load_shape("qwen3.5-397b-a17b")


def floor(form: str, tokens: int, tp: int = 1) -> float:
    problem = Problem(QWEN, tp, form, form, tokens)
    active = expected_active_experts(512, 10, tokens)
    found = floor_us(
        [stage_traffic(FORMATS[form], s, problem, active, problem.rows) for s in (1, 2)], load_target("h200")
    )
    assert found is not None
    return found


# computed from drawn routings on an H200 by the same rule; a draw moves the small buckets by a few percent
@pytest.mark.parametrize(
    ("form", "tokens", "tp", "us"),
    [
        ("bf16", 1, 1, 54), ("bf16", 64, 1, 1967), ("bf16", 256, 1, 2731), ("bf16", 8192, 1, 2970),
        ("bf16", 8192, 2, 1563), ("bf16", 8192, 4, 860),
        ("fp8_block", 1, 1, 27), ("fp8_block", 256, 1, 1369), ("fp8_block", 8192, 1, 1558),
        ("w4a16", 1, 1, 14), ("w4a16", 64, 1, 507), ("w4a16", 256, 1, 710),
        ("w8a8_int8", 1024, 1, 1394), ("w8a8_int8", 8192, 1, 1556),
    ],
)  # fmt: skip
def test_the_floor_agrees_with_known_figures(form: str, tokens: int, tp: int, us: float) -> None:
    assert floor(form, tokens, tp) == pytest.approx(us, rel=0.004, abs=0.5)


def test_a8w4_reads_its_scales_and_is_bound_by_the_rate_at_8192_tokens() -> None:
    # an expert: 3 x 1024 x 4096 weights of 4 bits + 8 bits / 32; x, and the intermediate written and read, at
    # 33/32 bytes; 10 rows of 4096 bf16 written
    problem = Problem(QWEN, 1, "a8w4", "a8w4", 1)
    moved = sum(stage_traffic(FORMATS["a8w4"], stage, problem, 10.0, 10).bytes for stage in (1, 2))
    assert moved == 10 * 6_684_672 + 4096 * 33 // 32 + 2 * 10 * 1024 * 33 // 32 + 10 * 4096 * 2
    assert floor("a8w4", 8192) == pytest.approx(6 * 81920 * 1024 * 4096 / 7.9e14 * 1e6)


def test_operations_count_the_useful_rows_of_gate_up_and_down() -> None:
    problem = Problem(QWEN, 2, "bf16", "bf16", 16)
    operations = [stage_traffic(FORMATS["bf16"], stage, problem, 1.0, 160).operations for stage in (1, 2)]
    assert operations == [2 * 160 * 1024 * 4096, 2 * 160 * 4096 * 512]


def test_a_block_of_rows_shares_its_scales() -> None:
    assert weight_bytes(FORMATS["fp8_block"], 256, 384) == 256 * 384 + 2 * 3 * 4
    assert weight_bytes(FORMATS["w8a8_int8"], 256, 384) == 256 * 384 + 256 * 4
    assert weight_bytes(FORMATS["w4a16"], 256, 384) == 256 * 384 // 2 + 256 * 3 * 2


def test_only_the_weights_of_active_experts_are_read() -> None:
    problem = Problem(QWEN, 1, "bf16", "bf16", 16)
    one, two = (stage_traffic(FORMATS["bf16"], 2, problem, active, 160).bytes for active in (1.0, 2.0))
    assert two - one == 4096 * 1024 * 2


@pytest.mark.parametrize("tokens", [1, 4, 16, 64])
def test_the_expected_active_experts_are_the_mean_of_draws(tokens: int) -> None:
    drawn = [len(np.unique(Routing().draw(tokens, 128, 8, seed))) for seed in range(100)]
    assert expected_active_experts(128, 8, tokens) == pytest.approx(np.mean(drawn), rel=0.03)


def test_all_experts_are_active_when_each_token_goes_to_all() -> None:
    assert expected_active_experts(8, 8, 1) == 8.0


def test_zero_points_are_read_with_the_scales() -> None:
    assert (
        weight_bytes(FORMATS["w4a16_g32_zp"], 256, 384) == weight_bytes(FORMATS["w4a16_g32"], 256, 384) + 256 * 12 // 2
    )


def test_a_rank_of_several_moves_and_computes_its_share_of_the_rows() -> None:
    whole, eighth = (Problem(QWEN, 1, "bf16", "bf16", 4096, ep=ep) for ep in (1, 8))
    for stage in (1, 2):
        all_rows, rows = (stage_traffic(FORMATS["bf16"], stage, p, 0, p.expected_rows) for p in (whole, eighth))
        assert rows.operations * 8 == all_rows.operations
        assert rows.bytes < all_rows.bytes
    # 1 - (7/8)^10 of the tokens have a row here: x once for each of them, and h for each row
    assert stage_traffic(FORMATS["bf16"], 1, eighth, 0, 5120).bytes == 2 * (round(4096 * 0.73692) * 4096 + 5120 * 1024)


def test_a_skewed_draw_counts_the_rows_that_this_rank_was_sent() -> None:
    problem = Problem(QWEN, 1, "bf16", "bf16", 4096, Routing.parse("zipf:1.2"), ep=8)
    ids = problem.draw_ids(0)
    rows = np.bincount(ids[ids >= 0], minlength=problem.experts).tolist()
    found = drawn_traffic(FORMATS["bf16"], 2, problem, rows)
    assert found.operations == 2 * sum(rows) * 4096 * 1024
    assert sum(rows) != problem.expected_rows
    assert found == stage_traffic(FORMATS["bf16"], 2, problem, sum(map(bool, rows)), sum(rows))
