import dataclasses
import json

from verdicts import MACHINE, tie, verdict

from moetune.tables import aiter
from moetune.tables.provenance import provenance_bytes, provenance_path
from moetune.tables.row import Row


def test_a_row_is_one_line_with_what_was_measured_and_how_to_repeat_it():
    search, drawn = {"trials": 100, "sampler": "gp"}, {"hash": "ab", "most": 5}
    machine = {**MACHINE, "runtime": "12.8", "kernel_hash": "cd"}
    one = dataclasses.replace(verdict(16, quantise_us=2.5, search=search, machine=machine), routing=drawn)
    lines = provenance_bytes([Row(one), Row(tie(1))], []).splitlines()
    first, second = map(json.loads, lines)
    assert (first["key"]["token"], second["key"]["token"]) == ("1", "16")
    assert list(second["key"]) == list(aiter.HEADER[: aiter.KEYS])
    assert (second["us"], second["spread_us"], second["samples"], second["default_us"]) == (80.0, 0.5, 101, 100.0)
    assert (second["accuracy"]["rel_l2"], second["limits"]["rel_l2"]) == (2.5e-3, 6e-3)
    assert second["versions"] == {
        "driver": "570.86", "runtime": "12.8", "torch": "2.11.0", "triton": "3.6.0",
        "python": "3.12.3", "moetune": "0.1.0",
    }  # fmt: skip
    assert (second["quantise_us"], second["floor_us"], second["active_experts"]) == (2.5, 40.0, 8)
    assert (second["routing"], second["drawn"], second["search"]) == ("uniform", drawn, search)
    assert (second["kernel_hash"], first["kernel_hash"]) == ("cd", None)
    assert second["command"].startswith("moetune sweep demo --tp 1 --tokens 16")
    assert (first["decision"], second["decision"]) == ("tie", "tuned")
    assert (second["tp"], second["ep"]) == (1, 1)


def test_it_says_which_rows_are_in_the_csv():
    shown, hidden = Row(verdict(16)), Row(verdict(16, routing="balanced"))
    lines = map(json.loads, provenance_bytes([shown, hidden], [aiter.cells(shown)]).splitlines())
    assert {line["routing"]: line["in_csv"] for line in lines} == {"uniform": True, "balanced": False}


def test_it_lies_beside_the_table_under_a_name_that_is_no_csv(tmp_path):
    path = provenance_path(tmp_path / "tuned_grouped_fmoe.csv")
    assert path == tmp_path / "tuned_grouped_fmoe.provenance.jsonl"
    assert not path.match("*tuned_grouped_fmoe*.csv")
