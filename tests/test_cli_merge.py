import csv
import io
import json
import subprocess
import sys
import textwrap

import pytest
from verdicts import MACHINE, failed, verdict

from moetune.cli import main
from moetune.ledger import Ledger
from moetune.tables.native import read_native


@pytest.fixture
def moetune(tmp_path, monkeypatch, capsys):
    """Return what a command prints and its exit code; the working folder is an empty one."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["moetune", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def sweep(tmp_path):
    def write(name, *verdicts):
        ledger = Ledger(tmp_path / name / "ledger.jsonl")
        ledger.header({})
        for v in verdicts:
            ledger.verdict(v)
        ledger.close()

    return write


def test_a_merge_says_what_it_did_and_wrote(moetune, sweep, tmp_path):
    sweep("a", verdict(16), verdict(1), verdict(1, routing="zipf:1.2"), failed(128))
    assert moetune("merge", "a", "--into", "t.csv") == (
        0,
        "t.csv: 3 added, 0 replaced, 0 kept, 0 refused, 0 unchanged\n"
        f"wrote {tmp_path / 't.csv'}, t.moetune.json, t.provenance.jsonl\n",
        "moetune: problems without a row, because their default is wrong: 1\n"
        "moetune: t.moetune.json alone holds 1 of the rows, which the CSV's key cannot tell apart: "
        "routing zipf:1.2 (1)\n",
    )
    code, out, _ = moetune("merge", "a", "--into", "t.csv")
    assert (code, out) == (0, "t.csv: 0 added, 0 replaced, 0 kept, 0 refused, 3 unchanged\nnothing to change\n")


def test_conflicts_are_listed_with_both_times_and_the_remedy(moetune, sweep):
    sweep("a", verdict(16))
    sweep("b", verdict(16, us=70.5, identity="other"))
    moetune("merge", "a", "--into", "t.csv")
    code, out, err = moetune("merge", "b", "--into", "t.csv")
    assert code == 0
    assert out.splitlines()[0] == (
        "kept: sm_90/132 256x128 E8 top2 moetune_bf16 t16 uniform: 80.0 us in t.csv, 70.5 us in b: "
        "not measured alike, so not compared"
    )
    assert "--prefer mine takes the inputs' rows" in err
    code, out, err = moetune("merge", "b", "--into", "t.csv", "--prefer", "mine")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(
        "replaced: sm_90/132 256x128 E8 top2 moetune_bf16 t16 uniform: 80.0 us in t.csv"
    )


def test_a_dry_run_prints_the_difference_and_writes_nothing(moetune, sweep, tmp_path):
    sweep("a", verdict(16))
    code, out, err = moetune("merge", "a", "--into", "t.csv", "--dry-run")
    assert (code, err) == (0, "")
    assert [line.split(",")[0] for line in out.splitlines()] == [
        "--- t.csv", "+++ merged", "@@ -0", "+gfx", "+sm_90", "t.csv: 1 added", f"would write {tmp_path / 't.csv'}",
    ]  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_every_step_is_in_json_and_csv(moetune, sweep):
    sweep("a", verdict(16), verdict(1))
    (sheet,) = json.loads(moetune("merge", "a", "--into", "t.csv", "--dry-run", "--json")[1])
    assert [(r["action"], r["token"], r["input_us"], r["held_us"], r["place"]) for r in sheet["rows"]] == [
        ("added", "16", 80.0, None, "csv"), ("added", "1", 80.0, None, "csv"),
    ]  # fmt: skip
    assert sheet["rows"][0]["cells"].startswith("sm_90,132,16,")
    rows = list(csv.DictReader(io.StringIO(moetune("merge", "a", "--into", "t.csv", "--format", "csv")[1])))
    assert [row["token"] for row in rows] == ["16", "1"]
    assert moetune("merge", "a", "--into", "t.csv", "--format", "markdown")[1].startswith("### t.csv: 0 added")


def test_a_refusal_is_listed_explained_and_fails_without_writing(moetune, sweep, tmp_path):
    sweep("a", verdict(16), verdict(1, kernel="a8w4", machine={**MACHINE, "arch": "gfx1250", "cu_num": 256}))
    code, out, err = moetune("merge", "a", "--into", "t.csv")
    assert code == 1
    assert out.splitlines()[0] == (
        "refused: gfx1250/256 256x128 E8 top2 moetune_a8w4 t1 uniform: 80.0 us in a: "
        "aiter's grouped kernel serves gfx1250, measured on moetune_a8w4"
    )
    assert out.splitlines()[-1] == "nothing is written"
    assert err == (
        "moetune: 1 rows refused, nothing is written: aiter reads a row's tiles, ignores its kernel's name, and drops "
        "the K tail of a tile it cannot run; name another --into or pass --foreign-kernel\n"
    )
    assert not (tmp_path / "t.csv").exists()
    assert moetune("merge", "a", "--into", "t.csv", "--foreign-kernel")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("merge", "a"), 2, "--into"),
        (("merge", "--into", "t.csv"), 2, "LEDGER_OR_TABLE"),
        (("merge", "a", "--into", "t.csv", "--prefer", "best"), 2, "faster"),
        (("merge", "a", "--into", "t.csv", "--format", "xml"), 2, "moetune: --format 'xml'"),
        (("merge", "a", "--into", "t.json"), 2, "moetune: --into t.json: name a .csv file"),
        (("merge", "a", "--into", "no/t.csv"), 1, "moetune: no: no such folder; create it"),
        (("merge", "a", "--into", "no/t.csv", "--dry-run"), 1, "moetune: no: no such folder; create it"),
        (("merge", "none", "--into", "t.csv"), 1, "moetune: none: No such file"),
        (("merge", "foreign.csv", "--into", "t.csv"), 1, "moetune: foreign.csv: not the header"),
        (("merge", "a", "--into", "foreign.csv"), 1, "moetune: foreign.csv: not the header"),
    ],
)
def test_wrong_usage_and_bad_files_have_an_exit_code_and_no_traceback(
    moetune, sweep, tmp_path, arguments, code, message
):
    sweep("a", verdict(16))
    (tmp_path / "foreign.csv").write_text("a,b\n1,2\n")
    found, _, err = moetune(*arguments)
    assert found == code
    assert message in err
    assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")) == ["a", "foreign.csv"]


@pytest.mark.parametrize("name", ["t.csv", "t.moetune.json", "t.provenance.jsonl"])
def test_a_file_of_the_table_that_cannot_be_read_is_one_line(moetune, sweep, tmp_path, name):
    sweep("a", verdict(16))
    moetune("merge", "a", "--into", "t.csv")
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    code, _, err = moetune("merge", "a", "--into", "t.csv")
    assert code == (2 if name == "t.csv" else 1)
    assert err.count("\n") == 1 and name in err


def test_help_shows_an_example(moetune):
    code, out, _ = moetune("merge", "--help")
    assert code == 0
    assert "moetune merge moetune-out/h200 --into tuned.csv" in out
    assert "nothing at all" in out


def test_it_runs_with_torch_triton_optuna_and_pandas_blocked(sweep, tmp_path):
    sweep("a", verdict(16))
    script = """
        import sys
        sys.modules.update(dict.fromkeys(["torch", "triton", "optuna", "pandas", "numpy"]))
        from moetune.cli import main
        main()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), "merge", "a", "--into", "t.csv"], cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def test_merges_at_once_lose_no_row(sweep, tmp_path):
    tokens = [1, 2, 4, 8, 16, 32]
    for t in tokens:
        sweep(str(t), verdict(t))
    command = [sys.executable, "-m", "moetune", "merge"]
    started = [subprocess.Popen([*command, str(t), "--into", "t.csv"], cwd=tmp_path) for t in tokens]
    assert [process.wait(60) for process in started] == [0] * len(tokens)
    assert [row.facts["tokens"] for row in read_native(tmp_path / "t.moetune.json")] == tokens
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 1 + len(tokens)
