import dataclasses
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moetune_kernels.cpu import KERNEL

from moetune.catalog import load_shape, shape_names
from moetune.device.accuracy import calibrate, compare, default_fault, fault
from moetune.device.arena import POISON, Arena
from moetune.kernel import load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.space import enumerate_pool
from moetune.targets import load_target

CPU = load_target("cpu")
CODE = load_implementation(KERNEL.implementation)
TOY = Shape("toy", 96, 80, 6, 3, "silu", True, ("bf16",), (1,), (1, 16))
DEMO = load_shape("demo")


def problem(tokens: int, shape: Shape = TOY, tp: int = 1, routing: str = "uniform", ep: int = 1) -> Problem:
    return Problem(shape, tp, "cpu", "bf16", tokens, Routing.parse(routing), ep)


def operands(p: Problem, seed: int = 0, weights_of=None):
    arena = Arena(torch.device("cpu"), tile_rows=64)
    return arena, CODE.make_operands(p, seed, arena, weights_of=weights_of)


def bits(stage: int, o) -> torch.Tensor:
    return CODE.outputs(stage, o)[0].view(torch.uint8).clone()


def run(step: int, config1: Config, config2: Config, o) -> None:
    CODE.sort(o, config1, config2)
    if step == 3:
        CODE.combine(o)
    else:
        CODE.launch(step, (config1, config2)[step - 1], o)


