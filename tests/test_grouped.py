import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moetune_kernels import grouped

from moetune.kernel import load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.space import enumerate_pool, exclusion
from moetune.targets import load_target

QWEN = Shape("qwen", 4096, 1024, 512, 10, "silu", True, ("bf16", "a8w4"), (1, 2, 4), (1,))
BUCKETS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192]
KERNELS = pytest.mark.parametrize("kernel", ["bf16", "a8w4"])


def problem(kernel: str, tokens: int = 8192, tp: int = 1, shape: Shape = QWEN) -> Problem:
    return Problem(shape, tp, kernel, kernel, tokens)


def reason(kernel: str, stage: int, tokens: int = 8192, tp: int = 1, **changes: int) -> str:
    config = Config.of(tile_m=16, tile_n=64, tile_k=64, num_buffers=2, prefetch=0, num_warps=4, group_m=1)
    found = exclusion(load_kernel(kernel), stage, config.replace(**changes), problem(kernel, tokens, tp), H200)
    return found.reason if found else ""


H200 = load_target("sm_90")


@KERNELS
class TestPool:
    def test_at_least_300_configs_a_stage_for_every_token_bucket(self, kernel):
        sizes = [
            len(enumerate_pool(load_kernel(kernel), stage, problem(kernel, tokens), H200).configs)
            for tokens in BUCKETS
            for stage in (1, 2)
        ]
        assert min(sizes) >= 300

    def test_the_default_is_in_it_for_every_bucket_and_tp(self, kernel):
        description = load_kernel(kernel)
        for tokens in BUCKETS:
            for tp in (1, 2, 4):
                for stage in (1, 2):
                    p = problem(kernel, tokens, tp)
                    assert description.default(stage, p, H200) in enumerate_pool(description, stage, p, H200)


@KERNELS
@settings(max_examples=150, deadline=None)
@given(
    model_dim=st.integers(1, 64).map(lambda n: 128 * n),
    inter_dim=st.integers(1, 128).map(lambda n: 32 * n),
    experts=st.sampled_from([2, 8, 60, 128, 512]),
    tokens=st.integers(1, 20000),
    arch=st.sampled_from(["sm_90", "gfx942", "gfx950", "gfx1250"]),
)
def test_the_default_holds_every_constraint_wherever_the_kernel_is_supported(
    kernel, model_dim, inter_dim, experts, tokens, arch
):
    shape = Shape("any", model_dim, inter_dim, experts, 2, "silu", True, ("bf16", "a8w4"), (1,), (1,))
    description, target = load_kernel(kernel), load_target(arch)
    if description.unsupported(shape, 1) or description.unserved(target):
        return
    for stage in (1, 2):
        p = problem(kernel, tokens, shape=shape)
        config = description.default(stage, p, target)
        assert exclusion(description, stage, config, p, target) is None
        assert all(config[axis] in values for axis, values in description.axes(stage).items())


class TestDefault:
    @pytest.mark.parametrize(
        ("tokens", "wanted"),
        [
            (1, "tile_m=16;tile_n=64;tile_k=128;num_buffers=4;prefetch=0;num_warps=4;group_m=1"),
            (64, "tile_m=32;tile_n=64;tile_k=128;num_buffers=3;prefetch=0;num_warps=4;group_m=1"),
            (256, "tile_m=64;tile_n=128;tile_k=64;num_buffers=3;prefetch=0;num_warps=8;group_m=1"),
            (8192, "tile_m=128;tile_n=128;tile_k=64;num_buffers=3;prefetch=0;num_warps=8;group_m=1"),
        ],
    )
    def test_bf16_is_the_published_rule_of_vllm(self, tokens, wanted):
        for stage in (1, 2):
            assert str(load_kernel("bf16").default(stage, problem("bf16", tokens), H200)) == wanted

    def test_it_shrinks_to_a_short_reduction(self):
        config = load_kernel("bf16").default(2, problem("bf16", 1, shape=replace(QWEN, inter_dim=96)), H200)
        assert (config["tile_k"], config["num_buffers"]) == (32, 3)

    def test_many_rows_per_expert_group_the_m_tiles(self):
        few = replace(QWEN, experts=16)
        assert load_kernel("bf16").default(1, problem("bf16", 8192, shape=few), H200)["group_m"] == 16


