"""A shape at a tensor parallel degree, and the formats that fit it."""

from __future__ import annotations

import pytest

from moetune.model.format import FORMATS
from moetune.model.shape import Shape


def shape(model_dim: int, inter_dim: int) -> Shape:
    return Shape("s", model_dim, inter_dim, 8, 2, "silu", True, ("bf16",), (1,), (1,))


def test_each_rank_holds_its_part_of_the_intermediate() -> None:
    assert [shape(4096, 1024).inter_at(tp) for tp in (1, 2, 4)] == [1024, 512, 256]


@pytest.mark.parametrize(
    ("name", "last_legal"), [("bf16", 16), ("a8w4", 8), ("a16w4", 8), ("fp8_block", 2), ("w4a16", 2)]
)
def test_a_group_must_fit_into_the_part_of_a_rank(name: str, last_legal: int) -> None:
    # 768 over 1, 2, 4, 8, 16 ranks leaves 768, 384, 192, 96, 48
    legal = [tp for tp in (1, 2, 4, 8, 16) if shape(2048, 768).illegal(tp, FORMATS[name]) is None]
    assert legal[-1] == last_legal
    assert legal == [tp for tp in (1, 2, 4, 8, 16) if tp <= last_legal]


def test_the_reason_names_the_dimension_and_the_multiple() -> None:
    assert shape(4096, 64).illegal(1, FORMATS["w4a16"]) == "inter_dim 64 is no multiple of 128"
    assert shape(2880, 2880).illegal(1, FORMATS["w4a16"]) == "model_dim 2880 is no multiple of 128"
