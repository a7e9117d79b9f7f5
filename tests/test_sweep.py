"""The order of a sweep, and what it holds while it runs."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
from fakes import TARGET, FakeKernel, fake_problem, fake_trial
from verdicts import verdict

from moetune.board import Board
from moetune.device.machine import Device
from moetune.errors import MachineError, OutputError
from moetune.holding import hold
from moetune.ledger import Ledger, Records
from moetune.model.config import Config
from moetune.model.verdict import Decision, Verdict
from moetune.sweep import Order, resume_command
from moetune.workbench import Effort

GPU = Device("cuda:0", "Fake GPU", "sm_90", "GPU-test-1234", 64, 32, 100_000, 1 << 20, 0)
PROBLEMS = tuple(fake_problem(tokens, tp) for tp in (1, 2) for tokens in (1, 16))


def _order(tmp_path: Path, **changes: object) -> Order:
    order = Order(PROBLEMS, {"fake": FakeKernel()}, (GPU,), TARGET, tmp_path / "o", command=("moetune", "sweep", "x"))
    return dataclasses.replace(order, **changes)  # type: ignore[arg-type]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(PROBLEMS, Effort(), (), Ledger(tmp_path / "o" / "ledger.jsonl"), None)


def _done(board: Board, index: int) -> None:
    problem = PROBLEMS[index]
    board.done(problem, verdict(problem=problem.key), fresh=True)


def test_a_problem_waits_for_its_smaller_bucket_and_the_tp_before(board: Board) -> None:
    assert board.next() is PROBLEMS[0]
    taken: list[object] = []
    second = threading.Thread(target=lambda: taken.append(board.next()))
    second.start()
    second.join(0.7)
    assert second.is_alive(), "no problem is ready before the first is done"
    _done(board, 0)
    second.join(5)
    assert taken == [PROBLEMS[1]]
    assert board.next() is PROBLEMS[2], "the other lane takes the first bucket of the next TP"
    _done(board, 2)
    _done(board, 1)
    assert board.next() is PROBLEMS[3]
    assert board.next() is None


def test_a_stopped_board_gives_nothing(board: Board) -> None:
    board.stop()
    assert board.next() is None


def test_trials_of_another_identity_are_a_miss(tmp_path: Path) -> None:
    kept = fake_trial(Config.of(tile_m=16), 10.0, problem=PROBLEMS[0].key)
    kept = dataclasses.replace(kept, identity="one")
    records = Records(tmp_path, trials=[kept])
    board = Board(PROBLEMS, Effort(), (), Ledger(tmp_path / "o" / "ledger.jsonl"), records)
    assert board.tally.kept == 1
    assert board.known(kept.problem, "one", 1, kept.config) == kept
    assert board.known(kept.problem, "two", 1, kept.config) is None


def test_a_verdict_stands_only_where_nothing_that_decides_it_has_changed(tmp_path: Path) -> None:
    problem, defaults = PROBLEMS[0], (Config.of(tile_m=16), Config.of(tile_m=32))
    stands = verdict(
        problem=problem.key, identity="one", default1=defaults[0], default2=defaults[1],
        search=dataclasses.asdict(Effort()),
    )  # fmt: skip

    def past(found: Verdict, identity: str = "one", effort: Effort = Effort()) -> Verdict | None:  # noqa: B008
        ledger = Ledger(tmp_path / "o" / "ledger.jsonl")
        return Board(PROBLEMS, effort, (), ledger, Records(tmp_path, verdicts=[found])).past(
            problem, identity, defaults
        )

    assert past(stands) == stands
    assert past(stands, identity="two") is None
    assert past(stands, effort=Effort(trials=7)) is None
    assert past(dataclasses.replace(stands, default1=Config.of(tile_m=64))) is None
    assert past(dataclasses.replace(stands, complete=False)) is None
    assert past(dataclasses.replace(stands, decision=Decision.FAILED)) is None


def test_a_gpu_and_a_folder_are_held_by_one_sweep(tmp_path: Path) -> None:
    with hold(tmp_path / "a", [GPU]):
        with pytest.raises(MachineError, match="another sweep uses it"), hold(tmp_path / "b", [GPU]):
            pass
        with pytest.raises(OutputError, match="another sweep writes here"), hold(tmp_path / "a", []):
            pass
    with hold(tmp_path / "b", [GPU]), hold(tmp_path / "a", []):
        pass


def test_the_resume_command_starts_nothing_afresh(tmp_path: Path) -> None:
    order = _order(tmp_path, command=("moetune", "sweep", "my shape.toml", "--fresh"))
    assert resume_command(order) == "moetune sweep 'my shape.toml'"
