"""What is committed under results/ is what the code at hand makes of the committed ledgers."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from moetune.ledger import read_ledger
from moetune.tables.aiter import HEADER, unsaid
from moetune.tables.native import native_path, read_native

RESULTS = Path(__file__).parent.parent / "results"
LEDGERS = sorted(RESULTS.glob("*/ledger.jsonl"))


def test_there_are_results() -> None:
    assert LEDGERS


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda p: p.parent.name)
class TestLedger:
    def test_its_report_is_the_committed_summary(self, ledger: Path) -> None:
        command = [sys.executable, "-m", "moetune", "report", str(ledger.parent), "--summary"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == (ledger.parent / "summary.txt").read_text()

    def test_merging_it_again_changes_nothing(self, ledger: Path, tmp_path: Path) -> None:
        for path in ledger.parent.glob("tuned_grouped_fmoe.*"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        table = tmp_path / "tuned_grouped_fmoe.csv"
        command = [sys.executable, "-m", "moetune", "merge", str(ledger.parent), "--into", str(table)]
        subprocess.run(command, capture_output=True, check=True)
        for path in ledger.parent.glob("tuned_grouped_fmoe.*"):
            assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name

    def test_every_row_is_the_default_or_better_checked_and_has_its_spread(self, ledger: Path) -> None:
        verdicts = read_ledger(ledger).latest_verdicts()
        for verdict in verdicts:
            assert verdict.us <= verdict.default_us and verdict.spread_us >= 0 and verdict.samples >= 8
            found, limits = verdict.accuracy, verdict.limits
            assert found is not None and found.nonfinite == 0
            assert found.rel_l2 <= limits["rel_l2"] and found.worst_row <= limits["worst_row"]
            assert found.rel_l2_default <= limits["rel_l2_default"] == 0.005
        table = ledger.parent / "tuned_grouped_fmoe.csv"
        with open(table, newline="") as file:
            header, *rows = list(csv.reader(file))
        every = read_native(native_path(table))
        assert len(every) == len(verdicts)
        assert tuple(header) == tuple(HEADER) and len(rows) == sum(not unsaid(row) for row in every)
