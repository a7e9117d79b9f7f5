import json

from verdicts import MACHINE, verdict

from moetune.tables.native import native_bytes
from moetune.tables.row import Row
from moetune.tables.winners import winners


def row(kernel: str, form: str, tokens: int, us: float, **changes) -> Row:
    return Row(verdict(tokens, facts={"kernel": kernel, "format": form}, us=us, **changes))


def test_the_fastest_kernel_on_the_same_weights_wins_each_bucket():
    rows = [
        row("w4a16", "w4a16", 1, 10.0), row("w4a8_int8", "w4a8_int8", 1, 12.0),
        row("w4a16", "w4a16", 128, 90.0), row("w4a8_int8", "w4a8_int8", 128, 60.0),
    ]  # fmt: skip
    found = {won["tokens"]: won for won in winners(rows)}
    assert {tokens: won["kernel"] for tokens, won in found.items()} == {1: "w4a16", 128: "w4a8_int8"}
    assert found[128]["us"] == {"w4a16": 90.0, "w4a8_int8": 60.0}
    assert found[1]["weights"] == "int4"


def test_weights_stored_otherwise_do_not_compete():
    rows = [row("w4a16", "w4a16", 1, 10.0), row("w4a8_int8_g64", "w4a8_int8_g64", 1, 5.0), row("bf16", "bf16", 1, 1.0)]
    assert winners(rows) == []


def test_launches_expert_by_expert_do_not_compete():
    rows = [row("w4a16", "w4a16", 1, 10.0), row("w4a8_int8", "w4a8_int8", 1, 12.0), row("w4a16-loop", "w4a16", 1, 5.0)]
    (won,) = winners(rows)
    assert (won["kernel"], set(won["us"])) == ("w4a16", {"w4a16", "w4a8_int8"})


def test_only_times_of_one_machine_are_compared():
    other = row("w4a8_int8", "w4a8_int8", 1, 5.0, machine={**MACHINE, "driver": "1.0"})
    assert winners([row("w4a16", "w4a16", 1, 10.0), other]) == []


def test_another_kernel_source_is_no_other_machine():
    rows = [
        row(kernel, kernel, 1, us, machine={**MACHINE, "kernel_hash": kernel})
        for kernel, us in (("w4a16", 10.0), ("w4a8_int8", 5.0))
    ]
    assert [won["kernel"] for won in winners(rows)] == ["w4a8_int8"]


def test_the_json_table_tells_the_winners():
    rows = [row("w4a16", "w4a16", 1, 10.0), row("w4a8_int8", "w4a8_int8", 1, 12.0)]
    assert json.loads(native_bytes(rows))["winners"] == winners(rows)
