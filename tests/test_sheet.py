from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys

import pytest

from moetune.report.sheet import Sheet, number, render

TIMES = Sheet(
    "Times",
    ("shape", "tokens", "best_us", "speed_up", "config"),
    (
        ("demo", 1, 12.345678, 1.2345, "tile_m=16;tile_n=128"),
        ("demo", 8192, 123456.78, None, None),
    ),
    ("One note.",),
    hidden=("shape",),
)
WIDE = Sheet("Wide", tuple(f"c{i}_us" for i in range(12)), (tuple(1234567.8 + i for i in range(12)),))


def test_text_rounds_microseconds_to_a_tenth_and_ratios_to_three_digits():
    text = render([TIMES], "text")
    assert "12.3 " in text and "1.23 " in text and "123456.8" in text


def test_text_writes_none_as_a_dash_and_leaves_out_hidden_columns():
    lines = render([TIMES], "text").splitlines()
    assert lines[0] == "Times" and lines[-1] == "One note."
    assert lines[-2].split() == ["8192", "123456.8", "-", "-"]
    assert "shape" not in lines[1]


@pytest.mark.parametrize("width", [40, 80, 100])
def test_text_fits_its_width_and_keeps_every_number_whole(width):
    text = render([WIDE, TIMES], "text", width)
    assert max(map(len, text.splitlines())) <= width
    for i in range(12):
        assert f"{1234567.8 + i:.1f}" in text


def test_text_too_wide_for_one_piece_repeats_the_key_columns():
    sheet = Sheet("T", ("name", "tokens", *(f"a{i}_us" for i in range(9))), (("demo", 16, *[123456.7] * 9),), keys=2)
    pieces = render([sheet], "text", 60).split("\n\n")
    assert len(pieces) == 3
    assert all(piece.splitlines()[-1].split()[:2] == ["demo", "16"] for piece in pieces)


def test_text_breaks_a_config_between_axes_only():
    config = ";".join(f"axis_{i}={i}00" for i in range(9))
    text = render([Sheet("C", ("config",), ((config,),))], "text", 40)
    assert all(f"axis_{i}={i}00" in text for i in range(9))


def test_text_has_no_trailing_blanks_and_no_escapes_where_it_is_piped():
    code = "from moetune.report.sheet import *; print(render([Sheet('T', ('a', 'b'), ((1, 'x'),))], 'text'))"
    shown = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env={"PATH": "/bin", **environment}
        ).stdout.decode()
        for environment in ({"COLUMNS": "20"}, {"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    ]
    assert shown[0] == shown[1]
    assert "\x1b" not in shown[0] and all(line == line.rstrip() for line in shown[0].splitlines())


def test_text_on_a_terminal_takes_its_width(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    shown = render([WIDE], "text")
    assert "\x1b[1m" in shown
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 50


def test_an_empty_sheet_says_so_in_text():
    assert render([Sheet("Nothing", ("a",), ())], "text") == "Nothing\n  none"


def test_markdown_aligns_numbers_right_and_escapes_bars():
    sheet = Sheet("M", ("what", "n"), (("a|b", 3),))
    assert render([sheet], "markdown").splitlines() == [
        "### M", "", "| what | n |", "| --- | ---: |", "| a\\|b | 3 |",
    ]  # fmt: skip


def test_csv_is_raw_and_has_all_columns():
    rows = list(csv.DictReader(io.StringIO(render([TIMES], "csv"))))
    assert rows[0] == {
        "shape": "demo", "tokens": "1", "best_us": "12.345678", "speed_up": "1.2345", "config": "tile_m=16;tile_n=128",
    }  # fmt: skip
    assert rows[1]["speed_up"] == ""


def test_csv_of_several_sheets_is_one_table_led_by_the_sheet():
    rows = list(csv.DictReader(io.StringIO(render([TIMES, Sheet("Other", ("tokens", "x"), ((2, "y"),))], "csv"))))
    assert [row["sheet"] for row in rows] == ["Times", "Times", "Other"]
    assert rows[2]["tokens"] == "2" and rows[2]["x"] == "y" and rows[2]["best_us"] == ""


def test_json_is_raw_with_rows_as_objects_and_no_nan():
    sheet = Sheet("J", ("a", "b_us"), ((1, float("nan")), (2, 0.123456789)), ("n",))
    assert json.loads(render([sheet], "json")) == [
        {"title": "J", "columns": ["a", "b_us"], "rows": [{"a": 1, "b_us": None}, {"a": 2, "b_us": 0.123456789}],
         "notes": ["n"]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "column", "shown"),
    [
        (0.0, "x", "0.00"), (1.0, "x", "1.00"), (0.000012345, "x", "1.23e-05"), (999.4, "x", "999"),
        (999.6, "x", "1000"), (12345.6, "x", "12346"), (100.0, "x", "100"),
        (0.0353, "best_us", "0.035"), (0.96, "us", "1.0"), (0.5, "us", "0.50"), (0.0, "us", "0.0"),
        (0.949, "us", "0.95"),
        (7064.06, "us", "7064.1"), (float("inf"), "x", "inf"), (-1.5, "x", "-1.50"),
    ],
)  # fmt: skip
def test_number_is_short_and_plain(value, column, shown):
    assert number(value, column) == shown
