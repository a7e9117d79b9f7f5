from __future__ import annotations

import dataclasses
import json

import pytest
from verdicts import BEST1, BEST2, DEFAULT, failed, tie, verdict

from moetune.errors import LedgerError, TableError, UsageError
from moetune.ledger import Ledger
from moetune.model.trial import Accuracy, Final, Outcome, Phase, Timing, Trial
from moetune.model.verdict import Decision
from moetune.report import evidence as evidence_module
from moetune.report.accuracy import accuracy_sheet, failure_sheet
from moetune.report.buckets import config_sheets, identify, time_sheets
from moetune.report.contents import CONTENTS, report_sheets
from moetune.report.evidence import Evidence, read_evidence
from moetune.report.loops import loop_sheet
from moetune.report.outcomes import outcome_sheet, seconds_sheet
from moetune.report.rows import row_of
from moetune.report.sheet import Sheet, render
from moetune.report.summary import summary_sheets
from moetune.tables.native import native_bytes
from moetune.tables.row import Row

LOOPS = [verdict(tokens, kernel="bf16-loop", us=us) for tokens, us in ((1, 400.0), (16, 200.0))]
SEVERAL = [verdict(1, us=50.0), verdict(16), tie(128), verdict(16, tp=2, us=64.0, default_us=64.0 * 2)]


def objects(sheet: Sheet) -> list[dict[str, object]]:
    return [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]


def trial(outcome: Outcome = Outcome.OK, stage: int = 1, dropped: bool = False, reason: str = "") -> Trial:
    timing = Timing(90.0, 1.0, 21, dropped) if outcome is Outcome.OK else None
    return Trial(verdict(16).problem, stage, BEST1, 0, Phase.SCREEN, outcome, reason, timing=timing,
                 seconds={"compile": 2.0, "time": 0.25})  # fmt: skip


class TestRow:
    def test_shares_are_of_the_two_stages_alone(self):
        row = row_of(verdict(16, stage_us=(30.0, 20.0), floor_us=40.0, padded_floor_us=45.0))
        assert row["floor_share"] == pytest.approx(0.8) and row["padded_floor_share"] == pytest.approx(0.9)

    def test_a_tie_counts_as_one_whatever_its_times(self):
        assert row_of(tie(16, us=99.0))["speed_up"] == 1.0
        assert row_of(verdict(16, decision=Decision.DEFAULT))["speed_up"] == 1.0

    def test_a_machine_without_rates_has_no_share(self):
        row = row_of(verdict(16, floor_us=None, padded_floor_us=None))
        assert row["floor_share"] is None and row["padded_floor_share"] is None

    def test_a_failed_problem_has_no_numbers(self):
        row = row_of(failed(16))
        assert row["verdict"] == "failed"
        assert {row[name] for name in ("tuned_us", "default_us", "speed_up", "fixed_speed_up", "tied")} == {None}


