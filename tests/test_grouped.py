from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from moetune_kernels.grouped import TILES_M, Grouped, scales_natively, tile_capacity, tile_parts

from moetune.kernel import LOOP, kernel_names, load_kernel, rules_of
from moetune.model.config import Config
from moetune.model.format import FORMATS
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.space import enumerate_pool, exclusion
from moetune.targets import load_target

FAMILIES = ("bf16", "fp8_block", "a8w4", "a16w4", "w4a16", "w8a8_int8", "w4a8_int8")
EVERY = [name for name in kernel_names() if isinstance(load_kernel(name), Grouped)]
QWEN = Shape("qwen", 4096, 1024, 512, 10, "silu", True, tuple(FORMATS), (1, 2, 4), (1,))
BUCKETS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192]
ARCHS = ["sm_90", "gfx942", "gfx950", "gfx1250"]
H200 = load_target("sm_90")
CONFIG = Config.of(tile_m=16, tile_n=128, tile_k=128, num_buffers=2, prefetch=0, num_warps=4, group_m=1)


def problem(kernel: str, tokens: int = 8192, tp: int = 1, shape: Shape = QWEN, ep: int = 1) -> Problem:
    return Problem(shape, tp, kernel, load_kernel(kernel).format.name, tokens, Routing(), ep)


def reason(kernel: str, stage: int, on: Problem, arch: str = "sm_90", **changes: int) -> str:
    found = exclusion(load_kernel(kernel), stage, CONFIG.replace(**changes), on, load_target(arch))
    return found.reason if found else ""


def test_there_is_a_kernel_for_every_format():
    assert {load_kernel(name).format.name for name in EVERY} == set(FORMATS)
    assert [name for name in EVERY if name != load_kernel(name).format.name] == []


@pytest.mark.parametrize("kernel", FAMILIES)
class TestPool:
    def test_at_least_300_configs_a_stage_in_prefill_and_some_choice_in_every_bucket(self, kernel):
        def size(stage: int, tokens: int) -> int:
            return len(enumerate_pool(load_kernel(kernel), stage, problem(kernel, tokens), H200).configs)

        assert min(size(1, 8192), size(2, 8192)) >= 300
        assert min(size(stage, tokens) for tokens in BUCKETS for stage in (1, 2)) >= 40

    def test_the_default_is_in_it_for_every_bucket_tp_and_ep(self, kernel):
        description = load_kernel(kernel)
        left_out = []
        for tokens in BUCKETS:
            for tp, ep in ((1, 1), (2, 1), (4, 1), (1, 8)):
                for stage in (1, 2):
                    p = problem(kernel, tokens, tp, ep=ep)
                    config = description.default(stage, p, H200)
                    on_axes = all(config[axis] in values for axis, values in description.axes(stage).items())
                    if not on_axes or exclusion(description, stage, config, p, H200):
                        left_out.append((p.key, stage))
        assert left_out == []

    def test_every_value_of_every_axis_is_used(self, kernel):
        description, used = load_kernel(kernel), Counter()
        for stage in (1, 2):
            for config in enumerate_pool(description, stage, problem(kernel), H200).configs:
                used.update(dict(config).items())
        wanted = {(axis, value) for stage in (1, 2) for axis, vs in description.axes(stage).items() for value in vs}
        assert wanted - {("tile_n", 512)} <= set(used)  # 512 rows span four 128-row blocks of one scale


