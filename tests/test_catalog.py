"""Shape files: the ones that come with moetune, and what is said of wrong ones."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetune.catalog import load_shape, shape_names
from moetune.errors import ShapeError
from moetune.model.format import FORMATS
from moetune.model.shape import Shape

DEMO: dict[str, Any] = {
    "model": "demo", "model_dim": 256, "inter_dim": 512, "experts": 8, "topk": 2, "act": "silu", "gated": True,
    "shared_experts": 0, "moe_layers": 1, "formats": ["bf16", "a8w4"], "tp": [1, 2], "tokens": [1, 16, 128],
}  # fmt: skip


def toml(value: object) -> str:
    """Write one value as TOML: what JSON has in common with it, inline tables and dates."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return str(value)
    return value.isoformat() if isinstance(value, datetime.date) else json.dumps(value)


def written(path: Path, **changes: object) -> Path:
    """Write the demo with fields changed, or left out where None."""
    fields = {key: value for key, value in (DEMO | changes).items() if value is not None}
    path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in fields.items()), "utf-8")
    return path


class TestBundled:
    def test_at_least_25_models_and_the_demo_come_along(self) -> None:
        assert len(shape_names()) > 25
        assert "demo" in shape_names()
        assert shape_names() == sorted(shape_names())

    @pytest.mark.parametrize("name", shape_names())
    def test_each_is_right_and_every_degree_has_a_legal_format(self, name: str) -> None:
        shape = load_shape(name)
        assert shape.name == name == name.lower()
        for tp in shape.tp:
            assert any(shape.illegal(tp, FORMATS[form]) is None for form in shape.formats), tp

    @pytest.mark.parametrize(
        ("name", "sizes"),
        [
            ("qwen3.5-397b-a17b", (4096, 1024, 512, 10)),
            ("deepseek-v3", (7168, 2048, 256, 8)),
            ("gpt-oss-120b", (2880, 2880, 128, 4)),
            ("mixtral-8x7b", (4096, 14336, 8, 2)),
            ("kimi-k3", (3584, 3072, 896, 16)),
            ("nemotron-3-ultra-550b-a55b", (2048, 5120, 512, 22)),
            ("nemotron-3-super-120b-a12b", (1024, 2688, 512, 22)),
            ("kimi-k2.5", (7168, 2048, 384, 8)),
            ("minimax-m3", (6144, 3072, 128, 4)),
        ],
    )
    def test_sizes_are_those_the_experts_multiply(self, name: str, sizes: tuple[int, ...]) -> None:
        shape = load_shape(name)
        assert (shape.model_dim, shape.inter_dim, shape.experts, shape.topk) == sizes

    def test_the_model_that_is_tuned_first_has_both_kernels_formats_and_all_buckets(self) -> None:
        shape = load_shape("Qwen3.5-397B-A17B")
        assert {"bf16", "a8w4"} <= set(shape.formats)
        assert shape.tokens == (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192)
        assert {1, 2, 4} <= set(shape.tp)

    def test_gpt_oss_carries_the_constants_of_its_activation(self) -> None:
        shape = load_shape("gpt-oss-20b")
        assert (shape.act, shape.alpha, shape.beta, shape.limit) == ("swiglu", 1.702, 1.0, 7.0)
        assert shape.interleaved and shape.biases

    def test_minimax_m3_has_its_activation_in_the_plain_order_without_biases(self) -> None:
        shape, theirs = load_shape("minimax-m3"), load_shape("gpt-oss-20b")
        assert (shape.act, shape.alpha, shape.beta, shape.limit) == (
            theirs.act,
            theirs.alpha,
            theirs.beta,
            theirs.limit,
        )
        assert not shape.interleaved and not shape.biases

    @pytest.mark.parametrize(
        ("name", "formats"),
        [
            ("kimi-k2.5", ("w4a16_g32",)),
            ("gpt-oss-120b", ("a16w4", "a8w4")),
            ("gpt-oss-20b", ("a16w4", "a8w4", "w4a16_g32")),
            ("deepseek-v3", ("fp8_block",)),
        ],
    )
    def test_formats_are_those_published_the_first_served_first(self, name: str, formats: tuple[str, ...]) -> None:
        assert load_shape(name).formats == formats

    def test_only_llama_4_weights_the_input_of_its_experts(self) -> None:
        weighted = [name for name in shape_names() if load_shape(name).router_on_input]
        assert weighted == ["llama-4-maverick-17b-128e", "llama-4-scout-17b-16e"]

    def test_the_demo_is_tiny(self) -> None:
        shape = load_shape("demo")
        assert (shape.model_dim, shape.inter_dim, shape.experts) == (256, 512, 8)
        assert shape.tokens == (1, 16, 128)


