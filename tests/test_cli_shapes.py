"""The command `moetune shapes`."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from moetune.catalog import load_shape, shape_names
from moetune.cli import main


@pytest.fixture
def moetune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command line in this process; return its exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["moetune", "shapes", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def sheets(out: str) -> dict[str, list[dict]]:
    return {sheet["title"].split()[0]: sheet["rows"] for sheet in json.loads(out)}


def test_the_list_has_a_row_for_each_shape(moetune) -> None:
    code, out, err = moetune("--json")
    assert (code, err) == (0, "")
    rows = sheets(out)["Shapes"]
    assert [row["shape"] for row in rows] == shape_names()
    assert {
        "shape": "qwen3.5-397b-a17b", "model_dim": 4096, "inter_dim": 1024, "experts": 512, "topk": 10,
        "act": "silu", "shared": 1, "moe_layers": 60, "formats": "bf16, a8w4, a16w4", "tp": "1,2,4,8,16",
    } in rows  # fmt: skip


def test_the_list_as_text_takes_one_table(moetune) -> None:
    _, out, _ = moetune()
    assert all(out.count(f"\n{name} ") == 1 for name in shape_names())


def test_a_format_is_legal_or_says_why_at_each_degree(moetune) -> None:
    _, out, _ = moetune("qwen3.5-397b-a17b", "--json")
    rows = sheets(out)["Formats"]
    assert {row["tp"] for row in rows} == {1, 2, 4, 8, 16}
    at_16 = {row["formats"].split(", ")[0]: row for row in rows if row["tp"] == 16}
    assert [at_16[form]["legal"] for form in ("bf16", "a8w4", "fp8_block")] == ["yes", "yes", "no"]
    assert at_16["fp8_block"]["why_not"] == "inter_dim 64 is no multiple of 128"


@pytest.mark.parametrize(
    ("words", "fitted"),
    [
        (("gpt-oss-120b", "--tp", "1"), {"bf16": "masked", "a16w4": "padded: 2880 to 2944", "w4a16": None}),
        (("gpt-oss-120b", "--tp", "2"), {"a16w4": "padded: 2880 to 2944, 1440 to 1536"}),
        (("gemma-4-26b-a4b", "--tp", "1"), {"w8a8_int8": "masked", "w4a16_g32_zp": "padded: 704 to 768"}),
        (("deepseek-v2-lite", "--tp", "1"), {"w4a8_int8": None, "bf16": None}),
        (("deepseek-v2-lite", "--tp", "2"), {"w4a8_int8_g64": "steps of 64", "w4a8_int8_g32_zp": "steps of 32"}),
        (
            ("gpt-oss-20b", "--tp", "1", "--target", "gfx950"),
            {"a8w4": "no tile divides", "a16w4": "padded: 2880 to 2944"},
        ),
        (("gemma-4-26b-a4b", "--tp", "4"), {"bf16": "no GPU kernel"}),
    ],
)
def test_it_says_what_becomes_of_dimensions_that_are_no_multiple_of_128(
    moetune, words: tuple[str, ...], fitted: dict[str, str | None]
) -> None:
    _, out, _ = moetune(*words, "--json")
    found = {form: row["off_128"] for row in sheets(out)["Formats"] for form in row["formats"].split(", ")}
    assert {form: found[form] for form in fitted} == fitted


def test_where_all_are_multiples_of_128_nothing_is_said(moetune) -> None:
    assert "off 128" in moetune("gpt-oss-20b")[1]
    assert "off 128" not in moetune("demo")[1]


def test_each_bucket_shows_experts_rows_bytes_operations_and_floor(moetune) -> None:
    _, out, _ = moetune("qwen3.5-397b-a17b", "--tp", "1", "--tokens", "1,64,8192", "--json")
    rows = {(row["format"], row["tokens"]): row for row in sheets(out)["Floor"]}
    assert set(rows) == {(form, tokens) for form in ("bf16", "a8w4", "a16w4") for tokens in (1, 64, 8192)}
    assert rows["bf16", 64]["active_experts"] == pytest.approx(367, abs=0.5)
    assert rows["bf16", 64]["rows_per_active_expert"] == pytest.approx(1.74, abs=0.01)
    assert rows["bf16", 1]["bytes"] == pytest.approx(10 * 3 * 1024 * 4096 * 2, rel=1e-3)
    assert rows["bf16", 1]["operations"] == 10 * 3 * 1024 * 4096 * 2
    assert [round(rows["bf16", tokens]["floor_us"]) for tokens in (1, 64, 8192)] == [54, 1967, 2970]
    assert rows["a8w4", 1]["floor_us"] == pytest.approx(54 * 4.25 / 16, rel=0.01)


def test_the_default_buckets_and_degrees_are_the_shapes(moetune) -> None:
    _, out, _ = moetune("demo", "--json")
    rows = sheets(out)["Floor"]
    assert {row["tokens"] for row in rows} == set(load_shape("demo").tokens)
    assert {row["tp"] for row in rows} == set(load_shape("demo").tp)


def test_a_rate_that_the_target_does_not_state_is_a_dash_and_a_note(moetune) -> None:
    code, out, _ = moetune("demo", "--target", "gfx950", "--tp", "1")
    lines = out.splitlines()
    assert code == 0
    floors = [line for line in lines if line.split()[:2] == ["1", "a8w4"]]
    assert len(floors) == 3 and all(line.endswith(" -") for line in floors)
    assert lines[-1] == "floor -: target mi355x states no mxfp8_mxfp4 peak."


def test_a_format_that_is_illegal_at_a_degree_has_no_floor_there(moetune) -> None:
    _, out, _ = moetune("gpt-oss-20b", "--tp", "4", "--json")
    assert sheets(out)["Floor"] == []


def test_a_file_is_shown_like_a_bundled_shape(moetune, tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "shapes" / "demo.toml"
    (tmp_path / "mine.toml").write_text(source.read_text("utf-8"), "utf-8")
    _, out, _ = moetune(str(tmp_path / "mine"), "--json")
    assert sheets(out)["Shapes"][0]["shape"] == "mine"


def test_csv_is_read_back_by_any_reader(moetune) -> None:
    _, out, _ = moetune("--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["shape"] for row in rows] == shape_names()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dmo",), "no shape 'dmo': did you mean 'demo'"),
        (("demo", "--tp", "3"), "--tp 3: does not divide inter_dim 512 of demo"),
        (("demo", "--tokens", "many"), "--tokens 'many': write"),
        (("demo", "--target", "h20"), "no target 'h20': did you mean 'h200'"),
        (("demo", "--format", "jsn"), "--format 'jsn': did you mean 'json'"),
        (("--tp", "1"), "name the shape"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_2(moetune, words: tuple[str, ...], said: str) -> None:
    code, out, err = moetune(*words)
    assert (code, out) == (2, "")
    assert err.startswith("moetune: ") and said in err
    assert err.count("\n") == 1


def test_it_runs_from_any_folder_with_the_heavy_packages_blocked(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for name in ('torch', 'triton', 'pandas', 'optuna'): sys.modules[name] = None\n"
        "sys.argv = ['moetune', 'shapes', 'demo']\n"
        "from moetune.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Floor on h200 (sm_90)" in done.stdout