@pytest.mark.parametrize("kernel", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(
    model_dim=st.integers(1, 128).map(lambda n: 64 * n),
    inter_dim=st.integers(1, 128).map(lambda n: 32 * n),
    experts=st.sampled_from([8, 64, 128, 512]),
    tokens=st.integers(1, 20000),
    act=st.sampled_from(["silu", "swiglu", "gelu_tanh", "relu2"]),
    ep=st.sampled_from([1, 8]),
    arch=st.sampled_from(ARCHS),
)
def test_the_default_holds_every_constraint_wherever_the_kernel_is_supported(
    kernel, model_dim, inter_dim, experts, tokens, act, ep, arch
):
    shape = Shape("any", model_dim, inter_dim, experts, 2, act, act != "relu2", tuple(FORMATS), (1,), (1,))
    description, target = load_kernel(kernel), load_target(arch)
    if description.unsupported(shape, 1) or description.unserved(target):
        return
    exact = kernel == "a8w4" and scales_natively(arch)  # no masks: whole tiles only
    assume(not exact or (model_dim % 128 == 0 and inter_dim % 128 == 0))
    for stage in (1, 2):
        p = problem(kernel, tokens, shape=shape, ep=ep)
        config = description.default(stage, p, target)
        assert exclusion(description, stage, config, p, target) is None
        assert all(config[axis] in values for axis, values in description.axes(stage).items())


class TestDefault:
    @pytest.mark.parametrize("kernel", FAMILIES)
    def test_it_follows_the_mean_rows_of_an_expert(self, kernel):
        def chosen(tokens: int, ep: int) -> Config:
            return load_kernel(kernel).default(1, problem(kernel, tokens, ep=ep), H200)

        assert chosen(1, 1)["tile_m"] < chosen(8192, 1)["tile_m"]
        assert chosen(4096, 8) == chosen(4096, 1)  # an eighth of the rows on an eighth of the experts

    @pytest.mark.parametrize("kernel", FAMILIES)
    def test_a_legal_wish_is_kept(self, kernel):
        description = load_kernel(kernel)
        kept = 0
        for tokens in BUCKETS:
            for stage in (1, 2):
                p = problem(kernel, tokens)
                wish = Config.of(**{axis: description.wish(stage, p, H200)[axis] for axis in description.axes(stage)})
                if all(rule.check(wish, p, H200) is None for rule in rules_of(description, stage)):
                    kept += 1
                    assert description.default(stage, p, H200) == wish
        assert kept > len(BUCKETS)

    def test_it_shrinks_to_a_short_reduction(self):
        config = load_kernel("bf16").default(2, problem("bf16", 1, shape=replace(QWEN, inter_dim=96)), H200)
        assert config["tile_k"] <= 128
        assert config["num_buffers"] <= max(2, 128 // config["tile_k"])

    @pytest.mark.parametrize("kernel", FAMILIES)
    def test_no_tile_is_larger_than_what_an_expert_can_have(self, kernel):
        few = replace(QWEN, experts=2, topk=1)
        config = load_kernel(kernel).default(1, problem(kernel, 17, shape=few), H200)
        assert config["tile_m"] <= 32


class TestExclusions:
    """Each says why."""

    @pytest.mark.parametrize(
        ("kernel", "stage", "tp", "tokens", "changes", "wanted"),
        [
            ("bf16", 2, 8, 8192, {"tile_k": 256}, "tile_k 256 exceeds inter_dim 128: reads past the row"),
            (
                "bf16", 2, 4, 8192, {"num_buffers": 3},
                "num_buffers 3 exceeds the 2 K tiles: the rest stay empty",
            ),
            (
                "bf16", 1, 1, 17, {"tile_m": 64},
                "tile_m 64 only pads: an expert has at most 17 rows, which 32 holds",
            ),
            (
                "bf16", 1, 1, 256, {"tile_m": 64},
                "tile_m 64 is over four times the 5 rows of an expert: it mostly pads",
            ),
            (
                "bf16", 1, 8, 8192, {"tile_n": 512},
                "tile_n 512 exceeds the 256 weight rows of stage 1: the rest only pads",
            ),
            (
                "fp8_block", 2, 1, 8192, {"tile_n": 256},
                "tile_n 256 spans blocks of 128 weight rows, which have scales of their own",
            ),
            (
                "bf16", 1, 1, 8192, {"num_warps": 16, "tile_n": 64},
                "16 warps share a tile of 16 x 64: too little for each",
            ),
            (
                "bf16", 1, 1, 8192, {"tile_m": 192, "tile_n": 256},
                "384 of 255 registers per thread for the accumulator: they spill",
            ),
            (
                "bf16", 1, 1, 8192, {"tile_n": 256, "tile_k": 256, "num_buffers": 3},
                "shared memory 417,792 of 232,448 bytes",
            ),
        ],
    )  # fmt: skip
    def test_in_a_sentence(self, kernel, stage, tp, tokens, changes, wanted):
        assert reason(kernel, stage, problem(kernel, tokens, tp), **changes) == wanted

    def test_a_large_tile_is_allowed_where_some_experts_are_hot(self):
        hot = replace(problem("bf16", 256), routing=Routing.parse("zipf:1.2"))
        assert "mostly pads" in reason("bf16", 1, problem("bf16", 256), tile_m=64)
        assert reason("bf16", 1, hot, tile_m=64) == ""


ODD = replace(QWEN, model_dim=2880, inter_dim=2880)


class TestDimensionsThatNoTileDivides:
    @pytest.mark.parametrize("kernel", ["bf16", "a8w4", "a16w4", "w8a8_int8"])
    def test_are_padded_to_128_of_k_and_64_weight_rows(self, kernel):
        p = problem(kernel, shape=ODD)
        assert load_kernel(kernel).unsupported(ODD, 1) is None
        assert reason(kernel, 1, p) == reason(kernel, 2, p) == ""
        wanted = "tile_k 256 does not divide inter_dim 2880, nor its padding to 2944: the last tile reads past the row"
        assert reason(kernel, 2, p, tile_k=256) == wanted

    @pytest.mark.parametrize("arch", ["gfx950", "gfx1250"])
    def test_are_left_out_where_the_instruction_scales(self, arch):
        p = problem("a8w4", shape=ODD)
        assert "tile_k 128 does not divide inter_dim 2880: the last" in reason("a8w4", 2, p, arch)
        p = problem("a8w4", shape=replace(ODD, inter_dim=1024))
        wanted = "tile_n 128 does not divide model_dim 2880: the last tile reads past the weights"
        assert reason("a8w4", 2, p, arch) == wanted
        assert reason("a16w4", 2, p, arch) == ""

    @pytest.mark.parametrize("tile_m", [48, 96, 160, 192])
    def test_tiles_of_two_parts_too(self, tile_m):
        wanted = f"tile_m {tile_m} is no power of two, which scaled matrix instructions take"
        assert reason("a8w4", 1, problem("a8w4"), "gfx950", tile_m=tile_m) == wanted
        assert reason("a8w4", 1, problem("a8w4"), "sm_90", tile_m=tile_m, num_warps=8) == ""


@pytest.mark.parametrize("kernel", EVERY)
def test_targets_not_served_get_a_reason(kernel):
    description = load_kernel(kernel)
    assert [arch for arch in ARCHS if description.unserved(load_target(arch))] == []
    old = replace(H200, arch="sm_75")
    assert description.unserved(old) == f"{kernel} needs sm_{description.least_sm} or newer, not sm_75"
    other = replace(load_target("gfx942"), arch="gfx90a")
    assert "is written for sm_" in description.unserved(other)
    assert "cpu" in description.unserved(load_target("cpu"))


class TestShapes:
    @pytest.mark.parametrize("kernel", EVERY)
    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"act": "swiglu", "limit": 7.0, "alpha": 1.702, "beta": 1.0},
            {"act": "gelu_tanh"},
            {"act": "relu2", "gated": False},
            {"biases": True},
            {"topk": 1, "router_on_input": True},
        ],
        ids=lambda change: ",".join(change) or "silu",
    )
    def test_every_layer_of_a_served_model_is_supported(self, kernel, change):
        assert load_kernel(kernel).unsupported(replace(QWEN, **change), 4) is None

    @pytest.mark.parametrize("kernel", EVERY)
    def test_interleaved_gate_and_up_rows_need_scales_of_their_own(self, kernel):
        found = load_kernel(kernel).unsupported(replace(QWEN, interleaved=True), 1)
        wanted = "fp8_block: blocks of 128 weight rows cannot hold gate and up rows in turns"
        assert found == (wanted if kernel == "fp8_block" else None)

    @pytest.mark.parametrize("kernel", FAMILIES)
    def test_what_cannot_be_computed_is_said(self, kernel):
        unsupported = load_kernel(kernel).unsupported
        assert unsupported(replace(QWEN, act="situ"), 1) == f"{kernel} has no activation situ"
        assert unsupported(replace(QWEN, gated=False), 1) == f"{kernel} computes silu gated only"
        assert unsupported(replace(QWEN, act="relu2"), 1) == f"{kernel} computes relu2 ungated only"
        assert "inter_dim 16" in unsupported(replace(QWEN, inter_dim=16), 1)

    def test_groups_must_divide_k(self):
        narrow = replace(QWEN, inter_dim=96)
        assert load_kernel("w4a16").unsupported(narrow, 1) == "inter_dim 96 is no multiple of 128"
        assert load_kernel("w4a16_g32").unsupported(narrow, 1) is None


