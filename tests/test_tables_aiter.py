import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdicts import verdict

from moetune.model.config import Config
from moetune.tables import aiter
from moetune.tables.row import Row


def cell(row: tuple[str, ...], column: str) -> str:
    return row[aiter.HEADER.index(column)]


def test_the_header_has_the_41_columns_of_the_published_table():
    assert len(aiter.HEADER) == len(set(aiter.HEADER)) == 41
    assert aiter.HEADER[:3] == ("gfx", "cu_num", "token")
    assert aiter.HEADER[aiter.KEYS - 1 : aiter.KEYS + 1] == ("doweight_stage1", "max_m")
    assert aiter.HEADER[-3:] == ("us", "tflops", "bw")


def test_a_row_is_written_cell_by_cell():
    row = aiter.cells(Row(verdict(kernel="a8w4", us=80.12345, operations=4_006_172_500, bytes=1_602_469)))
    assert row == (
        "sm_90", "132", "16", "256", "128", "8", "2", "ActivationType.Silu", "torch.bfloat16",
        "torch.float8_e4m3fn", "torch.float4_e2m1fn_x2", "QuantType.per_1x32", "1", "0", "32",
        "16", "128", "128", "32", "64", "128", "1", "8", "1", "4", "4", "2", "1", "1", "0", "", "0", "0",
        "-1", "-1", "0",
        "moetune_a8w4_s1:tile_m=16;tile_n=128;tile_k=128;num_buffers=4;prefetch=0;num_warps=8;group_m=1",
        "moetune_a8w4_s2:tile_m=32;tile_n=64;tile_k=128;num_buffers=2;prefetch=1;num_warps=4;group_m=4",
        "80.1235", "50", "20",
    )  # fmt: skip


def test_an_axis_that_the_kernel_does_not_have_is_one():
    row = aiter.cells(Row(verdict(config1=Config.of(tile_m=32), config2=Config.of(tile_n=64))))
    ones = ["tile_n", "tile_k", "tile_m2", "tile_k2", "n_warp", "n_warp2", "num_buffers", "num_buffer_stage2"]
    assert [cell(row, column) for column in ones] == ["1"] * 8
    assert (cell(row, "tile_m"), cell(row, "tile_n2")) == ("32", "64")


def test_a_config_shared_by_both_stages_names_stage_zero_twice():
    row = aiter.cells(Row(verdict(config1=Config.of(tile_m=32), config2=None)))
    assert cell(row, "kernelName1") == cell(row, "kernelName2") == "moetune_bf16_s0:tile_m=32"
    assert cell(row, "tile_m2") == "32"


def test_experts_are_those_of_one_rank_and_the_input_may_be_weighted():
    row = aiter.cells(Row(verdict(facts={"ep": 4, "topk": 1, "router_on_input": True})))
    assert [cell(row, name) for name in ("expert", "topk", "doweight_stage1", "max_m")] == ["2", "1", "1", "16"]
    assert cell(aiter.cells(Row(verdict())), "expert") == "8"


@pytest.mark.parametrize("changes", [{}, {"topk": 1, "router_on_input": True}, {"act": "gelu_tanh"}])
def test_what_the_key_tells_is_read_back(changes):
    row = Row(verdict(facts=changes))
    assert aiter.unsaid(row) == ""
    told = aiter.facts(dict(zip(aiter.HEADER, aiter.cells(row), strict=True)))
    assert told.items() <= row.facts.items()
    assert row.facts.keys() - told.keys() == {"shape", "tp", "kernel", "format"}


configs = st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True), st.integers(), min_size=1).map(
    lambda values: Config(tuple(values.items()))
)


@given(st.from_regex(r"[A-Za-z0-9_.-]+", fullmatch=True), st.sampled_from([0, 1, 2]), configs)
def test_a_kernel_name_has_no_comma_and_is_read_back(kernel, stage, config):
    name = aiter.kernel_name(kernel, stage, config)
    assert "," not in name
    assert aiter.parse_kernel_name(name) == (kernel, stage, config)


@pytest.mark.parametrize("name", ["grouped_gemm1_fp4_gugu", "", "moetune_bf16", "moetune_bf16_s1:tile_m=x"])
def test_another_kernels_name_is_not_read(name):
    assert aiter.parse_kernel_name(name) is None


def test_the_kernel_of_a_row_is_moetunes_or_what_the_cell_says():
    row = aiter.cells(Row(verdict()))
    assert aiter.kernel_of(row) == "moetune_bf16"
    named = tuple("grouped_gemm2" if c == "kernelName1" else v for c, v in zip(aiter.HEADER, row, strict=True))
    assert aiter.kernel_of(named) == "grouped_gemm2"


@pytest.mark.parametrize(
    ("value", "text"),
    [(468.0, "468"), (2011.94, "2011.94"), (0.00004, "0"), (1234567.00001, "1234567"), (100.0, "100")],
)
def test_numbers_have_at_most_four_decimals(value, text):
    assert aiter.decimal(value) == text


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, ""),
        ({"routing": "zipf:1.2"}, "routing zipf:1.2"),
        ({"biases": True}, "biases"),
        ({"interleaved": True}, "interleaved gate and up"),
        ({"act": "relu2", "gated": False}, "activation relu2"),
        ({"limit": 10.0}, "silu's alpha, beta or limit"),
        ({"act": "swiglu"}, "swiglu's alpha, beta or limit"),
        ({"act": "swiglu", "alpha": 1.702, "beta": 1.0, "limit": 7.0}, ""),
        ({"format": "w4a16_g64"}, "groups of 64"),
        ({"format": "w4a16"}, ""),
        ({"format": "w4a8_int8_g32_zp"}, "zero points"),
        ({"ep": 8}, "expert parallelism"),
        ({"kernel": "bf16-loop"}, "launches expert by expert"),
        ({"router_on_input": True, "topk": 1}, ""),
        ({"format": "nvfp4"}, "format nvfp4"),
        ({"biases": True, "routing": "balanced"}, "biases, routing balanced"),
    ],
)
def test_what_the_key_cannot_tell_apart_is_named(facts, reason):
    assert aiter.unsaid(Row(verdict(facts=facts))) == reason


def test_rows_are_ordered_by_numbers_with_the_token_last():
    rows = [
        verdict(tokens, tp, facts={"model_dim": dim})
        for dim, tp, tokens in [(1024, 1, 8), (256, 1, 128), (256, 1, 16), (256, 2, 128), (256, 2, 1)]
    ]
    ordered = sorted((aiter.cells(Row(v)) for v in rows), key=aiter.order)
    assert [(cell(r, "model_dim"), cell(r, "inter_dim"), cell(r, "token")) for r in ordered] == [
        ("256", "64", "1"), ("256", "64", "128"), ("256", "128", "16"), ("256", "128", "128"), ("1024", "128", "8"),
    ]  # fmt: skip
