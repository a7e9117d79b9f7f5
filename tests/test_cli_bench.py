"""The command `moetune bench`: rows and configs re-timed in real child processes."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import PLUGINS, Moetune
from test_faults import FAULTS
from verdicts import verdict

from moetune.cli import main
from moetune.model.config import Config
from moetune.tables.aiter import HEADER
from moetune.tables.native import native_bytes
from moetune.tables.row import Row

sys.path.insert(0, str(PLUGINS))
from scripted import scripted_us

SCRIPTED = ["--timer", "scripted:ScriptedTimer", "--quiet"]
WORDS = ["bench", "--shape", "demo", "--tp", "1", "--tokens", "16"]
DEFAULT = Config.of(tile_m=16, tile_n=128, tile_k=128)
OTHERS = [DEFAULT.replace(tile_n=tile_n, tile_k=tile_k) for tile_n in (64, 256) for tile_k in (32, 64, 128)]


def _us(config: Config) -> float:
    return scripted_us(f"demo/tp1/cpu/t16/uniform | pair | {config}")


FASTER, SLOWER = min(OTHERS, key=_us), max(OTHERS, key=_us)


def _sheets(out: str) -> dict[str, list[dict[str, Any]]]:
    return {sheet["title"].split()[0]: sheet["rows"] for sheet in json.loads(out)}


def _with_a_foreign_row(table: Path) -> str:
    text = table.read_text()
    cells = text.splitlines()[-1].split(",")
    cells[HEADER.index("token")] = "64"
    cells[HEADER.index("kernelName1")] = cells[HEADER.index("kernelName2")] = "theirs"
    return f"{text}{','.join(cells)}\n"


@pytest.fixture(scope="module")
def swept(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweep two problems, and merge them into a table."""
    folder = tmp_path_factory.mktemp("swept")
    moetune = Moetune(site, folder)
    words = ["sweep", "demo", "--kernel", "cpu", "--tp", "1", "--tokens", "1,16", "--trials", "6", "--out", "o"]
    assert moetune(*words, *SCRIPTED).returncode == 0
    assert moetune("merge", "o", "--into", "o/table.csv").returncode == 0
    return folder / "o"


