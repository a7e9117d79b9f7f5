import csv
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verdicts import MACHINE, failed, tie, verdict

from moetune.errors import OutputError, TableError, UsageError
from moetune.ledger import Ledger
from moetune.model.verdict import Verdict
from moetune.tables.aiter import HEADER
from moetune.tables.files import Plan, merge_into
from moetune.tables.lines import Lines
from moetune.tables.merge import Action, Prefer
from moetune.tables.native import native_path, read_native
from moetune.tables.provenance import provenance_path

AITER = {
    "gfx": "gfx1250", "cu_num": "256", "token": "16", "model_dim": "512", "inter_dim": "256", "expert": "4",
    "topk": "2", "act_type": "ActivationType.Silu", "dtype": "torch.bfloat16", "q_dtype_a": "torch.float8_e4m3fn",
    "q_dtype_w": "torch.float4_e2m1fn_x2", "q_type": "QuantType.per_1x32", "use_g1u1": "1", "doweight_stage1": "0",
    "max_m": "384", "tile_m": "16", "tile_n": "256", "tile_k": "128", "m_warp": "1", "n_warp": "4",
    "num_buffers": "2", "cluster_n": "-1", "kernelName1": "grouped_gemm1", "kernelName2": "grouped_gemm2",
    "us": "12.50", "tflops": "0", "bw": "0",
}  # fmt: skip
COUNTER = itertools.count()


def shipped(**changes: str) -> tuple[str, ...]:
    """Return a row as aiter ships them, its stage 2 cells blank."""
    return tuple((AITER | changes).get(column, "") for column in HEADER)


@pytest.fixture
def into(tmp_path) -> Path:
    """A table of three rows that are not in sorted order."""
    path = tmp_path / "tuned_grouped_fmoe.csv"
    path.write_bytes(Lines().edited({}, [shipped(token="64"), shipped(), shipped(us="9", cu_num="128")]))
    return path


def ledger(folder: Path, *verdicts: Verdict) -> Path:
    path = folder / f"sweep{next(COUNTER)}"
    ledger = Ledger(path / "ledger.jsonl")
    ledger.header({})
    for v in verdicts:
        ledger.verdict(v)
    ledger.close()
    return path


def table(folder: Path, *rows: tuple[str, ...]) -> Path:
    path = folder / f"table{next(COUNTER)}.csv"
    path.write_bytes(Lines().edited({}, list(rows)))
    return path


def files(into: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (into, native_path(into), provenance_path(into)) if p.exists()}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def counts(plan: Plan) -> dict[str, int]:
    return {action.value: plan.merged.count(action) for action in Action if plan.merged.count(action)}


def test_existing_rows_keep_their_bytes_and_new_ones_follow_sorted(tmp_path, into):
    before = into.read_bytes()
    plan = merge_into(into, [ledger(tmp_path, verdict(128), verdict(16), tie(1), failed(64))])
    assert counts(plan) == {"added": 3}
    assert plan.failed == 1
    assert into.read_bytes().startswith(before)
    assert [row["token"] for row in rows(into)] == ["64", "16", "16", "1", "16", "128"]
    assert len(provenance_path(into).read_bytes().splitlines()) == len(read_native(native_path(into))) == 3


def test_every_correct_default_gives_a_row_and_a_tie_has_the_defaults_config(tmp_path):
    into = tmp_path / "t.csv"
    merge_into(into, [ledger(tmp_path, tie(1), verdict(16))])
    assert [(r["us"], r["tile_n"]) for r in rows(into)] == [("100", "64"), ("80", "128")]


def test_merging_twice_changes_nothing(tmp_path, into):
    sources = [
        ledger(tmp_path, verdict(16), verdict(16, routing="balanced"), verdict(16, kernel="mine")),
        table(tmp_path, shipped(token="1")),
    ]
    assert merge_into(into, sources).changes
    first = files(into)
    again = merge_into(into, sources)
    assert (again.changes, counts(again), again.merged.unchanged) == ({}, {}, 4)
    assert files(into) == first