@pytest.mark.parametrize(
    ("stage", "arguments", "wanted"),
    [
        (2, dict(tp=4, tile_k=512), "tile_k 512 exceeds inter_dim 256: reads past the row"),
        (1, dict(tile_m=64, tokens=17), "tile_m 64 only pads: an expert has at most 17 rows, which 32 holds"),
        (2, dict(tp=4, tile_k=128, num_buffers=3), "num_buffers 3 exceeds the 2 K tiles: the rest stay empty"),
        (1, dict(tile_n=256, tile_k=256, num_buffers=3), "shared memory 278,528 of 232,448 bytes"),
        (1, dict(tile_m=128, tile_n=256), "256 registers per thread for the accumulator: they spill"),
    ],
)
def test_each_exclusion_says_why(stage, arguments, wanted):
    if "shared" in wanted:
        arguments |= {"tile_m": 16, "num_buffers": 3}
    assert reason("bf16", stage, **arguments) == wanted


def test_a_tile_that_does_not_divide_is_excluded():
    odd = replace(QWEN, model_dim=4160, inter_dim=96)
    p = problem("bf16", shape=odd)
    config = Config.of(tile_m=16, tile_n=128, tile_k=128, num_buffers=2, prefetch=0, num_warps=4, group_m=1)
    kernel = load_kernel("bf16")
    found = [exclusion(kernel, 1, config.replace(tile_k=k), p, H200) for k in (128, 64)]
    assert found[0].reason == "tile_k 128 does not divide model_dim 4160: the last tile reads past the row"
    assert (
        found[1].reason == "tile_n 128 does not divide the 192 gate and up rows: the last tile reads past the weights"
    )


@pytest.mark.parametrize(
    ("kernel", "served"),
    [("bf16", {"sm_90", "gfx942", "gfx950", "gfx1250"}), ("a8w4", {"sm_90", "gfx950", "gfx1250"})],
)
def test_targets_not_served_get_a_reason(kernel, served):
    reasons = {a: load_kernel(kernel).unserved(load_target(a)) for a in ("sm_90", "gfx942", "gfx950", "gfx1250", "cpu")}
    assert {arch for arch, why in reasons.items() if why is None} == served
    assert kernel != "a8w4" or "dot_scaled" in reasons["gfx942"]


@KERNELS
def test_only_gated_silu_without_biases_is_supported(kernel):
    description = load_kernel(kernel)
    assert description.unsupported(QWEN, 4) is None
    assert "ungated relu2" in description.unsupported(replace(QWEN, gated=False, act="relu2"), 1)
    assert "gated swiglu" in description.unsupported(replace(QWEN, act="swiglu", limit=7.0), 1)
    assert "biases" in description.unsupported(replace(QWEN, biases=True), 1)
    assert "inter_dim 16" in description.unsupported(replace(QWEN, inter_dim=16), 1)


@KERNELS
def test_descriptions_satisfy_the_contract_with_torch_and_triton_blocked(kernel):
    script = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'triton'))\n"
        "from moetune.kernel import load_kernel\n"
        f"k = load_kernel({kernel!r}); print(k.name, len(k.source_hash()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, [kernel, "16"]), done.stderr


def test_bytes_and_operations_of_qwen_at_one_token():
    traffic = load_kernel("bf16").traffic(1, problem("bf16", 1), 10)
    assert traffic.bytes == 10 * 2048 * 4096 * 2 + 4096 * 2 + 10 * 1024 * 2
    assert traffic.operations == 2 * 10 * 2048 * 4096
    mx = load_kernel("a8w4").traffic(2, problem("a8w4", 1), 10)
    assert mx.bytes == 10 * 4096 * (512 + 32) + 10 * (1024 + 32) + 10 * 4096 * 2
    assert mx.rate == "mxfp8_mxfp4"


@pytest.mark.parametrize("tokens", [1, 7, 64, 3000])
@pytest.mark.parametrize("tile_m", [16, 128])
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
    capacity = grouped.tile_capacity(p, tile_m)
    assert max(map(tiles, splits)) <= capacity
    assert worst <= capacity <= worst + 1


def test_the_hash_follows_the_code_and_not_its_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(grouped, "__file__", str(tmp_path / "grouped.py"))
    texts = [
        '"""One."""\n\n\ndef f():\n    """Two."""\n    return 1\n',
        "# three\ndef f():\n    return 1\n",
        "def f():\n    return 2\n",
    ]
    hashes = []
    for number, text in enumerate(texts):
        (tmp_path / f"m{number}.py").write_text(text)
        hashes.append(grouped.source_hash((f"m{number}.py",)))
    assert hashes[0] == hashes[1] != hashes[2]