class TestNames:
    @pytest.mark.parametrize("text", ["demo", "DEMO", "demo.toml", "Demo.TOML"])
    def test_a_name_is_taken_in_any_case_with_or_without_its_ending(self, text: str) -> None:
        assert load_shape(text).name == "demo"

    def test_a_path_is_taken_with_or_without_its_ending(self, tmp_path: Path) -> None:
        path = written(tmp_path / "mine-1.5b.toml", experts=16)
        assert load_shape(path).experts == 16
        assert load_shape(str(path).removesuffix(".toml")).name == "mine-1.5b"

    def test_a_file_here_is_named_by_its_stem(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        written(tmp_path / "mine.toml", experts=16)
        monkeypatch.chdir(tmp_path)
        assert load_shape("mine").experts == 16

    def test_a_bare_name_means_the_bundled_shape_and_a_file_name_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written(tmp_path / "demo.toml", experts=16)
        monkeypatch.chdir(tmp_path)
        assert load_shape("demo").experts == 8
        assert load_shape("demo.toml").experts == 16

    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(ShapeError, match=r"no shape 'qwen3.5-397b': did you mean 'qwen3.5-397b-a17b'"):
            load_shape("qwen3.5-397b")

    @pytest.mark.parametrize("text", ["", "zzz", "no/such/file", "a\0b", "x" * 5000, "two\nlines"])
    def test_a_name_like_none_is_answered_in_one_line_with_the_command_that_lists_them(self, text: str) -> None:
        with pytest.raises(ShapeError, match="`moetune shapes` lists them") as caught:
            load_shape(text)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200

    def test_a_missing_path_is_answered_with_the_nearest_name(self) -> None:
        with pytest.raises(ShapeError, match="did you mean 'mixtral-8x7b'"):
            load_shape("shapes/mixtral-8x7.toml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"expert": 8}, "unknown field 'expert': did you mean 'experts'"),
        ({"topk": None}, "topk is missing; add a line like topk = 10"),
        ({"formats": None}, "formats is missing"),
        ({"act": "silo"}, "act 'silo' is unknown: did you mean 'silu'"),
        ({"formats": ["bf16", "a8w5"]}, "formats 'a8w5' is unknown: did you mean 'a8w4'"),
        ({"model_dim": 0}, "model_dim 0 is out of range; write 1 to"),
        ({"inter_dim": -512}, "inter_dim -512 is out of range"),
        ({"moe_layers": 0}, "moe_layers 0 is out of range"),
        ({"tokens": [1, 0]}, "tokens 0 is out of range"),
        ({"tp": [0]}, "tp 0 is out of range"),
        ({"shared_experts": -1}, "shared_experts -1 is out of range; write 0 to"),
        ({"experts": 1 << 30}, "experts 1073741824 is out of range"),
        ({"limit": float("nan")}, "limit nan is out of range"),
        ({"limit": float("inf")}, "limit inf is out of range"),
        ({"experts": "8"}, "experts '8' is of the wrong type; write it as experts = 512"),
        ({"experts": True}, "experts True is of the wrong type"),
        ({"experts": 8.0}, "experts 8.0 is of the wrong type"),
        ({"gated": 1}, "gated 1 is of the wrong type; write it as gated = true"),
        ({"model": 5}, "model 5 is of the wrong type"),
        ({"tp": 1}, r"tp 1 is no filled list; write it as tp = \[1, 2, 4\]"),
        ({"tokens": []}, r"tokens \[\] is no filled list"),
        ({"formats": "bf16"}, "formats 'bf16' is no filled list"),
        ({"tokens": [1, "2"]}, "tokens '2' is of the wrong type"),
        ({"topk": 9}, "topk 9 is above experts 8; lower topk"),
        ({"router_on_input": True}, "router_on_input with topk 2: a token's experts share its input; set topk = 1"),
        ({"router_on_input": 1}, "router_on_input 1 is of the wrong type; write it as router_on_input = true"),
        ({"tp": [1, 3]}, "tp 3 does not divide inter_dim 512; 1, 2, 4, 8, 16 do"),
    ],
)
def test_a_wrong_file_is_named_with_its_field_and_a_remedy(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    path = written(tmp_path / "bad.toml", **changes)
    with pytest.raises(ShapeError, match=said) as caught:
        load_shape(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_field_with_a_default_may_be_left_out_and_a_whole_number_may_stand_for_a_float(tmp_path: Path) -> None:
    shape = load_shape(written(tmp_path / "s.toml", model=None, moe_layers=None, shared_experts=None, limit=7))
    assert (shape.moe_layers, shape.shared_experts, shape.limit) == (1, 0, 7.0)
    assert isinstance(shape.limit, float)


def test_a_value_written_twice_counts_once(tmp_path: Path) -> None:
    assert load_shape(written(tmp_path / "s.toml", tp=[2, 1, 2])).tp == (2, 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"model_dim 256", "not TOML"),
        (b"a = 1\na = 2", "not TOML"),
        (b"a = " + b"[" * 20000, "not TOML"),
        (b"a = " + b"9" * 5000, "not TOML"),
        (b'model = "\xff"', "byte 9 is not UTF-8; save the file as UTF-8"),
        (b"", "model_dim is missing"),
    ],
)
def test_what_is_no_toml_is_said_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ShapeError, match=said) as caught:
        load_shape(path)
    assert "\n" not in str(caught.value)


