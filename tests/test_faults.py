"""A sweep survives whatever its candidates do, and writes down what it was."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest
from command import PLUGINS, Moetune

from moetune.ledger import read_ledger

DEMO = ["sweep", "demo", "--tp", "1", "--out", "o"]


def _declared() -> tuple[tuple[str, ...], dict[int, str]]:
    text = (PLUGINS / "faulty" / "__init__.py").read_text()
    scope: dict[str, object] = {}
    exec(text[text.index("FAULTS =") : text.index("class FaultyKernel")], scope)
    faults, expected = scope["FAULTS"], scope["EXPECTED"]
    assert isinstance(faults, tuple) and isinstance(expected, dict)
    return faults, {number: expected[name] for number, name in enumerate(faults)}


FAULTS, EXPECTED = _declared()


def test_every_fault_becomes_its_outcome_and_the_sweep_goes_on(moetune: Moetune, tmp_path: Path) -> None:
    done = moetune(*DEMO, "--kernel", "faulty", "--tokens", "16", "--deadline", "3")
    assert done.returncode == 0, done.stderr
    records = read_ledger(tmp_path / "o")
    outcomes = {t.config["fault"]: str(t.outcome) for t in records.trials if t.stage == 1}
    assert outcomes == EXPECTED
    assert all("\n" not in t.reason for t in records.trials)
    (verdict,) = records.verdicts
    assert verdict.decision != "failed" and verdict.config1 is not None
    assert FAULTS[verdict.config1["fault"]] == "none", "a config that fails only later may not win"
    pairs = [final for final in records.finals if final.kind == "pair"][-1]
    rejected = {FAULTS[e.config["fault"]]: e.rejected for e in pairs.entries if e.rejected}
    assert rejected, "some of those that fail only later are among the best"
    assert not pairs.entries[0].rejected
    assert all("another draw" in r or "Damage" in r or "SIGABRT" in r for r in rejected.values())
    assert "none" not in rejected, "a good config does not pay for its company"
    counted = collections.Counter(outcomes.values())
    reported = moetune("report", "o", "--json")
    assert reported.returncode == 0
    (census,) = [s for s in json.loads(reported.stdout) if "outcome" in s["title"].lower()]
    assert any(counted["out_of_bounds"] in row.values() for row in census["rows"])


def test_a_wrong_default_fails_its_problem_only(moetune: Moetune, tmp_path: Path) -> None:
    done = moetune(*DEMO, "--kernel", "broken", "--tokens", "1,16", "--trials", "1")
    assert done.returncode == 1
    assert "1 of 2 problems have no row" in done.stderr
    verdicts = {v.facts["tokens"]: v for v in read_ledger(tmp_path / "o").verdicts}
    assert verdicts[1].decision in ("default", "tie", "tuned")
    assert verdicts[16].decision == "failed" and "the default's output is wrong" in verdicts[16].reason
    merged = moetune("merge", "o", "--into", "table.csv")
    assert merged.returncode == 0
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 2  # the header and one row


def test_a_kernel_whose_stages_share_a_config_is_tuned(moetune: Moetune, tmp_path: Path) -> None:
    done = moetune(*DEMO, "--kernel", "coupled", "--tokens", "16")
    assert done.returncode == 0, done.stderr
    (verdict,) = read_ledger(tmp_path / "o").verdicts
    assert verdict.config1 == verdict.config2 and verdict.us <= verdict.default_us + verdict.default_spread_us
    assert {t.stage for t in read_ledger(tmp_path / "o").trials} == {0}


@pytest.mark.parametrize("words", [["sweep", "demo", "--kernel", "nope"], ["sweep", "demo", "--kernel", "bf16"]])
def test_a_kernel_that_cannot_run_is_one_line_in_second_0(moetune: Moetune, words: list[str]) -> None:
    done = moetune(*words, "--out", "o")
    assert done.returncode == 2
    assert done.stderr.startswith("moetune: ") and len(done.stderr.splitlines()) == 1
