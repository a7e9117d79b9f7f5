"""The sheets of a bench."""

from __future__ import annotations

import json
from typing import Any

import pytest
from verdicts import BEST1, BEST2, CPU_MACHINE, DEFAULT, problem

from moetune.model.contest import DEFAULT as BASE
from moetune.model.contest import FIXED, ROW, Claim, Contest, Contestant, Standing
from moetune.model.trial import Accuracy, Timing
from moetune.report.bench_sheet import bench_sheets
from moetune.report.sheet import Sheet, render

LIMITS = {"rel_l2": 6e-3, "worst_row": 2.4e-2, "rel_l2_default": 5e-3}
RIGHT = Accuracy(2e-3, 4e-3, 1e-3, 100, 0)


def _timing(us: float) -> Timing:
    return Timing(us, us / 100, 9)


def _contest(number: int = 1, tokens: int = 16, us: float = 80.0, rival: Contestant | None = None) -> Contest:
    claim = Claim(number, problem(tokens), (BEST1, BEST2), us=81.0, identity="id", command=f"moetune bench {number}")
    pairs = {ROW: ((BEST1, BEST2), us), BASE: ((DEFAULT, DEFAULT), 100.0), FIXED: ((DEFAULT, DEFAULT), 100.0)}
    found = [
        Contestant(name, pair, _timing(t), _timing(t - 10), (_timing(t / 2), _timing(t / 4)), RIGHT, LIMITS)
        for name, (pair, t) in pairs.items()
    ]
    caps = {name: LIMITS[name] for name in ("rel_l2", "worst_row")}
    found.append(rival or Contestant("torch grouped_mm", (), _timing(120.0), accuracy=RIGHT, limits=caps))
    return Contest(
        claim, Standing.FASTER, "", tuple(found), (20.0, 10.0), 40.0, alike=number == 1, machine=dict(CPU_MACHINE)
    )


def _rows(sheet: Sheet) -> list[dict[str, Any]]:
    return [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]


def test_a_row_stands_beside_default_floor_and_rivals() -> None:
    (row,) = _rows(bench_sheets([_contest()])[0])
    assert (row["us"], row["table_us"], row["default_us"], row["fixed_default_us"]) == (80.0, 81.0, 100.0, 100.0)
    assert (row["speed_up"], row["torch_grouped_mm_us"], row["standing"]) == (1.25, 120.0, "faster")
    assert (row["stages_us"], row["floor_us"]) == (70.0, 30.0) and row["floor_share"] == pytest.approx(30 / 70)
    assert row["command"] == "moetune bench 1" and row["measured_alike"] == "yes"


def test_each_stage_stands_alone_beside_its_floor_and_config() -> None:
    one, two = _rows(bench_sheets([_contest()])[1])
    assert (one["us"], one["default_us"], one["floor_us"], one["config"]) == (40.0, 50.0, 20.0, str(BEST1))
    assert (two["us"], two["floor_share"], two["default_config"]) == (20.0, 0.5, str(DEFAULT))


def test_accuracy_names_each_contestant_once() -> None:
    rows = _rows(bench_sheets([_contest()])[2])
    assert [row["contestant"] for row in rows] == [ROW, BASE, "torch grouped_mm"]
    assert [row["default_limit"] for row in rows] == [5e-3, 5e-3, None]
    assert {row["pass"] for row in rows} == {"yes"}


def test_a_rival_that_is_wrong_has_no_time_and_says_why() -> None:
    rival = Contestant("torch grouped_mm", (), _timing(1.0), accuracy=RIGHT, limits=LIMITS, reason="two runs differ")
    sheets = bench_sheets([_contest(rival=rival)])
    assert _rows(sheets[0])[0]["torch_grouped_mm_us"] is None
    last = _rows(sheets[2])[-1]
    assert (last["pass"], last["reason"]) == ("no", "two runs differ")
    assert "two runs differ" in render(sheets[2:], "text", 200)


def test_a_row_that_never_ran_keeps_its_line() -> None:
    claim = Claim(2, problem(128), (BEST1, BEST2), command="moetune bench 2", fault="config1 cannot run: why")
    contest = Contest(claim, Standing.WRONG, claim.fault, machine=dict(CPU_MACHINE))
    (sheet,) = bench_sheets([contest])
    (row,) = _rows(sheet)
    assert (row["standing"], row["us"], row["reason"]) == ("wrong", None, "config1 cannot run: why")
    both = bench_sheets([_contest(), contest])
    assert [len(sheet.rows) for sheet in both] == [2, 2, 3]
    assert "config1 cannot run: why" in render(both, "text", 200)


def test_several_rows_have_their_means_and_the_title_what_they_share() -> None:
    sheet = bench_sheets([_contest(), _contest(2, 128, 50.0)])[0]
    assert sheet.title == "Rows against the default: bf16, demo, TP 1, uniform routing, cpu"
    (means,) = [note for note in sheet.notes if note.startswith("geomean")]
    assert means.startswith("geomean over 2 rows: 1.58 over the default")
    assert any(note.endswith("all but those of rows 2.") for note in sheet.notes)


def test_every_format_renders_and_json_is_data() -> None:
    sheets = bench_sheets([_contest()])
    assert all(render(sheets, form) for form in ("text", "markdown", "csv"))
    assert [len(sheet["rows"]) for sheet in json.loads(render(sheets, "json"))] == [1, 2, 3]