def configs(p: Problem, stage: int) -> list[Config]:
    """The default, the pool's first and last, and two between."""
    pool = enumerate_pool(KERNEL, stage, p, CPU).configs
    step = max(1, len(pool) // 4)
    return [KERNEL.default(stage, p, CPU), *pool[::step], pool[-1]]


@pytest.mark.parametrize("routing", ["uniform", "balanced", "hot:0.5"])
@pytest.mark.parametrize(("tokens", "ep"), [(1, 1), (2, 1), (16, 1), (40, 1), (1, 3), (16, 2), (40, 6)])
def test_every_stage_agrees_with_the_reference_writes_all_and_nothing_else(tokens, ep, routing):
    p = problem(tokens, routing=routing, ep=ep)
    arena, o = operands(p)
    before = arena.checksum()
    for config1, config2 in zip(configs(p, 1), configs(p, 2), strict=False):
        for step in (1, 2, 3):
            for tensor in CODE.outputs(step, o):
                tensor.view(torch.uint8).fill_(POISON)
            run(step, config1, config2, o)
            found = compare(CODE.decode(step, o), CODE.reference(step, o), None)
            assert default_fault(found, KERNEL.limits) is None
            assert fault(found, calibrate([found], KERNEL.limits)) is None
            assert found.rel_l2 > 0  # bf16 outputs cannot equal the fp32 oracle
            first = bits(step, o)
            run(step, config1, config2, o)
            assert torch.equal(bits(step, o), first)
    assert arena.damaged_guards() == []
    assert arena.checksum() == before


@pytest.mark.parametrize(
    "change",
    [
        {"act": "swiglu", "alpha": 1.702, "beta": 1.0, "limit": 0.2},
        {"act": "gelu_tanh"},
        {"act": "relu2", "gated": False},
        {"model_dim": 48, "inter_dim": 208},
        {"topk": 1},
        {"topk": 1, "router_on_input": True},
        {"topk": 6},
        {"interleaved": True},
    ],
    ids=str,
)
def test_other_layers_agree_with_the_reference(change):
    p = problem(21, dataclasses.replace(TOY, **change))
    _, o = operands(p)
    for config1, config2 in zip(configs(p, 1), configs(p, 2), strict=False):
        for step in (1, 2, 3):
            run(step, config1, config2, o)
            found = compare(CODE.decode(step, o), CODE.reference(step, o), None)
            assert default_fault(found, KERNEL.limits) is None


def test_some_expert_has_no_rows_and_one_has_all_under_hot_routing():
    _, o = operands(problem(16, routing="hot:0.5"))
    counts = torch.bincount(o.ids.flatten(), minlength=TOY.experts)
    assert (counts == 0).any() and counts.max() == 16


def test_a_token_with_no_expert_here_is_zero_and_its_slots_are_not_touched():
    p = problem(40, ep=6)
    _, o = operands(p)
    o.y.fill_(7.0)
    c1, c2 = KERNEL.default(1, p, CPU), KERNEL.default(2, p, CPU)
    for step in (1, 2, 3):
        run(step, c1, c2, o)
    elsewhere = o.ids < 0
    assert elsewhere.all(1).any() and not elsewhere.all()
    assert o.y[elsewhere.flatten()].eq(7.0).all()
    assert o.output[elsewhere.all(1)].eq(0).all() and o.output[~elsewhere.all(1)].ne(0).any(1).all()
    assert sum(stop - start for tiles in o.tiles.values() for _, start, stop in tiles) == (~elsewhere).sum()


def test_a_wrong_weight_is_noticed():
    """The comparison with the reference has teeth: one tile of one expert's weights moves the worst row."""
    p = problem(16)
    _, o = operands(p)
    c1, c2 = KERNEL.default(1, p, CPU), KERNEL.default(2, p, CPU)
    reference = []
    for spoil in (False, True):
        run(1, c1, c2, o)
        if not spoil:
            reference.append(CODE.reference(1, o))
        assert (default_fault(compare(CODE.decode(1, o), reference[0], None), KERNEL.limits) is None) != spoil
        o.w1[-1, :16] = 0


def test_sorting_is_stable_and_maps_each_row_to_one_tile():
    p = problem(40)
    _, o = operands(p)
    CODE.sort(o, Config.of(tile_m=16, tile_n=64, tile_k=16), Config.of(tile_m=64, tile_n=64, tile_k=16))
    by_expert = sorted(range(p.rows), key=lambda slot: (int(o.ids.flatten()[slot]), slot))
    assert o.order.tolist() == by_expert
    assert set(o.tiles) == {16, 64}
    for tile_m, tiles in o.tiles.items():
        covered = [row for _, start, stop in tiles for row in range(start, stop)]
        assert covered == list(range(p.rows))
        for expert, start, stop in tiles:
            assert 0 < stop - start <= tile_m
            assert {int(o.ids.flatten()[slot]) for slot in o.order[start:stop]} == {expert}


def test_a_seed_draws_the_same_and_another_shares_only_the_weights():
    _, first = operands(problem(16), seed=3)
    _, again = operands(problem(16), seed=3)
    arena, other = operands(problem(9), seed=4, weights_of=first)
    for name in ("x", "ids", "router", "w1", "w2"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert other.w1 is first.w1 and other.w2 is first.w2
    assert other.x.shape == (9, TOY.model_dim)
    assert not torch.equal(other.x, first.x[:9])
    torch.testing.assert_close(other.router.sum(1), torch.ones(9))
    run(1, *[KERNEL.default(s, other.problem, CPU) for s in (1, 2)], other)
    assert arena.damaged_guards() == []


def test_bf16_needs_no_quantising_and_nothing_is_compiled():
    p = problem(2)
    assert CODE.quantise(operands(p)[1]) is False
    config = KERNEL.default(1, p, CPU)
    assert CODE.compile(1, config, p, CPU).shared_bytes == 0
    assert not KERNEL.compiles_ahead


@settings(deadline=None, max_examples=80)
@given(
    model=st.integers(1, 300), inter=st.integers(1, 300), experts=st.integers(1, 64), tokens=st.integers(1, 5000),
    topk=st.integers(1, 8), gated=st.booleans(), stage=st.sampled_from([1, 2]),
)  # fmt: skip
def test_the_default_is_always_in_the_pool(model, inter, experts, tokens, topk, gated, stage):
    shape = dataclasses.replace(
        TOY, model_dim=16 * model, inter_dim=16 * inter, experts=experts, topk=min(topk, experts), gated=gated
    )
    p = problem(tokens, shape)
    assert KERNEL.unsupported(shape, 1) is None
    assert KERNEL.default(stage, p, CPU) in enumerate_pool(KERNEL, stage, p, CPU)


def test_the_default_is_in_the_pool_of_every_shape_served():
    served = 0
    for shape in map(load_shape, shape_names()):
        for tp in shape.tp:
            if KERNEL.unsupported(shape, tp) is None:
                for tokens in shape.tokens:
                    p = problem(tokens, shape, tp)
                    assert all(KERNEL.default(s, p, CPU) in enumerate_pool(KERNEL, s, p, CPU) for s in (1, 2))
                    served += 1
    assert served > 100


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("stage", [1, 2])
def test_demos_largest_pool_is_neither_trivial_nor_endless(stage, tp):
    pool = enumerate_pool(KERNEL, stage, problem(max(DEMO.tokens), DEMO, tp), CPU)
    assert 24 <= len(pool.configs) <= 60
    assert len(pool.configs) + len(pool.exclusions) == 60


@pytest.mark.parametrize(
    ("stage", "config", "tokens", "constraint", "reason"),
    [
        (1, (32, 64, 32), 16, "tile_m beyond tokens", "exceeds the 16 rows an expert can get"),
        (2, (16, 256, 16), 16, "tile_n beyond N", "tile_n 256 exceeds the 96 weight rows of stage 2"),
        (1, (16, 64, 128), 16, "tile_k exceeds K", "tile_k 128 exceeds model_dim 96: reads past the row"),
        (2, (16, 64, 128), 16, "tile_k exceeds K", "tile_k 128 exceeds inter_dim 80: reads past the row"),
        (2, (16, 64, 32), 16, "tile_k does not divide K", "tile_k 32 does not divide inter_dim 80"),
        (1, (16, 64, 16), 16, "tile_k too short", "32 divides model_dim 96"),
    ],
)  # fmt: skip
def test_a_config_is_left_out_for_a_reason(stage, config, tokens, constraint, reason):
    named = Config.of(tile_m=config[0], tile_n=config[1], tile_k=config[2])
    pool = enumerate_pool(KERNEL, stage, problem(tokens), CPU)
    (found,) = (e for e in pool.exclusions if e.config == named)
    assert found.constraint == constraint
    assert reason in found.reason


def test_it_serves_the_cpu_only_and_says_what_it_cannot_compute():
    assert KERNEL.unserved(CPU) is None
    assert "sm_90" in KERNEL.unserved(load_target("h200"))
    assert "situ" in KERNEL.unsupported(dataclasses.replace(TOY, act="situ"), 1)
    assert "biases" in KERNEL.unsupported(dataclasses.replace(TOY, biases=True), 1)
    assert "multiple of 16" in KERNEL.unsupported(TOY, 2)


def test_traffic_counts_weights_of_active_experts_input_and_output_once():
    p = problem(4)
    first, second = (KERNEL.traffic(stage, p, [4, 0, 3, 2, 2, 1]) for stage in (1, 2))
    assert first.bytes == 2 * (5 * 160 * 96 + 4 * 96 + 12 * 80)
    assert second.bytes == 2 * (5 * 96 * 80 + 12 * 80 + 12 * 96)
    assert first.operations == 2 * 12 * 160 * 96
    assert second.operations == 2 * 12 * 96 * 80


def test_it_is_found_by_its_entry_point_and_its_description_loads_without_torch():
    assert load_kernel("cpu") is KERNEL
    assert len(KERNEL.source_hash()) == 16
    code = (
        "import sys; sys.modules.update(torch=None, triton=None, numpy=None)\n"
        "from moetune.kernel import load_kernel\n"
        "print(load_kernel('cpu').source_hash())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == KERNEL.source_hash()


def test_small_tiles_take_at_least_one_and_a_half_times_as_long_as_large_ones():
    """At demo's largest bucket; the ratio is about ten, so that a loaded machine does not matter."""
    p = problem(max(DEMO.tokens), DEMO)
    _, o = operands(p)
    for stage in (1, 2):
        pool = enumerate_pool(KERNEL, stage, p, CPU).configs
        CODE.sort(o, pool[0], pool[-1])
        least = []
        for config in (pool[0], pool[-1]):
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                CODE.launch(stage, config, o)
                times.append(time.perf_counter() - begun)
            least.append(min(times))
        assert least[0] > 1.5 * least[1]