def test_a_dry_run_shows_the_difference_and_writes_nothing(tmp_path, into):
    before = sorted(p.name for p in tmp_path.iterdir())
    source = ledger(tmp_path, verdict(16))
    plan = merge_into(into, [source], dry_run=True)
    assert sorted(p.name for p in tmp_path.iterdir() if p != source) == before
    head, tail = plan.difference()[:3], plan.difference()[3:]
    assert head == [f"--- {into}", "+++ merged", "@@ -4,0 +5 @@"]
    assert [line.split(",")[:3] for line in tail] == [["+sm_90", "132", "16"]]
    merge_into(into, [source])
    slower = merge_into(into, [ledger(tmp_path, verdict(16, us=70.0))], dry_run=True)
    assert [line[:7] for line in slower.difference()[3:]] == ["-sm_90,", "+sm_90,"]


def test_inputs_are_never_written(tmp_path, into):
    sources = [ledger(tmp_path, verdict(16)), table(tmp_path, shipped(token="1"))]
    before = [p.read_bytes() for p in (sources[0] / "ledger.jsonl", sources[1])]
    merge_into(into, sources)
    assert [p.read_bytes() for p in (sources[0] / "ledger.jsonl", sources[1])] == before


@pytest.mark.parametrize(
    ("us", "identity", "prefer", "stays"),
    [
        (70.0, "same", Prefer.FASTER, "70"),
        (90.0, "same", Prefer.FASTER, "80"),
        (70.0, "other", Prefer.FASTER, "80"),
        (70.0, "", Prefer.FASTER, "80"),
        (90.0, "other", Prefer.MINE, "90"),
        (70.0, "same", Prefer.THEIRS, "80"),
    ],
)
def test_a_conflict_follows_prefer_and_is_listed(tmp_path, us, identity, prefer, stays):
    into = tmp_path / "t.csv"
    merge_into(into, [ledger(tmp_path, verdict(1), verdict(16, identity="same"), verdict(128))])
    plan = merge_into(into, [ledger(tmp_path, verdict(16, us=us, identity=identity))], prefer)
    assert [(r["token"], r["us"]) for r in rows(into)] == [("1", "80"), ("16", stays), ("128", "80")]
    assert counts(plan) == {"kept" if stays == "80" else "replaced": 1}
    (step,) = plan.merged.steps
    assert step.candidate.row is not None and step.held is not None and step.held.row is not None
    assert (step.held.row.verdict.us, step.candidate.row.verdict.us) == (80.0, us)
    assert {row.verdict.us for row in read_native(native_path(into)) if row.facts["tokens"] == 16} == {float(stays)}


def test_inputs_are_settled_among_themselves_first(tmp_path):
    alike = [ledger(tmp_path, verdict(16, us=us)) for us in (80.0, 60.0, 70.0)]
    plan = merge_into(tmp_path / "a.csv", alike)
    assert counts(plan) == {"added": 1, "kept": 2}
    assert rows(tmp_path / "a.csv")[0]["us"] == "60"
    merge_into(tmp_path / "b.csv", alike, Prefer.MINE)
    assert rows(tmp_path / "b.csv")[0]["us"] == "70"
    merge_into(tmp_path / "c.csv", alike, Prefer.THEIRS)
    assert rows(tmp_path / "c.csv")[0]["us"] == "80"


def test_a_row_without_provenance_is_never_compared(tmp_path):
    into, source = tmp_path / "t.csv", ledger(tmp_path, verdict(16))
    merge_into(into, [source])
    lone = table(tmp_path, tuple(rows(into)[0].values()))
    faster = ledger(tmp_path, verdict(16, us=1.0))
    assert counts(merge_into(lone, [faster])) == {"kept": 1}
    assert rows(lone)[0]["us"] == "80"
    assert counts(merge_into(lone, [faster], Prefer.MINE)) == {"replaced": 1}
    assert rows(lone)[0]["us"] == "1"


def test_what_the_key_cannot_tell_apart_goes_to_the_json_only(tmp_path):
    into = tmp_path / "t.csv"
    source = ledger(
        tmp_path,
        verdict(16, routing="zipf:1.2"),
        verdict(16, routing="balanced"),
        verdict(16),
        verdict(1, facts={"biases": True}),
    )
    plan = merge_into(into, [source])
    assert len(rows(into)) == 1
    assert len(read_native(native_path(into))) == 4
    assert plan.merged.json_only == {"routing zipf:1.2": 1, "routing balanced": 1, "biases": 1}


