"""The compile pool: one candidate's failure is its own, and a binary is compiled once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Moetune
from fakes import TARGET, fake_problem

from moetune.device.child import Stopped
from moetune.device.compiling import CompilePool, Job
from moetune.ledger import read_ledger
from moetune.model.config import Config
from moetune.model.trial import Outcome

WAYS = ("compiles", "aborts", "hangs", "raises", "too_much_shared_memory", "disk_full")


@pytest.fixture
def pool(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CompilePool]:
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    found = CompilePool(2, {"MOETUNE_POOL": "1"}, tmp_path / "compile.log", deadline_s=8)
    yield found
    found.close()


def _job(way: str, binary: object = None, tokens: int = 1) -> Job:
    config = Config.of(tile_m=16, way=WAYS.index(way))
    return Job("compiled.code:Compiled", 1, config, fake_problem(tokens), TARGET, binary or config)


def test_each_way_to_fail_is_an_outcome_and_the_others_compile(pool: CompilePool) -> None:
    ways = ("aborts", "raises", "too_much_shared_memory", "compiles")
    results = dict(zip(ways, map(pool.result, pool.want([_job(w) for w in ways])), strict=True))
    assert {w: r.outcome for w, r in results.items()} == {
        "aborts": Outcome.COMPILE_ERROR,
        "raises": Outcome.COMPILE_ERROR,
        "too_much_shared_memory": Outcome.RESOURCE_ERROR,
        "compiles": Outcome.OK,
    }
    assert "SIGABRT" in results["aborts"].reason
    assert results["raises"].reason == "RuntimeError: PassManager::run failed"
    assert results["too_much_shared_memory"].reason == "shared memory 1,048,576 of 100,000 bytes"


def test_a_hang_is_killed_at_the_deadline(pool: CompilePool) -> None:
    begun = time.monotonic()
    (hung, fine) = map(pool.result, pool.want([_job("hangs"), _job("compiles")]))
    assert hung.outcome is Outcome.TIMEOUT and fine.outcome is Outcome.OK
    assert time.monotonic() - begun < 30


def test_closing_stops_whoever_waits_and_records_nothing(pool: CompilePool) -> None:
    (future,) = pool.want([_job("hangs")])
    begun = time.monotonic()
    threading.Timer(0.5, pool.close).start()
    with pytest.raises(Stopped):
        pool.result(future)
    assert time.monotonic() - begun < 6


def test_a_full_disk_is_not_the_candidates_fault(pool: CompilePool) -> None:
    (result,) = map(pool.result, pool.want([_job("disk_full")]))
    assert result.disk


def test_a_binary_is_compiled_once_for_all_token_buckets(pool: CompilePool) -> None:
    one, two = pool.want([_job("compiles", "same", tokens=1), _job("compiles", "same", tokens=64)])
    assert one is two
    pool.ahead([_job("compiles", "same"), _job("compiles", "other")])
    pool.result(one)
    end = time.monotonic() + 20
    while pool.compiled < 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert pool.compiled == 2


def test_a_sweep_writes_compile_failures_down_and_goes_on(moetune: Moetune, tmp_path: Path) -> None:
    words = ["sweep", "demo", "--kernel", "compiled", "--tp", "1", "--tokens", "1", "--out", "o"]
    done = moetune(*words, "--timer", "scripted:ScriptedTimer")
    assert done.returncode == 0, done.stderr
    outcomes = {WAYS[t.config["way"]]: str(t.outcome) for t in read_ledger(tmp_path / "o").trials if t.stage == 1}
    assert outcomes == {
        "compiles": "ok",
        "aborts": "compile_error",
        "raises": "compile_error",
        "too_much_shared_memory": "ok",  # the CPU states no limit
    }


def test_the_pool_ends_with_the_process_that_made_it(tmp_path: Path, site: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from moetune.device.compiling import CompilePool\n"
        "if __name__ == '__main__':\n"
        "    CompilePool(2, {}, Path(sys.argv[1]))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    moetune = Moetune(site, tmp_path)
    env = {**os.environ, "MOETUNE_TEST_MARK": moetune.mark}
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "log")], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert moetune.all_gone(within_s=2)