class TestSummary:
    def test_geomeans_are_of_bucket_ratios_per_tp_and_in_all(self):
        (sheet,) = summary_sheets(SEVERAL)
        first, second, both = objects(sheet)
        assert (first["tp"], second["tp"], both["tp"]) == (1, 2, "all")
        assert first["speed_up"] == pytest.approx((2.0 * 1.25 * 1.0) ** (1 / 3))
        assert both["speed_up"] == pytest.approx((2.0 * 1.25 * 1.0 * 2.0) ** (1 / 4))
        assert (first["rows"], first["tuned"], first["tie"], first["least"], first["most"]) == (3, 2, 1, 1.0, 2.0)

    def test_the_fixed_default_stands_beside(self):
        (sheet,) = summary_sheets([verdict(1, fixed_default_us=160.0), verdict(16, fixed_default_us=None)])
        assert objects(sheet)[0]["fixed_speed_up"] == pytest.approx(2.0)

    def test_failed_problems_are_counted_and_stay_out_of_the_mean(self):
        (sheet,) = summary_sheets([verdict(1), failed(16)])
        (row,) = objects(sheet)
        assert (row["rows"], row["failed"], row["speed_up"]) == (1, 1, pytest.approx(1.25))

    def test_kernels_and_machines_are_never_averaged_together(self):
        other = verdict(1, us=25.0, machine={**verdict().machine, "product": "NVIDIA H100"})
        (sheet,) = summary_sheets([verdict(1), verdict(1, kernel="a8w4", us=50.0), other])
        assert [row["speed_up"] for row in objects(sheet)] == [4.0, 2.0, 1.25]
        assert sheet.title == "Speed-up over the default: demo, uniform routing"

    def test_by_shape_joins_the_tps(self):
        (sheet,) = summary_sheets(SEVERAL, "shape")
        (row,) = objects(sheet)
        assert row["rows"] == 4 and "tp" not in row

    def test_it_depends_on_no_order_of_verdicts(self):
        assert summary_sheets(SEVERAL) == summary_sheets(SEVERAL[::-1])

    def test_nothing_gives_no_sheet(self):
        assert summary_sheets([]) == []

    def test_every_cell_is_a_plain_value(self):
        (sheet,) = summary_sheets([*SEVERAL, failed(4096, kernel="a8w4")])
        assert {type(cell) for row in sheet.rows for cell in row} <= {str, int, float, type(None)}

    @pytest.mark.parametrize("width", [80, 100])
    def test_it_fits_in_one_piece(self, width):
        lines = render(summary_sheets([*SEVERAL, failed(64, kernel="a8w4")]), "text", width).splitlines()
        assert max(map(len, lines)) <= width
        assert sum(line.startswith("kernel") for line in lines) == 1


class TestBuckets:
    def test_one_sheet_a_kernel_and_tp_sorted_by_tokens(self):
        sheets = time_sheets(SEVERAL[::-1], {})
        assert [sheet.title for sheet in sheets] == [
            "Token buckets: bf16, demo, TP 1, uniform routing, NVIDIA H200",
            "Token buckets: bf16, demo, TP 2, uniform routing, NVIDIA H200",
        ]
        assert [row["tokens"] for row in objects(sheets[0])] == [1, 16, 128]

    def test_by_shape_the_tp_is_a_column(self):
        (sheet,) = time_sheets(SEVERAL, {}, by="shape")
        assert [(row["tp"], row["tokens"]) for row in objects(sheet)] == [(1, 1), (1, 16), (1, 128), (2, 16)]
        assert "tp" not in sheet.hidden

    def test_marks_stand_with_their_meaning(self):
        (sheet,) = time_sheets([verdict(1), verdict(16)], {identify(verdict(16)): ["hash", "clock"]})
        assert [row["marks"] for row in objects(sheet)] == [None, "hash, clock"]
        assert len(sheet.notes) == 2 and "another source" in sheet.notes[0]

    def test_winning_configs_have_a_row_a_stage_and_a_column_an_axis(self):
        (sheet,) = config_sheets([verdict(16)])
        one, two = objects(sheet)
        assert (one["stage"], two["stage"]) == (1, 2)
        assert all(one[axis] == value for axis, value in BEST1.items())
        assert all(two[axis] == value for axis, value in BEST2.items())

    def test_a_kernel_with_one_config_for_both_stages_has_one_row(self):
        (sheet,) = config_sheets([verdict(16, config1=DEFAULT, config2=None)])
        assert len(sheet.rows) == 1

    def test_a_group_without_any_row_is_left_out(self):
        assert time_sheets([failed(16)], {}) == []


class TestRanks:
    WHOLE, RANK = (
        verdict(16),
        dataclasses.replace(verdict(16, facts={"ep": 8}), problem="demo/tp1/ep8/bf16/t16/uniform"),
    )

    def test_they_are_groups_of_their_own(self):
        (summary,) = summary_sheets([self.RANK, self.WHOLE])
        assert [(row["ep"], row["rows"]) for row in objects(summary)] == [(1, 1), (8, 1), ("all", 2)]
        titles = [sheet.title for sheet in time_sheets([self.RANK, self.WHOLE], {})]
        assert [title.removeprefix("Token buckets: bf16, demo, ").split(", uni")[0] for title in titles] == [
            "TP 1", "TP 1, EP 8",
        ]  # fmt: skip

    def test_without_any_no_column_shows(self):
        sheets = report_sheets(Evidence({"a": self.WHOLE}), "shape")
        assert all("ep" in sheet.hidden for sheet in sheets if "ep" in sheet.columns)

    def test_the_kernel_is_found_in_their_name(self):
        posed = dataclasses.replace(trial(), problem=self.RANK.problem)
        assert objects(outcome_sheet([], [posed]))[0]["kernel"] == "bf16"


