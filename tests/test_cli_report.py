from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner
from verdicts import failed, tie, verdict

from moetune.cli.report import report
from moetune.errors import MoetuneError, UsageError
from moetune.ledger import Ledger
from moetune.report.sheet import render
from moetune.report.summary import summary_sheets

VERDICTS = [verdict(1), tie(16), verdict(1, tp=2), failed(128)]
app = typer.Typer()
app.command()(report)


@pytest.fixture
def folder(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.header({"command": "moetune sweep demo"})
    for one in VERDICTS:
        ledger.verdict(one)
    ledger.close()
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_summary_is_the_one_that_ends_a_sweep(folder):
    assert run(folder, "--summary") == render(summary_sheets(VERDICTS), "text", 100) + "\n"


def test_the_whole_report_begins_with_the_summary_and_the_failures(folder):
    shown = run(folder)
    assert shown.startswith(run(folder, "--summary").rstrip("\n"))
    titles = ["Speed-up", "Failed problems", "Token buckets", "Winning configs", "Accuracy", "Outcomes", "Where"]
    places = [shown.index(title) for title in titles]
    assert places == sorted(places)


def test_json_and_csv_are_data(folder):
    (sheet,) = json.loads(run(folder, "--only", "accuracy", "--json"))
    assert [row["problem"] for row in sheet["rows"]] == [v.problem for v in (*VERDICTS[:2], VERDICTS[2])]
    rows = list(csv.DictReader(io.StringIO(run(folder, "--only", "buckets", "--by", "shape", "--format", "csv"))))
    assert [(row["tp"], row["tokens"], row["tuned_us"]) for row in rows][:2] == [
        ("1", "1", "80.0"),
        ("1", "16", "100.0"),
    ]


@pytest.mark.parametrize("arguments", [["--format", "jsn"], ["--by", "tpp"], ["--only", "accurcy"]])
def test_wrong_words_are_usage_errors(folder, arguments):
    with pytest.raises(UsageError):
        run(folder, *arguments)


@pytest.mark.parametrize("name", ["missing", "foreign.jsonl", "foreign.json", "table.csv"])
def test_a_bad_input_is_one_line_that_names_it(tmp_path, name):
    if name != "missing":
        (tmp_path / name).write_text('{"a": 1}\n')
    with pytest.raises(MoetuneError, match=name) as caught:
        run(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_it_runs_piped_and_the_same_twice_without_torch_triton_or_optuna(folder):
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'optuna'): sys.modules[name] = None\n"
        "import typer\n"
        "from moetune.cli.report import report\n"
        "app = typer.Typer(); app.command()(report); app()\n"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            capture_output=True, check=True, cwd=Path(__file__).parents[1],
            env={"PATH": "/bin", "COLUMNS": columns, "PYTHONHASHSEED": columns, "FORCE_COLOR": "1"},
        ).stdout
        for columns in ("40", "200")
    }  # fmt: skip
    assert len(shown) == 1 and b"\x1b" not in shown.pop()
