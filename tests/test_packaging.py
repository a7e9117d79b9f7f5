"""What is shipped: a wheel that works away from the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of what git does not ignore, so that nothing is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(files, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.split("\0"):
        if name and not name.startswith(("results/", "tests/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"moetune", "moetune_kernels"}
    assert "moetune/shapes/demo.toml" in names and "moetune/targets/h200.toml" in names
    assert "moetune/py.typed" in names and any(n.endswith("licenses/LICENSE") for n in names)
    assert not [n for n in names if re.search(r"(^|/)(results|tests)/", n)]
    code = {p.relative_to(ROOT).as_posix() for p in (ROOT / "moetune").rglob("*.py")}
    code |= {f"moetune_{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "kernels").rglob("*.py")}
    assert code <= set(names), "a package is missing from pyproject.toml's list"


def test_the_installed_wheel_lists_its_shapes_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True, stdin=subprocess.DEVNULL)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from moetune.cli import main; main()"
    command = [sys.executable, "-P", "-c", code, str(target), "shapes"]
    done = subprocess.run(command, cwd=elsewhere, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "qwen3.5-397b-a17b" in done.stdout
    assert (target / "bin" / "moetune").exists()
