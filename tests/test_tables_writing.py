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


def test_a_missing_folder_is_made_and_one_that_cannot_be_is_an_error(tmp_path):
    with locked(tmp_path / "new" / "t.csv"):
        assert (tmp_path / "new").is_dir()
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="choose another --into"),
        locked(tmp_path / "file" / "t"),
    ):
        pass


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
