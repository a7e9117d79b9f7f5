"""A row checked on a real device."""

from __future__ import annotations

import json

import pytest
from command import Moetune

pytestmark = pytest.mark.gpu


def test_a_row_stands_beside_torch_and_the_loop_over_experts(moetune: Moetune) -> None:
    words = ["--tp", "1", "--tokens", "64", "--kernel", "bf16", "--json"]
    done = moetune("bench", "--shape", "demo", *words, timeout_s=280)
    assert done.returncode == 0, done.stderr
    rows, stages, accuracy = (sheet["rows"] for sheet in json.loads(done.stdout))
    (row,) = rows
    assert row["standing"] == "default" and row["torch_grouped_mm_us"] > 0 and row["per_expert_loop_us"] > row["us"]
    assert 0 < row["stages_us"] < row["us"] and len(stages) == 2
    assert {line["pass"] for line in accuracy} == {"yes"}
