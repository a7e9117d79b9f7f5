import os
import resource
import subprocess
import sys
import textwrap

import pytest

from moetune.errors import OutputError
from moetune.tables.writing import locked, replace_all


def test_every_file_is_replaced_and_nothing_else_is_left(tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.json"
    a.write_text("old")
    a.chmod(0o640)
    replace_all({a: b"new", b: b"made"})
    assert (a.read_bytes(), b.read_bytes()) == (b"new", b"made")
    assert a.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "b.json"]


def test_when_the_disk_fills_nothing_is_replaced(tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.json"
    a.write_text("old")
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from moetune.errors import OutputError
        from moetune.tables.writing import replace_all
        try:
            replace_all({Path(sys.argv[1]): b"new", Path(sys.argv[2]): b"x" * 100_000})
        except OutputError as error:
            sys.exit(str(error))
    """)
    child = subprocess.run(
        [sys.executable, "-c", script, a, b],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert child.returncode == 1
    assert child.stderr == f"{b}: cannot be written (File too large); free the disk or choose another --into\n"
    assert a.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_a_lock_that_cannot_be_made_is_an_error_that_blames_no_other_merge(tmp_path):
    (tmp_path / ".t.csv.lock").mkdir()
    with pytest.raises(OutputError, match=r"cannot be locked.*choose another --into"), locked(tmp_path / "t.csv"):
        pass


def test_a_lock_held_for_long_is_another_merge(tmp_path, monkeypatch):
    monkeypatch.setattr("moetune.tables.writing._WAIT_S", 0.1)
    with locked(tmp_path / "t.csv"):
        with pytest.raises(OutputError, match="another merge holds it"), locked(tmp_path / "t.csv"):
            pass
        assert (tmp_path / ".t.csv.lock").exists()


def test_what_fails_under_a_lock_keeps_its_error_and_lets_go(tmp_path):
    for error in (OSError("disk"), TimeoutError("slow")):
        with pytest.raises(type(error), match=str(error)), locked(tmp_path / "t.csv"):
            raise error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_read_only_file_is_not_replaced(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(OutputError, match="is read-only"):
        replace_all({path: b"new"})
    assert path.read_text() == "old"


def test_a_lock_dies_with_its_process(tmp_path):
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from moetune.tables.writing import locked
        with locked(Path(sys.argv[1])):
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    subprocess.run([sys.executable, "-c", script, tmp_path / "t.csv"])
    with locked(tmp_path / "t.csv"):
        pass
