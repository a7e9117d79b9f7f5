import pytest
from verdicts import DEFAULT, failed, tie, verdict

from moetune.errors import TableError
from moetune.tables.row import Row


def test_a_tie_carries_the_default_and_a_failed_verdict_has_no_row():
    row = Row.of(tie())
    assert row is not None
    assert row.config1 == row.config2 == DEFAULT
    assert Row.of(failed()) is None


def test_a_shared_config_is_that_of_both_stages():
    row = Row.of(verdict(config2=None))
    assert row is not None
    assert row.config2 == row.config1


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({"machine": {"arch": "sm_90"}}, "machine.cu_num"),
        ({"config1": None}, "config1"),
        ({"us": 0.0}, "us"),
        ({"us": float("nan")}, "us"),
    ],
)
def test_an_incomplete_verdict_is_an_error_that_says_what_it_lacks(changes, lacking):
    with pytest.raises(TableError, match=rf"demo/tp1/bf16/t16/uniform lacks {lacking}; sweep it again"):
        Row.of(verdict(**changes))


def test_the_key_holds_the_problem_and_the_kind_of_device_but_not_the_models_name():
    key = Row(verdict()).key
    assert Row(verdict(facts={"shape": "other", "tp": 2})).key == key
    others = [
        verdict(32), verdict(kernel="cpu"), verdict(routing="balanced"), verdict(facts={"biases": True}),
        verdict(facts={"limit": 7.0}), verdict(machine={"arch": "sm_90", "cu_num": 114}),
        verdict(facts={"ep": 2}), verdict(facts={"router_on_input": True}), verdict(kernel="bf16-loop"),
    ]  # fmt: skip
    assert len({key, *(Row(v).key for v in others)}) == 10


def test_only_rows_of_one_identity_are_measured_alike():
    assert Row(verdict(identity="a")).measured_like(Row(verdict(identity="a", us=70.0)))
    assert not Row(verdict(identity="a")).measured_like(Row(verdict(identity="b")))
    assert not Row(verdict(identity="")).measured_like(Row(verdict(identity="")))
