import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetune.errors import TableError
from moetune.tables.aiter import HEADER
from moetune.tables.lines import join, read_lines

HEAD = ",".join(HEADER)


def row(token: int = 1, **changes: str) -> tuple[str, ...]:
    """Return a row in the form of the published table, with blank stage 2 cells."""
    values = {
        "gfx": "gfx1250", "cu_num": "256", "token": str(token), "model_dim": "512", "inter_dim": "256", "expert": "4",
        "topk": "2", "act_type": "ActivationType.Silu", "dtype": "torch.bfloat16",
        "q_dtype_a": "torch.float8_e4m3fn", "q_dtype_w": "torch.float4_e2m1fn_x2", "q_type": "QuantType.per_1x32",
        "use_g1u1": "1", "doweight_stage1": "0", "max_m": "2", "tile_m": "16", "tile_n": "256", "tile_k": "128",
        "kernelName1": "grouped_gemm1", "kernelName2": "grouped_gemm2", "us": "12.50", "tflops": "0", "bw": "0",
    }  # fmt: skip
    return tuple((values | changes).get(column, "") for column in HEADER)


def text(*rows: tuple[str, ...], end: str = "\n") -> bytes:
    return end.join([HEAD, *(join(r).decode() for r in rows), ""]).encode()


@pytest.fixture
def table(tmp_path):
    def write(data: bytes):
        path = tmp_path / "t.csv"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("final", [True, False])
def test_an_unedited_table_keeps_every_byte(table, end, bom, final):
    data = bom + text(row(1), row(2), end=end)
    data = data if final else data.removesuffix(end.encode())
    lines = read_lines(table(data))
    assert [line.cells[2] for line in lines.rows()] == ["1", "2"]
    assert lines.edited({}, []) == data


def test_added_rows_take_the_line_ending_and_the_open_end_of_the_table(table):
    closed = read_lines(table(text(row(1), end="\r\n")))
    assert closed.edited({}, [row(2)]) == text(row(1), row(2), end="\r\n")
    opened = read_lines(table(text(row(1)).rstrip()))
    assert opened.edited({}, [row(2), row(3)]) == text(row(1), row(2), row(3)).rstrip()


def test_a_replaced_row_stays_in_its_place_and_a_row_can_be_left_out(table):
    lines = read_lines(table(text(row(1), row(2), row(3), row(4))))
    edited = lines.edited({3: row(2, us="9"), 4: None}, [])
    assert edited == text(row(1), row(2, us="9"), row(4))


def test_quotes_spacing_and_blank_lines_of_other_rows_stay(table):
    odd = text(row(1)).replace(b"12.50", b'"12.50"') + b"\n" + text(row(2)).partition(b"\n")[2]
    lines = read_lines(table(odd))
    assert len(lines.rows()) == 2
    assert lines.edited({}, [row(3)]) == odd + join(row(3)) + b"\n"


def test_no_file_and_an_empty_file_are_an_empty_table_only_where_allowed(tmp_path, table):
    assert read_lines(tmp_path / "none.csv", missing_ok=True).edited({}, [row(1)]) == text(row(1))
    assert read_lines(table(b""), missing_ok=True).edited({}, [row(1)]) == text(row(1))
    with pytest.raises(TableError, match=r"none\.csv: no such file"):
        read_lines(tmp_path / "none.csv")
    with pytest.raises(TableError, match="not the header"):
        read_lines(table(b""))


def test_a_header_alone_is_a_table_without_rows(table):
    assert read_lines(table(HEAD.encode())).edited({}, [row(1)]) == text(row(1)).rstrip()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a,b\n1,2\n", r"t\.csv: not the header of tuned_grouped_fmoe\.csv: it lacks gfx, cu_num, "),
        (text(row(1)).replace(b",bw", b",bw,_tag", 1), "it has _tag;"),
        (text(row(1)).replace(b"tile_m,tile_n", b"tile_n,tile_m", 1), "columns in another order"),
        (text(row(1), row(2)[:-1]), r"t\.csv: line 3 has 40 cells where the header has 41; correct or remove it"),
        (text(row(1)) + b'"open,1\n', "line 3 is no CSV row"),
        (text(row(1)) + b"\xff\xfe\n", "line 3 is not UTF-8"),
    ],
)
def test_a_foreign_or_ragged_table_is_one_clear_error(table, data, message):
    with pytest.raises(TableError, match=message) as caught:
        read_lines(table(data))
    assert "\n" not in str(caught.value)


def test_duplicate_keys_are_found_with_their_lines(table):
    lines = read_lines(table(text(row(1), row(2), row(1, us="3"), row(1))))
    assert lines.duplicates() == [(2, 4), (2, 5)]


rows = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=41, max_size=41).map(tuple)


@given(st.lists(rows))
def test_any_rows_written_are_read_back(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes(read_lines(path, missing_ok=True).edited({}, written))
    assert [line.cells for line in read_lines(path).rows()] == written
    assert read_lines(path).edited({}, []) == path.read_bytes()
