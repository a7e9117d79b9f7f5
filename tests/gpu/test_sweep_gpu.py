"""A whole sweep on a real device."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Moetune

from moetune.ledger import read_ledger

pytestmark = pytest.mark.gpu


def test_a_sweep_finds_correct_rows_and_its_worker_compiles_nothing(moetune: Moetune, tmp_path: Path) -> None:
    words = ["sweep", "demo", "--kernel", "bf16,a8w4", "--tp", "1", "--tokens", "1,128", "--trials", "8"]
    done = moetune(*words, "--out", "o", timeout_s=280)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    records = read_ledger(tmp_path / "o")
    assert len(records.verdicts) == 4
    for verdict in records.verdicts:
        assert verdict.us <= verdict.default_us and verdict.accuracy is not None and verdict.samples >= 8
        assert verdict.floor_us is None or verdict.floor_us < sum(verdict.stage_us)
    assert {str(t.outcome) for t in records.trials} == {"ok"}
