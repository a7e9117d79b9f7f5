import pytest
from verdicts import failed, tie, verdict

from moetune.errors import LedgerError, TableError, UsageError
from moetune.ledger import Ledger
from moetune.tables import aiter
from moetune.tables.lines import Lines, read_lines
from moetune.tables.native import native_bytes
from moetune.tables.reading import read_source
from moetune.tables.row import Row


@pytest.fixture
def folder(tmp_path):
    ledger = Ledger(tmp_path / "out" / "ledger.jsonl")
    ledger.header({})
    for v in (verdict(16, us=90.0), tie(1), failed(128), verdict(16)):
        ledger.verdict(v)
    ledger.close()
    return tmp_path / "out"


def test_a_folder_and_its_ledger_give_the_last_verdict_of_each_problem(folder):
    source = read_source(folder)
    assert source.rows == (Row(verdict(16)), Row(tie(1)))
    assert source.failed == (failed(128),)
    assert source.verdicts == [verdict(16), tie(1), failed(128)]
    assert source.records is not None and len(source.records.verdicts) == 4
    assert read_source(folder / "ledger.jsonl").rows == source.rows


def test_a_torn_last_line_is_left_out_with_a_warning(folder):
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"record":"verd')
    source = read_source(folder)
    assert len(source.rows) == 2
    assert source.warnings == (f"{folder / 'ledger.jsonl'}: its torn last line is left out",)


def test_a_table_gives_the_rows_of_its_json_and_those_known_by_their_cells_alone(tmp_path):
    known = Row(verdict(16))
    other = aiter.cells(Row(verdict(64)))  # as the zipf row's cells are, yet nothing says how it was measured
    hidden = Row(verdict(64, routing="zipf:1.2"))
    (tmp_path / "t.csv").write_bytes(Lines().edited({}, [aiter.cells(known), other]))
    (tmp_path / "t.moetune.json").write_bytes(native_bytes([known, hidden]))
    source = read_source(tmp_path / "t.csv")
    assert {r.key for r in source.rows} == {known.key, hidden.key}
    assert [line.cells for line in source.lines] == [other]
    assert read_source(tmp_path / "t.moetune.json").rows == source.rows


def test_a_table_alone_has_lines_only_and_warns_of_duplicate_keys(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(Lines().edited({}, [aiter.cells(Row(verdict(16))), aiter.cells(Row(verdict(16, us=70.0)))]))
    source = read_source(path)
    assert source.rows == ()
    assert list(source.lines) == read_lines(path).rows()
    assert source.warnings == (
        f"{path}: rows share a key (lines 2 and 3); kept, and aiter takes the one with the lower us",
    )


def test_what_is_neither_is_one_clear_error(tmp_path):
    with pytest.raises(LedgerError, match="name a ledger or the folder of a sweep"):
        read_source(tmp_path)
    with pytest.raises(TableError, match="no such file"):
        read_source(tmp_path / "none.csv")
    with pytest.raises(UsageError, match=r"name t\.csv or t\.moetune\.json"):
        read_source(tmp_path / "t.provenance.jsonl")


def test_an_incomplete_verdict_names_the_ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.header({})
    ledger.verdict(verdict(16, machine={}))
    ledger.close()
    with pytest.raises(TableError, match=r"ledger\.jsonl: the verdict of demo/.* lacks machine\.arch, machine\.cu_num"):
        read_source(tmp_path)