def test_an_integer_too_long_to_print_is_out_of_range(tmp_path: Path) -> None:
    path = written(tmp_path / "s.toml", experts=None)
    path.write_text(path.read_text() + "experts = 0x" + "f" * 9000)
    with pytest.raises(ShapeError, match=r"experts \(a huge number\) is out of range"):
        load_shape(path)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = written(tmp_path / "s.toml")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_shape(path).experts == 8


def test_a_folder_is_no_shape(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="is a folder; name one"):
        load_shape(tmp_path)


def test_a_link_to_itself_is_no_shape(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    with pytest.raises(ShapeError):
        load_shape(tmp_path / "loop.toml")


SCALARS = (
    st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
    | st.sampled_from(["silu", "bf16", "", "topk"])
)
JUNK = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
CHANGES = st.dictionaries(st.sampled_from(sorted(DEMO)) | st.text(max_size=8), JUNK | st.none(), max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("junk")


def loads_or_says_why(path: Path) -> None:
    try:
        assert isinstance(load_shape(path), Shape)
    except ShapeError as error:
        assert str(error).startswith(f"{path}: ")
        assert "\n" not in str(error) and len(str(error)) < 400


@settings(max_examples=300, deadline=None)
@given(changes=CHANGES)
def test_whatever_stands_in_a_shapes_fields_is_taken_or_refused_in_one_line(
    folder: Path, changes: dict[str, object]
) -> None:
    loads_or_says_why(written(folder / "s.toml", **changes))


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=64) | st.text(alphabet='a=[]{}"\n#.1-', max_size=32).map(str.encode))
def test_whatever_bytes_a_file_holds_are_refused_in_one_line(folder: Path, content: bytes) -> None:
    (folder / "b.toml").write_bytes(content)
    loads_or_says_why(folder / "b.toml")