class TestLoops:
    def test_each_bucket_tuned_both_ways_has_a_row(self):
        sheet = loop_sheet([*LOOPS, verdict(16), verdict(1, us=100.0), verdict(128), verdict(16, tp=2)])
        assert [(row["tokens"], row["grouped_us"], row["loop_us"], row["gain"]) for row in objects(sheet)] == [
            (1, 100.0, 400.0, 4.0), (16, 80.0, 200.0, 2.5),
        ]  # fmt: skip
        assert sheet.title == ("Grouped against each expert alone: bf16, demo, TP 1, uniform routing, NVIDIA H200")

    def test_a_failed_problem_and_another_machine_are_not_compared(self):
        other = verdict(16, machine={**verdict().machine, "product": "NVIDIA H100"})
        assert loop_sheet([*LOOPS, failed(1), other]).rows == ()

    def test_a_report_shows_it_only_where_there_is_one_or_it_is_named(self):
        def titles(*verdicts, only=()):
            found = Evidence({identify(v): v for v in verdicts})
            return [sheet.title.partition(":")[0] for sheet in report_sheets(found, only=only)]

        assert "Grouped against each expert alone" not in titles(verdict(16))
        assert "Grouped against each expert alone" in titles(verdict(16), *LOOPS)
        assert titles(verdict(16), only=["loops"]) == ["Grouped against each expert alone"]


class TestOutcomes:
    def test_trials_and_exclusions_are_counted_by_kernel_stage_and_outcome(self):
        trials = [trial(), trial(), trial(dropped=True), trial(Outcome.TIMEOUT, 2, reason="no answer in 20 s")]
        found = {(r["kernel"], r["stage"], r["outcome"]): r for r in objects(outcome_sheet([verdict(16)], trials))}
        assert found["bf16", "1", "ok"]["configs"] == 2
        assert found["bf16", "1", "ok, dropped early"]["configs"] == 1
        assert found["bf16", "2", "timeout"]["commonest_reason"] == "no answer in 20 s"
        assert found["bf16", "-", "excluded: shared_memory"]["configs"] == 90

    def test_the_commonest_reason_is_shown(self):
        trials = [trial(Outcome.INACCURATE, reason=reason) for reason in ("b", "a", "a")]
        assert objects(outcome_sheet([], trials))[0]["commonest_reason"] == "a"


class TestSeconds:
    def test_parts_are_summed_and_what_they_leave_of_the_total_is_other(self):
        seconds = {"operands": 1.0, "compile": 5.0, "check": 2.0, "total": 10.0}
        sheet = seconds_sheet([verdict(1, seconds=seconds), verdict(16, seconds=seconds)], [])
        (row,) = objects(sheet)
        assert (row["operands"], row["compile"], row["check"], row["other"], row["total"]) == (2, 10, 4, 4, 20)

    def test_several_kernels_have_a_sum(self):
        rows = objects(seconds_sheet([verdict(1), verdict(1, kernel="a8w4")], []))
        assert [row["kernel"] for row in rows] == ["a8w4", "bf16", "all"]
        assert rows[2]["total"] == rows[0]["total"] + rows[1]["total"] == 66.0

    def test_the_trials_are_counted(self):
        (note,) = seconds_sheet([verdict(16)], [trial(), trial()]).notes
        assert note.startswith("2 trials; compile: the wait")