def test_a_rank_of_several_and_launches_expert_by_expert_take_no_row_of_the_csv(tmp_path):
    into = tmp_path / "t.csv"
    rank = verdict(16, facts={"ep": 2, "experts": 16})
    plan = merge_into(into, [ledger(tmp_path, verdict(16), rank, verdict(16, kernel="bf16-loop", us=70.0))])
    assert counts(plan) == {"added": 3}
    assert [row["us"] for row in rows(into)] == ["80"]
    assert plan.merged.json_only == {"expert parallelism": 1, "launches expert by expert": 1}


def test_two_kernels_that_meet_in_one_merge_share_the_json_and_the_first_has_the_csv(tmp_path):
    into = tmp_path / "t.csv"
    plan = merge_into(into, [ledger(tmp_path, verdict(16, us=90.0), verdict(16, kernel="theirs", us=70.0))])
    assert counts(plan) == {"added": 2}
    assert [row["us"] for row in rows(into)] == ["90"]
    assert {row.facts["kernel"] for row in read_native(native_path(into))} == {"bf16", "theirs"}
    assert plan.merged.json_only == {"kernel (the key holds moetune_bf16's row)": 1}


def test_a_row_is_refused_into_a_key_that_holds_another_kernels_row(tmp_path):
    into = tmp_path / "t.csv"
    merge_into(into, [ledger(tmp_path, verdict(16))])
    before = files(into)
    other = ledger(tmp_path, verdict(16, kernel="theirs", us=70.0), verdict(32, kernel="theirs"))
    plan = merge_into(into, [other], Prefer.MINE)
    assert plan.refused
    assert [s.reason for s in plan.merged.steps if s.action is Action.REFUSED] == [
        "the key holds a row of moetune_bf16, measured on moetune_theirs"
    ]
    assert files(into) == before
    assert not merge_into(into, [other], foreign=True).refused  # not measured alike: kept
    assert [row["us"] for row in rows(into)] == ["80", "80"]
    merge_into(into, [other], Prefer.MINE, foreign=True)
    assert [row["us"] for row in rows(into)] == ["70", "80"]
    assert {row.facts["kernel"] for row in read_native(native_path(into))} == {"theirs"}


def test_an_aiter_row_is_refused_into_moetunes_key_and_the_other_way(tmp_path):
    into = tmp_path / "t.csv"
    merge_into(into, [ledger(tmp_path, verdict(16))])
    own = rows(into)[0]
    foreign = table(tmp_path, tuple((own | {"kernelName1": "grouped_gemm1", "us": "1"}).values()))
    assert merge_into(into, [foreign], Prefer.MINE).refused
    assert merge_into(foreign, [into], Prefer.MINE).refused
    assert rows(into) == [own]


def test_moetunes_rows_are_refused_under_a_gfx_that_aiters_kernel_serves(tmp_path, into):
    before = into.read_bytes()
    source = ledger(tmp_path, verdict(16, kernel="a8w4", machine={**MACHINE, "arch": "gfx1250", "cu_num": 256}))
    plan = merge_into(into, [source])
    assert plan.refused
    assert "aiter's grouped kernel serves gfx1250" in plan.merged.steps[0].reason
    assert files(into) == {into.name: before}
    assert counts(merge_into(into, [source], foreign=True)) == {"added": 1}
    assert counts(merge_into(into, [source])) == {}


def test_duplicate_keys_are_kept_with_a_warning_and_mine_replaces_them_by_one_row(tmp_path):
    into = table(tmp_path, shipped(), shipped(token="1"), shipped(us="3"))
    before = into.read_bytes()
    source = table(tmp_path, shipped(us="5"))
    plan = merge_into(into, [source])
    assert into.read_bytes() == before
    assert plan.warnings == (
        f"{into}: rows share a key (lines 2 and 4); kept, and aiter takes the one with the lower us",
    )
    merge_into(into, [source], Prefer.MINE)
    assert [(row["token"], row["us"]) for row in rows(into)] == [("16", "5"), ("1", "12.50")]


