"""What the rows of a table, or the words of a command, claim."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from verdicts import MACHINE, failed, verdict

from moetune.catalog import load_shape
from moetune.claims import Claims, given_claims, read_claims, settle
from moetune.errors import UsageError
from moetune.kernel import load_kernel
from moetune.ledger import Ledger
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.verdict import Verdict
from moetune.tables import aiter
from moetune.tables.lines import Lines, join
from moetune.tables.native import native_bytes
from moetune.tables.row import Row
from moetune.targets import load_target

CPU = load_kernel("cpu")
CONFIG = Config.of(tile_m=16, tile_n=64, tile_k=32)


def _verdict(
    tokens: int, tp: int = 1, shape: str = "demo", seed: int = 0, routing: str = "uniform", ep: int = 1
) -> Verdict:
    """Return a verdict of the cpu kernel on an installed shape."""
    problem = Problem(load_shape(shape), tp, "cpu", "bf16", tokens, Routing.parse(routing), ep)
    return dataclasses.replace(
        verdict(tokens, tp, "cpu", config1=CONFIG, config2=CONFIG, facts=problem.facts()),
        problem=problem.key, search={"seed": seed},
    )  # fmt: skip


def _table(path: Path, *verdicts: Verdict) -> Path:
    path.write_bytes(native_bytes(map(Row, verdicts)))
    return path


def _csv(path: Path, *rows: tuple[str, ...]) -> Path:
    path.write_bytes(Lines().head + b"".join(join(row) + b"\n" for row in rows))
    return path


def test_a_ledger_gives_its_last_rows_in_order_and_no_failed_problem(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.header({})
    for one in (_verdict(1), failed(128, kernel="cpu"), _verdict(16, seed=7)):
        ledger.verdict(one)
    ledger.close()
    found = read_claims(tmp_path)
    assert [(c.number, c.problem.tokens, c.seed, c.us) for c in found.claims] == [(1, 1, 0, 80.0), (2, 16, 7, 80.0)]
    assert found.claims[0].problem == Problem(load_shape("demo"), 1, "cpu", "bf16", 1)
    assert [c.seed for c in read_claims(tmp_path, seed=3).claims] == [3, 3]
    assert list(found.kernels) == ["cpu"]


def test_a_claim_repeats_itself_by_its_shape_where_that_is_installed(tmp_path: Path) -> None:
    table = _table(tmp_path / "t.moetune.json", _verdict(16, tp=2, seed=5, routing="zipf:1.2"))
    (claim,) = read_claims(table).claims
    config = "'tile_m=16;tile_n=64;tile_k=32'"
    assert claim.command == (
        "moetune bench --shape demo --tp 2 --tokens 16 --kernel cpu --routing zipf:1.2 "
        f"--config1 {config} --config2 {config} --seed 5"
    )


def test_a_rank_of_several_is_a_claim_of_its_own_and_repeats_itself(tmp_path: Path) -> None:
    table = _table(tmp_path / "t.moetune.json", _verdict(16, ep=4), _verdict(16))
    whole, quarter = read_claims(table).claims
    assert whole.problem == _problem()
    assert quarter.problem == dataclasses.replace(_problem(), ep=4) and quarter.problem.experts == 2
    assert quarter.command.startswith("moetune bench --shape demo --tp 1 --ep 4 --tokens 16 --kernel cpu ")
    assert "--ep" not in whole.command


def test_a_shape_that_no_file_agrees_with_is_made_of_the_facts(tmp_path: Path) -> None:
    table = _table(tmp_path / "t.moetune.json", verdict(16, tp=2, kernel="cpu", config1=CONFIG, config2=CONFIG))
    (claim,) = read_claims(table, [1]).claims
    facts = verdict(16, tp=2, kernel="cpu").facts
    assert facts != Problem(load_shape("demo"), 2, "cpu", "bf16", 16).facts()
    assert claim.problem.facts() == facts
    assert claim.command == f"moetune bench {table} --row 1 --seed 0"


@pytest.mark.parametrize(("shape", "tp"), [("demo", 1), ("demo", 2), ("qwen3-30b-a3b", 1)])
def test_the_cells_of_a_csv_alone_give_the_same_problem(tmp_path: Path, shape: str, tp: int) -> None:
    row = Row(_verdict(16, tp, shape))
    (claim,) = read_claims(_csv(tmp_path / "t.csv", aiter.cells(row))).claims
    assert claim.problem.facts() == row.facts and claim.configs == (CONFIG, CONFIG) and claim.us == 80.0
    assert claim.identity == ""


def test_a_csv_with_its_json_is_numbered_by_its_own_lines(tmp_path: Path) -> None:
    rows = [Row(_verdict(tokens, seed=tokens)) for tokens in (1, 16, 128)]
    _table(tmp_path / "t.moetune.json", *(row.verdict for row in rows))
    table = _csv(tmp_path / "t.csv", aiter.cells(rows[2]), aiter.cells(rows[0]))
    assert [(c.number, c.seed) for c in read_claims(table).claims] == [(1, 128), (2, 1)]
    assert [(c.number, c.seed) for c in read_claims(table, [2]).claims] == [(2, 1)]


def test_rows_that_nothing_here_can_run_are_left_out_with_the_reason(tmp_path: Path) -> None:
    cells = list(aiter.cells(Row(_verdict(16))))
    foreign, odd = list(cells), list(cells)
    foreign[aiter.HEADER.index("kernelName1")] = "grouped_gemm1"
    odd[aiter.HEADER.index("act_type")] = "ActivationType.Odd"
    gone = [cell.replace("moetune_cpu", "moetune_gone") for cell in cells]
    found = read_claims(_csv(tmp_path / "t.csv", *map(tuple, (foreign, odd, gone, cells))))
    assert [claim.number for claim in found.claims] == [4]
    said = ["row 1: measured on grouped_gemm1", "row 2: its cells cannot be read (act_type", "row 3: no kernel 'gone'"]
    assert all(part in line for part, line in zip(said, found.left_out, strict=True))


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("token", "0", "its cells cannot be read (token 0 is below 1)"),
        ("expert", "0", "its cells cannot be read (expert 0 is below 1)"),
        ("inter_dim", "-64", "its cells cannot be read (inter_dim -64 is below 1)"),
        ("topk", "9", "its cells cannot be read (topk 9 is above expert 8)"),
        ("us", "nan", "its cells cannot be read (us nan)"),
        ("kernelName2", f"moetune_bf16_s2:{CONFIG}", "kernelName1 is of kernel cpu, kernelName2 of bf16; one kernel"),
    ],
)
def test_cells_that_pose_nothing_leave_their_row_out(tmp_path: Path, column: str, text: str, said: str) -> None:
    cells = list(aiter.cells(Row(_verdict(16))))
    cells[aiter.HEADER.index(column)] = text
    found = read_claims(_csv(tmp_path / "t.csv", tuple(cells)))
    assert found.claims == () and found.left_out[0].partition("row 1: ")[2].startswith(said)


def test_facts_that_no_problem_here_can_tell_leave_their_row_out(tmp_path: Path) -> None:
    odd = _verdict(16)
    odd = dataclasses.replace(odd, facts=odd.facts | {"pages": 4})
    found = read_claims(_table(tmp_path / "t.moetune.json", odd, _verdict(1)))
    assert len(found.claims) == 1
    assert [line.partition("row ")[2] for line in found.left_out] == ["2: this moetune poses no problem with its pages"]


@pytest.mark.parametrize(("numbers", "said"), [([0], "--row 0: "), ([1, 3], "--row 3: ")])
def test_a_row_that_is_not_there_is_named(tmp_path: Path, numbers: list[int], said: str) -> None:
    table = _table(tmp_path / "t.moetune.json", _verdict(1), _verdict(16))
    with pytest.raises(UsageError, match=f"{said}.*has 2 rows"):
        read_claims(table, numbers)


def test_an_empty_table_has_nothing_to_time(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no row"):
        read_claims(_csv(tmp_path / "t.csv"))


def _settled(*configs: Config, kernel: str = "cpu", target: str = "cpu") -> Claims:
    claims = given_claims([_problem()], CPU, load_target("cpu"), ("", ""), 0, "demo").claims
    claims = tuple(dataclasses.replace(claims[0], configs=(config, CONFIG)) for config in configs)
    return settle(Claims(claims, {"cpu": load_kernel(kernel)}), {"cpu": load_target(target)})


def _problem(tokens: int = 16) -> Problem:
    return Problem(load_shape("demo"), 1, "cpu", "bf16", tokens)


def test_configs_of_another_kernel_or_outside_the_pool_are_faults_of_their_rows() -> None:
    wrong = [CONFIG.replace(tile_n=96), CONFIG.replace(tile_m=64), Config.of(tile_m=16, tile_n=64, swap=1)]
    found = _settled(CONFIG, *wrong)
    faults = [claim.fault for claim in found.claims]
    assert faults[0] == "" and found.left_out == ()
    assert faults[1] == "config1 cannot run: tile_n 96 is no value of its axis; 64, 128, 256, 512 are"
    assert "exceeds the 16 rows" in faults[2] and "(excluded by 'tile_m beyond tokens')" in faults[2]
    assert "the config lacks tile_k and has swap" in faults[3]


def test_a_row_whose_kernel_this_device_does_not_serve_is_left_out() -> None:
    found = _settled(CONFIG, target="h200")
    assert found.claims == () and found.left_out == (
        "row 1 (demo/tp1/cpu/t16/uniform): kernel cpu runs on the CPU, not on sm_90",
    )


def test_axes_that_a_command_leaves_out_are_the_defaults_of_each_problem() -> None:
    target = load_target("cpu")
    problems = [_problem(tokens) for tokens in (1, 128)]
    found = given_claims(problems, CPU, target, ("tile_n=256", ""), 4, "./demo.toml").claims
    for claim, problem in zip(found, problems, strict=True):
        default = CPU.default(1, problem, target)
        assert claim.configs == (default.replace(tile_n=256), CPU.default(2, problem, target))
        assert claim.command.startswith(f"moetune bench --shape ./demo.toml --tp 1 --tokens {problem.tokens} ")
        assert claim.command.endswith(" --seed 4")
    assert [claim.number for claim in found] == [1, 2]


def test_the_machine_of_a_row_is_no_part_of_the_claim(tmp_path: Path) -> None:
    row = dataclasses.replace(_verdict(16), machine=dict(MACHINE))
    (claim,) = read_claims(_table(tmp_path / "t.moetune.json", row)).claims
    assert claim.problem == _problem() and claim.identity == row.identity
