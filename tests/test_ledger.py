import dataclasses
import itertools
import json
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from verdicts import failed, verdict

from moetune.errors import LedgerError, OutputError
from moetune.ledger import SCHEMA, Ledger, Records, read_ledger
from moetune.model.config import Config
from moetune.model.trial import Accuracy, Entry, Final, Outcome, Phase, Resources, Timing, Trial

TRIAL = Trial(
    "demo/tp1/cpu/t16/uniform", 1, Config.of(tile_m=16, tile_n=64), 0, Phase.SCREEN, Outcome.OK, identity="id",
    resources=Resources(1024, 32, 0, 128), accuracy=Accuracy(1e-3, 2e-3, 0.0, 4096, 0), timing=Timing(12.5, 0.1, 20),
    seconds={"check": 0.5},
)  # fmt: skip
FAULT = Trial(
    "demo/tp1/cpu/t16/uniform", 2, Config.of(tile_m=32), 1, Phase.CHECK, Outcome.OUT_OF_BOUNDS, reason="guard of w2"
)
FINAL = Final(
    TRIAL.problem, "pair", 0,
    (Entry(TRIAL.config, None, Timing(9.0, 0.2, 50)), Entry(TRIAL.config, FAULT.config, Timing(8.0, 0.2, 50))),
    identity="id", clock_mhz=(1980, 1965),
)  # fmt: skip


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "out" / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.header({"machine": {"arch": "cpu"}})
    ledger.trials([TRIAL, FAULT])
    ledger.final(FINAL)
    ledger.verdict(verdict(16, us=90.0))
    ledger.verdict(failed(1))
    ledger.verdict(verdict(16))
    ledger.close()
    return path


def test_what_is_appended_is_read_back(path):
    records = read_ledger(path.parent)
    assert records.headers[0]["machine"] == {"arch": "cpu"}
    assert records.trials == [TRIAL, FAULT]
    assert records.finals == [FINAL]
    assert records.verdicts == [verdict(16, us=90.0), failed(1), verdict(16)]
    assert records.latest_verdicts() == [verdict(16), failed(1)]
    assert (records.torn, records.size) == (False, path.stat().st_size)


def latest(*verdicts):
    return Records(Path("ledger.jsonl"), verdicts=list(verdicts)).latest_verdicts()


def test_of_one_identity_the_best_founded_verdict_stands():
    most, few = verdict(16, search={"trials": 100}, us=90.0), verdict(16, search={"trials": 10})
    cut = verdict(16, search={"trials": 200}, complete=False)
    wrong = failed(16)
    for order in itertools.permutations([most, few, cut, wrong]):
        assert latest(*order) == [most]
    assert latest(cut, few) == latest(few, cut) == [few]
    assert latest(cut, wrong) == latest(wrong, cut) == [cut]


def test_of_verdicts_as_well_founded_the_later_stands():
    one, other = verdict(16, us=90.0), verdict(16, us=70.0)
    assert latest(one, other) == [other]
    assert latest(other, one) == [one]


def test_a_later_verdict_replaces_one_of_another_identity_whatever_they_are():
    most, cut = verdict(16, search={"trials": 100}), verdict(16, identity="new", complete=False)
    assert latest(most, cut) == [cut]
    assert latest(most, failed(16, identity="new")) == [failed(16, identity="new")]
    last = verdict(16, search={"trials": 10})
    assert latest(most, cut, last) == [most]


def test_two_layers_of_one_name_are_two_problems_in_first_seen_order():
    one, other, later = verdict(16), verdict(16, facts={"inter_dim": 64}), verdict(16, us=70.0)
    assert latest(one, verdict(1), other, later) == [later, verdict(1), other]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"median_us": 0.0}, "is no timing"),
        ({"median_us": -1.0}, "is no timing"),
        ({"median_us": float("nan")}, "median_us nan is no finite number"),
        ({"median_us": "12.5"}, "median_us '12.5' is no finite number"),
        ({"spread_us": float("inf")}, "spread_us inf is no finite number"),
        ({"spread_us": None}, "spread_us None is no finite number"),
        ({"samples": 0}, "is no timing"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_trial_without_a_sound_time_names_its_line(path, change, words, last):
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[1])
    record["timing"] |= change
    bad = json.dumps(record).encode() + b"\n"
    path.write_bytes(b"".join([lines[0], bad, *([] if last else lines[1:])]))
    with pytest.raises(LedgerError, match=f"line 2 cannot be read .*{words}"):
        read_ledger(path)


@pytest.mark.parametrize(
    "change",
    [{"us": float("nan")}, {"us": -1.0}, {"us": "80"}, {"default_us": float("inf")}, {"default_us": None},
     {"floor_us": -1.0}, {"stage_us": [1.0, float("nan")]}],
)  # fmt: skip
def test_a_verdict_without_sound_times_names_its_line(path, change):
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[-1]) | change
    path.write_bytes(b"".join([*lines[:-1], json.dumps(record).encode() + b"\n"]))
    with pytest.raises(LedgerError, match=f"line 7 cannot be read .{next(iter(change))}"):
        read_ledger(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ep": 0}, "facts.ep 0 is no count"),
        ({"ep": None}, "facts.ep None is no count"),
        ({"tokens": "16"}, "facts.tokens '16' is no count"),
        ({"experts": True}, "facts.experts True is no count"),
        ({"ep": 3}, "facts.ep 3 does not divide the experts"),
        ({"topk": 99}, "facts.topk 99 is above the experts"),
    ],
)
def test_a_verdict_without_sound_counts_names_its_line(path, change, words):
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[-1])
    record["facts"] |= change
    path.write_bytes(b"".join([*lines[:-1], json.dumps(record).encode() + b"\n"]))
    with pytest.raises(LedgerError, match=f"line 7 cannot be read .{words}"):
        read_ledger(path)


