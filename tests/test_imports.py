from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import moetune
from moetune.kernel import kernel_names

ROOT = Path(moetune.__file__).parent
KERNELS = ROOT.parent / "kernels"

RANKS = {
    "errors": 0,
    "model": 1,
    "targets": 2,
    "catalog": 2,
    "kernel": 3,
    "space": 4,
    "ledger": 5,
    "device": 6,
    "search": 6,
    "tables": 6,
    "lanes": 7,
    "workbench": 7,
    "claims": 7,
    "holding": 7,
    "plan": 7,
    "report": 7,
    "board": 8,
    "choosing": 8,
    "finals": 8,
    "live": 8,
    "tuning": 9,
    "referee": 10,
    "sweep": 10,
    "match": 11,
    "watching": 11,
    "cli": 12,
}
"""A room imports rooms of a lower rank only; rooms of one rank do not know each other."""

FOR_KERNELS = {"errors", "model", "kernel"}
"""What a kernel's description may use of moetune; its implementation, which needs torch, also uses `device`."""

HEAVY = ("torch", "triton", "optuna", "pandas")


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports at run time, also inside its functions."""

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                yield from visit(child)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child)

    yield from visit(ast.parse(path.read_text("utf-8")))


def room(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or not p.name.startswith("__"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_run_downward_only(path: Path) -> None:
    mine = room(path.relative_to(ROOT).parts)
    assert mine in RANKS, f"give moetune.{mine} its place in RANKS"
    for name in imported(path):
        package, *rest = name.split(".")
        if package == "moetune" and rest and rest[0] in RANKS and rest[0] != mine:
            assert RANKS[rest[0]] < RANKS[mine], f"moetune.{mine} imports {name}, which is not below it"


def test_the_order_of_the_rooms_is_that_of_the_rooms_there_are() -> None:
    assert set(RANKS) == {room(path.relative_to(ROOT).parts) for path in modules()}


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda p: p.name)
def test_kernels_use_only_the_contract(path: Path) -> None:
    names = set(imported(path))
    used = {name.split(".")[1] for name in names if name.startswith("moetune.")}
    assert used <= (FOR_KERNELS | {"device"} if "torch" in names else FOR_KERNELS)


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_heavy_packages_load_where_they_are_used(path: Path) -> None:
    mine = room(path.relative_to(ROOT).parts)
    allowed = {"torch": {"device"}, "triton": {"device"}, "optuna": {"search"}, "pandas": {"report"}}
    names = {name.split(".")[0] for name in imported(path)}
    for package in HEAVY:
        assert package not in names or mine in allowed[package], f"moetune.{mine} imports {package}"


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["sweep", "--help"],
        ["merge", "--help"],
        ["report", "--help"],
        ["bench", "--help"],
        ["shapes", "--help"],
    ],
)
def test_help_imports_neither_torch_nor_pandas_nor_optuna(words: list[str]) -> None:
    done = child(f"""
import atexit, sys
sys.argv = ["moetune", *{words!r}]
heavy = {{"torch", "triton", "pandas", "optuna", "numpy"}}
atexit.register(lambda: print("LOADED", sorted(heavy & set(sys.modules))))
from moetune.cli import main
main()
""")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    assert "LOADED []" in done.stdout


@pytest.mark.parametrize("name", kernel_names())
def test_descriptions_load_with_torch_and_triton_blocked(name: str) -> None:
    done = child(f"""
import sys
sys.modules["torch"] = sys.modules["triton"] = None
from moetune.kernel import load_kernel
from moetune.catalog import load_shape
from moetune.model.problem import Problem
from moetune.targets import load_target
kernel = load_kernel({name!r})
problem, target = Problem(load_shape("demo"), 1, kernel.name, kernel.format.name, 16), load_target("h200")
target = load_target("cpu") if kernel.device == "cpu" else target
fine = kernel.unserved(target) is None and kernel.source_hash() and kernel.traffic(1, problem, [1, 2, 3]).bytes > 0
for stage in kernel.stages:
    config = kernel.default(stage, problem, target)
    fine = fine and set(config) == set(kernel.axes(stage)) and kernel.binary(stage, config, problem)
    fine = fine and all(rule.check(config, problem, target) is None for rule in kernel.constraints(stage))
    fine = fine and kernel.footprint(stage, config, problem, target).threads
    fine = fine and kernel.computed_rows(stage, config, [3]) >= 3
print(kernel.name, bool(fine))
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [name, "True"]


def test_the_built_in_kernels_are_found() -> None:
    assert {"bf16", "a8w4", "cpu"} <= set(kernel_names())