class TestLoop:
    @pytest.mark.parametrize("kernel", EVERY)
    def test_it_is_the_same_kernel_under_another_name(self, kernel):
        plain, loop = load_kernel(kernel), load_kernel(kernel + LOOP)
        assert loop.name == kernel + LOOP
        assert replace(loop, name=kernel) == plain
        assert loop.source_hash() == plain.source_hash()

    @pytest.mark.parametrize("kernel", FAMILIES)
    def test_it_shares_binaries_and_default(self, kernel):
        plain, loop, p = load_kernel(kernel), load_kernel(kernel + LOOP), problem(kernel)
        alone = replace(p, kernel=kernel + LOOP)
        for stage in (1, 2):
            assert loop.binary(stage, CONFIG, alone) == plain.binary(stage, CONFIG, p)
            assert loop.default(stage, alone, H200) == plain.default(stage, p, H200)


class TestBinary:
    @pytest.mark.parametrize("kernel", FAMILIES)
    def test_group_m_tokens_and_routing_share_one(self, kernel):
        binary, p = load_kernel(kernel).binary, problem(kernel)
        same = {
            binary(1, config, other)
            for config in (CONFIG, CONFIG.replace(group_m=8))
            for other in (p, replace(p, tokens=4096), replace(p, routing=Routing.parse("zipf:1.2")))
        }
        assert len(same) == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"act": "gelu_tanh"}, {"limit": 7.0}, {"alpha": 1.702}, {"beta": 1.0}, {"interleaved": True},
            {"biases": True}, {"router_on_input": True}, {"topk": 8}, {"experts": 8}, {"model_dim": 2880},
            {"inter_dim": 992},
        ],
        ids=lambda change: next(iter(change)),
    )  # fmt: skip
    def test_what_is_compiled_in_takes_its_own(self, change):
        binary, p = load_kernel("a16w4").binary, problem("a16w4")
        assert binary(1, CONFIG, p) != binary(1, CONFIG, replace(p, shape=replace(QWEN, **change)))

    @pytest.mark.parametrize("axis", ["tile_m", "tile_n", "tile_k", "num_buffers", "prefetch", "num_warps"])
    def test_every_other_axis_takes_its_own(self, axis):
        binary, p = load_kernel("bf16").binary, problem("bf16")
        other = next(v for v in load_kernel("bf16").axes(1)[axis] if v != CONFIG[axis])
        assert binary(1, CONFIG, p) != binary(1, CONFIG.replace(**{axis: other}), p)
        assert binary(1, CONFIG, p) != binary(2, CONFIG, p)


