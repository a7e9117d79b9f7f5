"""A sweep that is killed, interrupted or starved goes on as if nothing had happened."""

from __future__ import annotations

import collections
import resource
import signal
import time
from pathlib import Path

import pytest
from command import Moetune

from moetune.ledger import read_ledger

SWEEP = ["sweep", "demo", "--kernel", "cpu", "--tp", "1", "--tokens", "1,16", "--trials", "12"]
SWEEP += ["--timer", "scripted:ScriptedTimer"]


def _merged(moetune: Moetune, out: str) -> bytes:
    done = moetune("merge", out, "--into", f"{out}.csv")
    assert done.returncode == 0, done.stderr
    return (moetune.folder / f"{out}.csv").read_bytes()


def _wait_for_trials(ledger: Path, count: int, within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not ledger.exists() or ledger.read_bytes().count(b'"record":"trial"') < count:
        assert time.monotonic() < end, "the sweep made no progress"
        time.sleep(0.02)


def _no_trial_twice(out: Path) -> None:
    counts = collections.Counter((t.problem, t.stage, t.config) for t in read_ledger(out).trials)
    assert set(counts.values()) == {1}


def test_kill_9_then_resume_gives_the_table_of_an_undisturbed_run(moetune: Moetune, tmp_path: Path) -> None:
    assert moetune(*SWEEP, "--out", "whole").returncode == 0
    moetune.environment["SCRIPTED_SLEEP_S"] = "0.02"
    for count in (3, 17):
        process = moetune.start(*SWEEP, "--out", "killed")
        _wait_for_trials(tmp_path / "killed" / "ledger.jsonl", count)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert moetune.all_gone(within_s=2), "a child outlived the killed driver"
    done = moetune(*SWEEP, "--out", "killed")
    assert done.returncode == 0, done.stderr
    assert "resuming killed: " in done.stderr and "trials kept" in done.stderr
    _no_trial_twice(tmp_path / "killed")
    assert _merged(moetune, "killed") == _merged(moetune, "whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_cleanly_and_says_how_to_resume(
    moetune: Moetune, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    moetune.environment["SCRIPTED_SLEEP_S"] = "0.05"
    process = moetune.start(*SWEEP, "--out", "o")
    _wait_for_trials(tmp_path / "o" / "ledger.jsonl", 5)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert "resume with: moetune sweep demo" in err and "Traceback" not in err
    assert not read_ledger(tmp_path / "o").torn
    assert moetune.all_gone(within_s=2)


def test_a_full_disk_stops_cleanly_with_the_ledger_intact(moetune: Moetune, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))

    done = moetune(*SWEEP, "--out", "o", preexec_fn=limit)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr and "resume with: moetune sweep" in done.stderr
    assert "Traceback" not in done.stderr
    records = read_ledger(tmp_path / "o")
    assert not records.torn and records.trials
    resumed = moetune(*SWEEP, "--out", "o")
    assert resumed.returncode == 0, resumed.stderr
    _no_trial_twice(tmp_path / "o")


def test_a_folder_that_cannot_be_written_is_said_at_once(moetune: Moetune, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    begun = time.monotonic()
    done = moetune(*SWEEP, "--out", "file/o")
    assert done.returncode == 1 and "choose another --out" in done.stderr
    assert time.monotonic() - begun < 10


def test_two_sweeps_in_one_folder_are_refused(moetune: Moetune, tmp_path: Path) -> None:
    moetune.environment["SCRIPTED_SLEEP_S"] = "0.05"
    first = moetune.start(*SWEEP, "--out", "o")
    _wait_for_trials(tmp_path / "o" / "ledger.jsonl", 1)
    second = moetune(*SWEEP, "--out", "o")
    assert second.returncode == 1 and "another sweep writes here" in second.stderr
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=20)


def test_fresh_moves_the_old_ledger_aside(moetune: Moetune, tmp_path: Path) -> None:
    assert moetune(*SWEEP, "--out", "o").returncode == 0
    old = (tmp_path / "o" / "ledger.jsonl").read_bytes()
    assert moetune(*SWEEP, "--out", "o", "--fresh").returncode == 0
    aside = [p for p in (tmp_path / "o").glob("ledger-*.jsonl")]
    assert [p.read_bytes() for p in aside] == [old]


def test_a_sweep_run_again_does_nothing_and_says_the_same(moetune: Moetune, tmp_path: Path) -> None:
    first = moetune(*SWEEP, "--out", "o")
    before = len(read_ledger(tmp_path / "o").trials)
    second = moetune(*SWEEP, "--out", "o")
    assert second.returncode == 0
    assert len(read_ledger(tmp_path / "o").trials) == before
    assert first.stdout.split("problems in")[0] == second.stdout.split("problems in")[0]


def test_a_torn_last_line_costs_one_trial(moetune: Moetune, tmp_path: Path) -> None:
    assert moetune(*SWEEP, "--out", "whole").returncode == 0
    ledger = tmp_path / "whole" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "ledger.jsonl").write_bytes(b"".join(lines[:9]) + lines[9][:40])
    done = moetune(*SWEEP, "--out", "torn")
    assert done.returncode == 0
    _no_trial_twice(torn)
    assert _merged(moetune, "torn") == _merged(moetune, "whole")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"record":"header","schema":99,"tool":"moetune"}\n', "newer"),
        (b'{"record":"header","schema":1,"tool":"other"}\n', "not moetune"),
        (b"model,us\n", "no ledger of moetune"),
    ],
)
def test_a_ledger_of_others_is_refused_and_kept(moetune: Moetune, tmp_path: Path, line: bytes, words: str) -> None:
    (tmp_path / "o").mkdir()
    ledger = tmp_path / "o" / "ledger.jsonl"
    ledger.write_bytes(line + line)
    done = moetune(*SWEEP, "--out", "o")
    assert done.returncode == 1 and words in done.stderr
    assert ledger.read_bytes() == line + line
