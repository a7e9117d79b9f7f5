import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdicts import tie, verdict

from moetune.errors import TableError
from moetune.model.config import Config
from moetune.tables.native import native_bytes, native_path, read_native
from moetune.tables.row import Row

configs = st.dictionaries(st.text(min_size=1), st.integers(), min_size=1).map(lambda d: Config(tuple(d.items())))
times = st.floats(min_value=1e-3, max_value=1e9)


@given(st.dictionaries(st.integers(1, 10**6), st.tuples(configs, st.none() | configs, times, times)))
def test_any_rows_written_are_read_back_whole(tmp_path_factory, made):
    rows = [
        Row(verdict(tokens, config1=one, config2=two, us=us, spread_us=spread))
        for tokens, (one, two, us, spread) in made.items()
    ]
    path = tmp_path_factory.mktemp("t") / "t.moetune.json"
    path.write_bytes(native_bytes(rows))
    assert read_native(path) == sorted(rows, key=lambda row: row.key)


def test_rows_of_before_expert_parallelism_are_of_one_rank_with_the_output_weighted(tmp_path):
    old = verdict(16)
    old = dataclasses.replace(old, facts={k: v for k, v in old.facts.items() if k not in ("ep", "router_on_input")})
    data = {"tool": "moetune", "schema": 1, "rows": [old.to_json()]}
    (tmp_path / "t.moetune.json").write_text(json.dumps(data))
    assert read_native(tmp_path / "t.moetune.json") == [Row(verdict(16))]


def test_the_file_does_not_depend_on_the_order_of_rows_and_has_a_row_a_line():
    rows = [Row(verdict(128)), Row(tie(1)), Row(verdict(16, routing="zipf:1.2"))]
    assert native_bytes(rows) == native_bytes(rows[::-1])
    assert len(native_bytes(rows).splitlines()) == 2 + len(rows)
    assert json.loads(native_bytes([]))["rows"] == []


def test_it_lies_beside_the_table_under_a_name_that_is_no_csv(tmp_path):
    path = native_path(tmp_path / "tuned_grouped_fmoe.csv")
    assert path == tmp_path / "tuned_grouped_fmoe.moetune.json"
    assert not path.match("*tuned_grouped_fmoe*.csv")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("[1,", "no JSON"),
        ("[]", "no table of moetune"),
        ('{"rows": []}', "no table of moetune"),
        ('{"tool": "moetune", "schema": 99, "rows": []}', r"schema 99 is newer than this moetune reads \(1\); upgrade"),
        ('{"tool": "moetune", "schema": 1, "rows": [{"problem": "p"}]}', "row 1 cannot be read"),
        ('{"tool": "moetune", "schema": 1, "rows": [3]}', "row 1 cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error_naming_it(tmp_path, data, message):
    path = tmp_path / "t.moetune.json"
    path.write_text(data)
    with pytest.raises(TableError, match=rf"t\.moetune\.json: .*{message}"):
        read_native(path)


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(TableError, match="cannot be read"):
        read_native(tmp_path / "none.moetune.json")