def test_a_sweeps_rows_hold_and_each_gives_the_command_that_repeats_it(moetune: Moetune, swept: Path) -> None:
    done = moetune("bench", str(swept), *SCRIPTED, "--out", "o", "--json")
    assert done.returncode == 0, done.stderr
    sheets = _sheets(done.stdout)
    first, second = sheets["Rows"]
    assert (first["row"], first["tokens"], second["row"], second["tokens"]) == (1, 1, 2, 16)
    for row in (first, second):
        assert row["us"] == row["table_us"] <= row["default_us"] and row["measured_alike"] == "yes"
        assert row["per_expert_loop_us"] > 0 and 0 < row["floor_us"] <= row["padded_floor_us"]
        assert row["stages_us"] > 0 and row["fixed_default_us"] > 0
    assert [(line["row"], line["stage"]) for line in sheets["Stages"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    judged = [line for line in sheets["Accuracy"] if line["row"] == 2]
    assert [line["contestant"] for line in judged] == ["row", "default", "per-expert loop"]
    assert all(line["pass"] == "yes" and line["rel_l2"] <= line["limit"] for line in judged)
    again = moetune(*shlex.split(second["command"])[1:], *SCRIPTED, "--out", "o", "--json")
    assert again.returncode == 0, again.stderr
    (repeated,) = _sheets(again.stdout)["Rows"]
    same = ("tokens", "config1", "config2", "us", "default_us", "per_expert_loop_us", "command")
    assert {name: repeated[name] for name in same} == {name: second[name] for name in same}


def test_a_csv_without_its_json_is_checked_by_its_kernel_names_and_foreign_rows_are_left_out(
    moetune: Moetune, swept: Path, tmp_path: Path
) -> None:
    (tmp_path / "alone.csv").write_text(_with_a_foreign_row(swept / "table.csv"))
    done = moetune("bench", "alone.csv", *SCRIPTED, "--out", "o")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "left out: alone.csv: row 3: measured on theirs, which is no kernel of moetune's\n"
    words = "moetune bench --shape demo --tp 1 --tokens 16 --kernel cpu --config1 '"
    assert f"# row 2\n{words}" in done.stdout and "# row 3" not in done.stdout


@pytest.mark.parametrize(("config", "code", "standing"), [(FASTER, 0, "faster"), (SLOWER, 1, "slower")])
def test_a_slower_row_fails_and_is_named(moetune: Moetune, config: Config, code: int, standing: str) -> None:
    assert _us(FASTER) < _us(DEFAULT) < _us(SLOWER)
    configs = ["--config1", str(config), "--config2", f"tile_n={config['tile_n']};tile_k={config['tile_k']}"]
    done = moetune(*WORDS, "--kernel", "cpu", *configs, *SCRIPTED, "--out", "o", "--json")
    assert done.returncode == code, done.stderr
    (row,) = _sheets(done.stdout)["Rows"]
    assert row["standing"] == standing and row["config1"] == row["config2"] == str(config)
    if code:
        said = "moetune: 1 of 1 rows do not hold (row 1); first: row 1 (demo/tp1/cpu/t16/uniform): slower: "
        assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    else:
        assert done.stderr == ""


def test_each_fault_is_told_of_its_row_alone(moetune: Moetune, tmp_path: Path) -> None:
    faults = {
        "hangs": "stage 1: timeout", "wrong_tile": "stage 1: inaccurate: rel_l2", "aborts_in_layers": "SIGABRT",
        "wrong_elsewhere": "wrong on another draw (9 tokens)", "none": "",
    }  # fmt: skip
    config2 = Config.of(tile_m=16, tile_n=128, tile_k=64)
    configs = [Config.of(**config2, fault=FAULTS.index(fault)) for fault in faults] + [config2]
    rows = [Row(verdict(16, kernel="faulty", config1=config, config2=config2)) for config in configs]
    (tmp_path / "faults.moetune.json").write_bytes(native_bytes(rows))
    done = moetune("bench", "faults.moetune.json", *SCRIPTED, "--deadline", "2", "--out", "o", "--json")
    assert done.returncode == 1, done.stderr
    assert "5 of 6 rows do not hold (row 1, 2, 3, 4, 6); first: row 1 (demo/tp1/faulty/t16/uniform): " in done.stderr
    lines = _sheets(done.stdout)["Rows"]
    for line, said in zip(lines, [*faults.values(), "config1 cannot run: the config lacks fault"], strict=True):
        assert (line["standing"], line["us"] is None) == (("wrong", True) if said else ("default", False))
        assert said in line["reason"] and (line["default_us"] or line["row"] == 6)
    assert lines[0]["command"] == "moetune bench faults.moetune.json --row 1 --seed 0", "no shape file has these sizes"


def test_what_does_not_compile_is_wrong_and_the_default_is_timed(moetune: Moetune) -> None:
    done = moetune(*WORDS, "--kernel", "compiled", "--config1", "way=3", *SCRIPTED, "--out", "o", "--json")
    assert done.returncode == 1
    assert "wrong: stage 1: compile_error: RuntimeError: PassManager::run failed" in done.stderr
    assert _sheets(done.stdout)["Rows"][0]["default_us"] > 0


def test_a_wrong_default_leaves_nothing_to_judge_by(moetune: Moetune) -> None:
    done = moetune(*WORDS[:-1], "1,16", "--kernel", "broken", *SCRIPTED, "--out", "o", "--json")
    assert done.returncode == 1
    assert "row 2 (demo/tp1/broken/t16/uniform): failed: the default's output is wrong" in done.stderr
    assert [row["standing"] for row in _sheets(done.stdout)["Rows"]] == ["default", "failed"]


def test_a_kernel_of_one_config_has_one(moetune: Moetune) -> None:
    words = [*WORDS, "--kernel", "coupled", "--config1", "tile_n=128"]
    done = moetune(*words, *SCRIPTED, "--out", "o", "--json")
    sheets = _sheets(done.stdout)
    assert sheets["Rows"][0]["config1"] == "tile_m=16;tile_n=128;tile_k=32" and "config2" not in sheets["Rows"][0]
    assert [line["stage"] for line in sheets["Stages"]] == ["both"]
    refused = moetune(*words, "--config2", "tile_n=64")
    assert refused.returncode == 2 and "share one config" in refused.stderr


def test_ranks_of_several_are_timed_with_their_own_rows(moetune: Moetune) -> None:
    words = [*WORDS, "--ep", "1,4", "--kernel", "cpu", *SCRIPTED, "--out", "o", "--json"]
    done = moetune(*words)
    assert done.returncode == 0, done.stderr
    sheets = _sheets(done.stdout)
    assert [(row["ep"], row["standing"]) for row in sheets["Rows"]] == [(1, "default"), (4, "default")]
    assert sheets["Rows"][1]["floor_us"] < sheets["Rows"][0]["floor_us"] / 2
    assert {line["pass"] for line in sheets["Accuracy"]} == {"yes"}


def test_a_signal_ends_it_with_what_was_timed(moetune: Moetune, tmp_path: Path) -> None:
    moetune.environment["SCRIPTED_SLEEP_S"] = "0.3"
    process = moetune.start(*WORDS[:-1], "1,16", "--kernel", "cpu", *SCRIPTED, "--out", "o")
    end = time.monotonic() + 60
    while not (tmp_path / "o" / "worker.log").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143
    assert "stopped by SIGTERM" in err and "of 2 rows timed; again: moetune bench --shape demo" in err
    assert moetune.all_gone(within_s=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "name a TABLE, or a shape with --shape NAME"),
        ("table.csv --shape demo", "not both"),
        ("table.csv --tokens 16", "--tokens: goes with --shape"),
        ("table.csv --ep 2", "--ep: goes with --shape"),
        ("--shape demo --kernel cpu --row 1", "--row: goes with a TABLE"),
        ("--shape demo", "--kernel: name the kernel"),
        ("--shape demo --kernel cpu --config1 tile_q=16", "--config1: no axis 'tile_q' in kernel cpu: did you mean"),
        ("--shape demo --kernel cpu --config1 tile_m=17", "tile_m 17 is no value of its axis; 16, 32, 64 are"),
        ("--shape demo --kernel cpu --config2 tile_m=16;tile_m=32", "--config2: tile_m is given twice"),
        ("--shape demo --kernel cpu --config1 tile_m:16", "--config1: config 'tile_m:16': write it as"),
        ("--shape demo --kernel cpu --tokens 16 --config1 tile_m=64", "tile_m 64 exceeds the 16 rows"),
        ("--shape demo --kernel cpu --gpus 0", "--gpus '0': cpu runs on the CPU"),
        ("--shape demo --kernel cpu --ep 3", "--ep 3: does not divide the 8 experts of demo"),
        ("--shape demo --kernel cpu --ep many", "--ep 'many': write numbers as 1,2,4"),
        ("--shape demo --kernel cup", "no kernel 'cup': did you mean 'cpu'?"),
        ("--shape demo --kernel cpu-loop", "no kernel 'cpu-loop': kernel 'cpu' has no launches expert by expert"),
        ("--shape demo --kernel cpu --routing unifrm", "routing 'unifrm'"),
        ("table.csv --row 4", "--row 4: table.csv has 3 rows"),
        ("table.csv --row 3", "row 3: measured on theirs, which is no kernel of moetune's; nothing was timed"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_before_anything_runs(
    words: str, said: str, swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "table.csv").write_text(_with_a_foreign_row(swept / "table.csv"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("moetune.choosing.has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["moetune", "bench", *words.split()])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert err.startswith("moetune: ") and said in err and err.count("\n") == 1
    assert not (tmp_path / "moetune-out").exists()


def test_a_gpu_kernel_without_a_gpu_is_the_line_of_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("moetune.choosing.has_gpu", lambda: False)
    lines = []
    for words in (["sweep", "demo"], ["bench", "--shape", "demo"]):
        monkeypatch.setattr(sys, "argv", ["moetune", *words, "--kernel", "bf16"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        lines.append(capsys.readouterr().err)
    assert lines[0] == lines[1] and lines[0].startswith("moetune: --kernel bf16: ")