def test_a_final_may_hold_a_rejected_finalist_without_a_time():
    final = dataclasses.replace(FINAL, entries=(Entry(TRIAL.config, None, Timing(0.0, 0.0, 0), rejected="wrong"),))
    assert Final.from_json(final.to_json()) == final


def test_every_line_names_its_record_and_schema(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["record"] for line in lines] == ["header", "trial", "trial", "final", *["verdict"] * 3]
    assert {line["schema"] for line in lines} == {SCHEMA}
    assert {"problem", "stage", "config", "phase", "outcome"} <= lines[1].keys()


@pytest.mark.parametrize("cut", [1, 2, 40, 400])
def test_a_torn_last_line_is_dropped_and_appending_goes_on_after_what_is_whole(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    records = read_ledger(path)
    assert records.torn
    assert len(records.verdicts) == 2
    ledger = Ledger(path, keep=records.size)
    ledger.verdict(verdict(16))
    ledger.close()
    assert path.read_bytes() == whole


def test_a_last_line_that_is_no_json_is_dropped_too(path):
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"record":"trial","sche\x00\x00\n')
    records = read_ledger(path)
    assert (records.torn, records.size, len(records.verdicts)) == (True, size, 3)


def test_a_torn_header_is_an_empty_ledger(path):
    path.write_bytes(path.read_bytes()[:30])
    records = read_ledger(path)
    assert (records.torn, records.size, records.headers) == (True, 0, [])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "no ledger of moetune"),
        (b"hello\n", "no ledger of moetune"),
        (b"3\n", "no ledger of moetune"),
        (b'{"a": 1}\n', "no ledger of moetune"),
        (b'{"record":"header","schema":1,"tool":"other"}\n', "its header names the tool 'other', not moetune"),
        (b'{"record":"trial","schema":1}\n', "does not begin with a header"),
        (b'{"record":"header","schema":99,"tool":"moetune"}\n', r"schema 99 is newer than this moetune reads \(1\)"),
    ],
)
def test_a_foreign_header_or_a_future_schema_is_refused_and_not_touched(tmp_path, data, message):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(data)
    with pytest.raises(LedgerError, match=message):
        read_ledger(tmp_path)
    assert path.read_bytes() == data


def test_a_future_schema_is_refused_on_a_later_line(path):
    with path.open("ab") as file:
        file.write(b'{"record":"trial","schema":2}\n')
    with pytest.raises(LedgerError, match="schema 2 is newer"):
        read_ledger(path)


@pytest.mark.parametrize(
    "line", [b"not json\n", b"\n", b'{"record":"trial","schema":1}\n', b'{"record":"x","schema":1}\n']
)
def test_damage_before_the_last_line_names_the_line(path, line):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: line 3 "):
        read_ledger(path)


def test_no_ledger_and_a_folder_that_cannot_be_made_are_said_at_once(tmp_path):
    with pytest.raises(LedgerError, match="name a ledger or the folder of a sweep"):
        read_ledger(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another --out"):
        Ledger(tmp_path / "file" / "ledger.jsonl")


def child(script: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)], capture_output=True, text=True, **options
    )


def test_a_disk_that_fills_within_a_line_leaves_a_whole_ledger(path):
    size = path.stat().st_size
    limit = size + 1000  # two trials fit, a third does not
    ended = child(
        """
        import sys
        from pathlib import Path
        from moetune.errors import OutputError
        from moetune.ledger import Ledger, read_ledger
        path = Path(sys.argv[1])
        trial = read_ledger(path).trials[0]
        ledger = Ledger(path)
        done = 0
        try:
            while True:
                ledger.trials([trial])
                done += 1
        except OutputError as error:
            print(done)
            sys.exit(str(error))
        """,
        path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert ended.returncode == 1
    assert ended.stderr == f"{path}: cannot be written (File too large); nothing in it is lost\n"
    records = read_ledger(path)
    assert not records.torn
    assert len(records.trials) == 2 + int(ended.stdout) > 2


def test_a_ledger_killed_while_writing_loses_at_most_its_last_line(path):
    ended = child(
        """
        import os, signal, sys, threading
        from pathlib import Path
        from moetune.ledger import Ledger, read_ledger
        path = Path(sys.argv[1])
        trial = read_ledger(path).trials[0]
        ledger = Ledger(path)
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        while True:
            ledger.trials([trial])
        """,
        path,
    )
    assert ended.returncode == -signal.SIGKILL
    records = read_ledger(path)
    assert len(records.trials) > 10
    assert records.size + (len(path.read_bytes().split(b"\n")[-1])) == path.stat().st_size


def test_an_interruption_within_a_line_takes_the_line_back(path, monkeypatch):
    before = path.read_bytes()
    ledger = Ledger(path)
    import os

    real = os.write

    def part(file: int, data: bytes) -> int:
        if len(data) < 100:
            raise KeyboardInterrupt
        return real(file, data[: len(data) - 50])

    monkeypatch.setattr(os, "write", part)
    with pytest.raises(KeyboardInterrupt):
        ledger.trials([TRIAL])
    assert path.read_bytes() == before