class TestFormats:
    def test_a_step_of_int4_rows_in_int8_is_one_group(self):
        for name in EVERY:
            if name.startswith("w4a8_int8"):
                assert load_kernel(name).axes(1)["tile_k"] == (FORMATS[name].weights.group,)

    def test_zero_points_are_read_with_the_scales(self):
        plain, zeros = (load_kernel(k).traffic(1, problem(k, 1), [1] * 10).bytes for k in ("w4a16_g32", "w4a16_g32_zp"))
        assert zeros - plain == 10 * 2048 * (4096 // 32) // 2

    def test_what_a_step_holds_in_registers_beside_the_accumulator(self):
        held = {kernel: set(load_kernel(kernel).held(CONFIG)) for kernel in FAMILIES}
        step, tile = "step's product", "widened tile"
        assert held == {
            "bf16": {"accumulator"}, "w8a8_int8": {"accumulator"}, "fp8_block": {"accumulator", step},
            "a8w4": {"accumulator", tile}, "a16w4": {"accumulator", tile}, "w4a16": {"accumulator", tile},
            "w4a8_int8": {"accumulator", step, tile},
        }  # fmt: skip

    def test_bytes_and_operations_of_qwen_at_one_token(self):
        traffic = load_kernel("bf16").traffic(1, problem("bf16", 1), [1] * 10)
        assert traffic.bytes == 10 * 2048 * 4096 * 2 + 4096 * 2 + 10 * 1024 * 2
        assert traffic.operations == 2 * 10 * 2048 * 4096
        mx = load_kernel("a8w4").traffic(2, problem("a8w4", 1), [1] * 10)
        assert mx.bytes == 10 * 4096 * (512 + 32) + 10 * (1024 + 32) + 10 * 4096 * 2
        assert mx.rate == "mxfp8_mxfp4"


def test_a_tile_is_one_power_of_two_or_two_the_larger_first():
    for tile_m in TILES_M:
        first, second = tile_parts(tile_m)
        assert first + second == tile_m
        assert first > second
        assert first.bit_count() == 1
        assert second == 0 or (second.bit_count() == 1 and second >= 16)


def test_whole_tiles_are_computed():
    assert load_kernel("bf16").computed_rows(1, CONFIG.replace(tile_m=48), [0, 1, 48, 49]) == 48 + 48 + 96


@pytest.mark.parametrize("tokens", [1, 7, 64, 3000])
@pytest.mark.parametrize("tile_m", [16, 96])
def test_tile_capacity_holds_any_routing_and_is_reached(tokens, tile_m):
    p = problem("bf16", tokens, shape=replace(QWEN, experts=4, topk=2))

    def tiles(counts: list[int]) -> int:
        return sum(-(-count // tile_m) for count in counts)

    rest = p.rows - 3
    worst = tiles([1, 1, 1, rest]) if rest > 0 else p.rows
    splits = [
        [a, b, (p.rows - a - b) // 2, p.rows - a - b - (p.rows - a - b) // 2]
        for a in range(0, p.rows, max(1, p.rows // 9))
        for b in range(0, p.rows - a, max(1, p.rows // 7))
    ]
    capacity = tile_capacity(p, tile_m)
    assert max(map(tiles, splits)) <= capacity
    assert worst <= capacity <= worst + 1


def test_a_row_pass_over_whole_rows_has_a_binary_for_each_width():
    keys = {
        kernel: {load_kernel(kernel).binary(1, CONFIG, Problem(QWEN, tp, kernel, kernel, 64)) for tp in (1, 2)}
        for kernel in ("w8a8_int8", "bf16")
    }
    assert {kernel: len(found) for kernel, found in keys.items()} == {"w8a8_int8": 2, "bf16": 1}