class TestAccuracy:
    @pytest.mark.parametrize(
        ("found", "passed"),
        [
            (Accuracy(2.5e-3, 4e-3, 1e-3, 4096, 0), "yes"),
            (Accuracy(7e-3, 4e-3, 1e-3, 4096, 0), "no"),
            (Accuracy(2.5e-3, 3e-2, 1e-3, 4096, 0), "no"),
            (Accuracy(2.5e-3, 4e-3, 6e-3, 4096, 0), "no"),
            (Accuracy(2.5e-3, 4e-3, 1e-3, 4096, 1), "no"),
            (Accuracy(float("nan"), 4e-3, 1e-3, 4096, 0), "no"),
        ],
    )
    def test_a_row_passes_within_every_limit(self, found, passed):
        (row,) = objects(accuracy_sheet([verdict(16, accuracy=found)]))
        assert row["pass"] == passed and row["limit"] == 6e-3 and row["non_finite"] == found.nonfinite

    @pytest.mark.parametrize("form", ["text", "markdown"])
    def test_kernel_and_every_limit_of_the_reference_are_shown(self, form):
        long = {"shape": "qwen3.5-397b-a17b"}
        found = [verdict(t, facts=long, kernel=kernel) for t in (1, 8192) for kernel in ("bf16", "a8w4")]
        lines = render([accuracy_sheet(found)], form, 100).splitlines()
        assert "qwen3.5-397b-a17b, TP 1, uniform routing, NVIDIA H200" in lines[0]
        rows = [line.replace("|", " ").split() for line in lines if "8192" in line]
        errors = ["0.00250", "0.00600", "0.00400", "0.0240"]
        assert [row[:6] for row in rows] == [[kernel, "8192", *errors] for kernel in ("a8w4", "bf16")]

    def test_text_of_mixed_problems_is_one_piece_of_100_columns(self):
        found = [
            verdict(8192, tp, kernel, facts={"shape": shape})
            for tp in (1, 2)
            for kernel in ("bf16", "a8w4")
            for shape in ("qwen3.5-397b-a17b", "gpt-oss-120b")
        ]
        lines = render([accuracy_sheet(found)], "text", 100).splitlines()
        assert max(map(len, lines)) <= 100
        assert sum("8192" in line for line in lines) == len(found)

    def test_failed_problems_say_why_and_what_to_do(self):
        (row,) = objects(failure_sheet([verdict(1), failed(16)]))
        assert row["reason"] == "the default's rel_l2 0.31 exceeds the cap 0.006"
        assert "reference" in str(row["what_to_do"]) and "moetune sweep demo" in str(row["what_to_do"])


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence_module, "source_hash", {"bf16": "new", "cpu": "new"}.get)
    path = tmp_path / "ledger.jsonl"
    opened = Ledger(path)
    opened.header({"command": "moetune sweep demo"})
    yield opened
    opened.close()