def test_a_csv_whose_json_was_lost_gets_it_back_from_the_ledger(tmp_path):
    into, source = tmp_path / "t.csv", ledger(tmp_path, verdict(16), verdict(1))
    merge_into(into, [source])
    first = files(into)
    native_path(into).unlink()
    with pytest.raises(TableError, match=r"its t\.moetune\.json is missing; put that back or move this away"):
        merge_into(into, [source])
    provenance_path(into).unlink()
    merge_into(into, [source])
    assert files(into) == first


def test_a_csv_row_that_was_lost_comes_back(tmp_path):
    into, source = tmp_path / "t.csv", ledger(tmp_path, verdict(16), verdict(1))
    merge_into(into, [source])
    first = files(into)
    into.write_bytes(into.read_bytes().splitlines(keepends=True)[0])
    merge_into(into, [source])
    assert files(into) == first


def test_a_table_with_its_json_merges_as_its_ledger_does(tmp_path):
    source = ledger(tmp_path, verdict(16), verdict(1, routing="balanced"), tie(128))
    merge_into(tmp_path / "a.csv", [source])
    merge_into(tmp_path / "b.csv", [tmp_path / "a.csv"])
    merge_into(tmp_path / "c.csv", [native_path(tmp_path / "a.csv")])
    a, b, c = (list(files(tmp_path / f"{n}.csv").values()) for n in "abc")
    assert a == b == c


def test_a_symbolic_link_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "real" / "t.csv")
    merge_into(link, [ledger(tmp_path, verdict(16))])
    assert link.is_symlink()
    assert len(files(tmp_path / "real" / "t.csv")) == 3


def test_only_failed_verdicts_write_no_table(tmp_path):
    plan = merge_into(tmp_path / "t.csv", [ledger(tmp_path, failed(16))])
    assert (plan.changes, plan.failed) == ({}, 1)
    assert not (tmp_path / "t.csv").exists()


def test_a_target_that_is_no_csv_or_cannot_be_written_is_said(tmp_path):
    source = ledger(tmp_path, verdict(16))
    for wrong in ("t.json", "t", "."):
        with pytest.raises(UsageError, match=r"name a \.csv file"):
            merge_into(tmp_path / wrong, [source])
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="no such folder; create it"):
        merge_into(tmp_path / "file" / "t.csv", [source])


FIELDS = st.fixed_dictionaries(
    {
        "tokens": st.sampled_from([1, 16, 128]),
        "kernel": st.sampled_from(["bf16", "cpu", "theirs"]),
        "routing": st.sampled_from(["uniform", "balanced"]),
        "us": st.sampled_from([50.0, 60.0]),
        "identity": st.sampled_from(["a", "b"]),
    }
)
SHIPPED = st.fixed_dictionaries({"token": st.sampled_from(["1", "16"]), "us": st.sampled_from(["3", "4.50"])})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(FIELDS, max_size=5) | SHIPPED, min_size=1, max_size=4),
    st.lists(st.lists(FIELDS, max_size=3), max_size=2),
    st.sampled_from(Prefer),
    st.booleans(),
)
def test_any_merge_repeated_changes_nothing(tmp_path_factory, inputs, held, prefer, foreign):
    folder = tmp_path_factory.mktemp("m")
    into = table(folder, shipped(), shipped(us="3"))
    sources = [
        table(folder, shipped(**given)) if isinstance(given, dict) else ledger(folder, *(verdict(**f) for f in given))
        for given in inputs
    ]
    merge_into(into, [ledger(folder, *(verdict(**f) for f in given)) for given in held], prefer, foreign=True)
    merge_into(into, sources, prefer, foreign=foreign)
    first = files(into)
    again = merge_into(into, sources, prefer, foreign=foreign)
    assert again.refused or not again.changes
    assert files(into) == first


@settings(max_examples=30, deadline=None)
@given(st.permutations([1, 2, 4, 8, 16, 32]), st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_disjoint_inputs_give_one_table_in_any_order(tmp_path_factory, tokens, parts):
    folder = tmp_path_factory.mktemp("m")
    merge_into(folder / "a.csv", [ledger(folder, *map(verdict, sorted(tokens)))])
    split = [[t for t, part in zip(tokens, parts, strict=True) if part == i] for i in range(3)]
    merge_into(folder / "b.csv", [ledger(folder, *map(verdict, part)) for part in split])
    assert list(files(folder / "a.csv").values()) == list(files(folder / "b.csv").values())