class TestEvidence:
    def test_the_last_verdict_of_a_problem_stands(self, ledger):
        ledger.verdict(verdict(16, us=90.0))
        ledger.verdict(verdict(16, us=70.0))
        assert [v.us for v in read_evidence([ledger.path]).verdicts] == [70.0]

    def test_a_problem_named_twice_counts_once_with_a_warning(self, ledger):
        ledger.verdict(verdict(16))
        found = read_evidence([ledger.path, ledger.path.parent])
        assert len(found.verdicts) == 1
        assert found.warnings == [
            f"{verdict(16).problem} is in several ledgers; the last one's verdict is used, that of {ledger.path.parent}"
        ]
        ledger.verdict(verdict(1))
        again = f"{verdict(16).problem} (and 1 more) is in several"
        assert read_evidence([ledger.path, ledger.path.parent]).warnings[0].startswith(again)

    def test_two_layers_of_one_name_do_not_hide_each_other(self, ledger):
        both = [verdict(16), verdict(16, facts={"inter_dim": 64})]
        for one in both:
            ledger.verdict(one)
        assert read_evidence([ledger.path]).verdicts == both

    @pytest.mark.parametrize(("stated", "marks"), [("old", ["hash"]), ("new", []), (None, [])])
    def test_a_row_of_another_kernel_source_is_marked(self, ledger, stated, marks):
        one = verdict(16)
        ledger.verdict(dataclasses.replace(one, machine={**one.machine, "kernel_hash": stated}))
        assert read_evidence([ledger.path]).marks.get(identify(one), []) == marks

    def test_a_kernel_that_is_not_installed_is_said_so(self, ledger):
        one = verdict(16, kernel="a8w4")
        ledger.verdict(dataclasses.replace(one, machine={**one.machine, "kernel_hash": "old"}))
        found = read_evidence([ledger.path])
        assert found.warnings == ["kernel 'a8w4' is not installed: whether its source has changed is unknown"]
        assert found.marks == {}

    @pytest.mark.parametrize(("clock", "marked"), [((1980, 1900), True), ((1900, 1980), True), ((1950, 1980), False)])
    def test_a_row_whose_clock_moved_in_its_final_is_marked(self, ledger, clock, marked):
        one = verdict(16)
        ledger.final(Final(one.problem, "pair", 0, (), clock_mhz=clock))
        ledger.verdict(one)
        assert (identify(one) in read_evidence([ledger.path]).marks) is marked

    def test_a_native_table_and_a_csv_with_one_beside_it_are_read(self, tmp_path):
        row = Row.of(verdict(16))
        assert row is not None
        (tmp_path / "t.moetune.json").write_bytes(native_bytes([row]))
        assert read_evidence([tmp_path / "t.moetune.json"]).verdicts == [verdict(16)]

    def test_an_empty_ledger_and_one_without_verdicts_are_errors(self, ledger, tmp_path):
        ledger.trials([trial()])
        with pytest.raises(LedgerError, match="no verdict yet \\(1 trials\\)"):
            read_evidence([ledger.path])
        (tmp_path / "empty.jsonl").touch()
        with pytest.raises(LedgerError, match="is empty"):
            read_evidence([tmp_path / "empty.jsonl"])

    def test_a_verdict_that_lacks_facts_is_an_error_not_a_crash(self, ledger):
        ledger.verdict(dataclasses.replace(verdict(16), facts={"shape": "demo"}))
        with pytest.raises(LedgerError, match=r"ledger\.jsonl: line 2 cannot be read \(facts lack tp\)"):
            read_evidence([ledger.path])

    def test_a_table_without_rows_is_an_error(self, tmp_path):
        (tmp_path / "t.moetune.json").write_bytes(native_bytes([]))
        with pytest.raises(TableError, match="holds no row"):
            read_evidence([tmp_path / "t.moetune.json"])


class TestContents:
    def test_failures_show_only_where_there_are_some_or_they_are_named(self):
        good = Evidence({identify(verdict(16)): verdict(16)})
        assert "Failed problems" not in [sheet.title for sheet in report_sheets(good)]
        assert [sheet.title for sheet in report_sheets(good, only=["failures"])] == ["Failed problems"]

    @pytest.mark.parametrize("arguments", [{"by": "tps"}, {"only": ["sumary"]}])
    def test_unknown_words_name_the_nearest(self, arguments):
        with pytest.raises(UsageError, match="did you mean"):
            report_sheets(Evidence({"x": verdict(16)}), **arguments)

    @pytest.mark.parametrize("form", ["text", "markdown", "csv", "json"])
    def test_every_sheet_renders_in_every_form_and_text_fits(self, form):
        found = Evidence({identify(v): v for v in [*SEVERAL, failed(64)]}, [trial(), trial(Outcome.TIMEOUT)])
        for name in CONTENTS:
            shown = render(report_sheets(found, only=[name]), form, 80)
            assert form != "text" or max(map(len, shown.splitlines())) <= 80
            assert form != "json" or json.loads(shown)


def test_quantising_x_is_said_beside_the_times_and_not_in_them() -> None:
    from moetune.report.buckets import time_sheets

    quantised = [verdict(problem=f"p{t}", quantise_us=t / 2, facts={**verdict().facts, "tokens": t}) for t in (1, 16)]
    (sheet,) = time_sheets(quantised, {})
    assert "quantising x, timed apart and not counted, in us by tokens: 0.50 at 1, 8.0 at 16." in sheet.notes
    assert not [n for n in time_sheets([verdict()], {})[0].notes if "quantising" in n]
