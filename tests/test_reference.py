import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moetune_kernels import reference

from moetune.model.problem import Problem
from moetune.model.shape import Shape

EXPERTS, MODEL, INTER = 4, 8, 6
HERE = torch.tensor([[3, 0], [0, 1], [3, 1], [1, 3], [0, 3]], dtype=torch.int32)
PARTLY = torch.tensor([[3, -1], [-1, -1], [-1, 1], [1, 3], [0, -1]], dtype=torch.int32)
"""Expert 2 has no rows; in the second also token 1 has no expert here."""


def problem(act="silu", gated=True, tokens=5, topk=2, ep=1, **changes) -> Problem:
    shape = Shape("toy", MODEL, INTER, EXPERTS * ep, topk, act, gated, ("bf16",), (1,), (tokens,), **changes)
    return Problem(shape, 1, "cpu", "bf16", tokens, ep=ep)


def operands(p: Problem, ids: torch.Tensor | None = None):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(p.tokens, MODEL, generator=g)
    w1 = torch.randn(EXPERTS, p.n(1), MODEL, generator=g)
    w2 = torch.randn(EXPERTS, MODEL, INTER, generator=g)
    router = torch.rand(p.tokens, p.topk, generator=g)
    ids = HERE[: p.tokens, : p.topk] if ids is None else ids
    order, _ = reference.sorted_slots(ids, p.experts)
    return x, w1, w2, ids, order, router


def biases(p: Problem) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    g = torch.Generator().manual_seed(2)
    both = torch.randn(EXPERTS, p.n(1), generator=g), torch.randn(EXPERTS, MODEL, generator=g)
    return both if p.shape.biases else (None, None)


def scalar(p: Problem, gate: float, up: float) -> float:
    s = p.shape
    if s.limit and s.act in ("silu", "swiglu"):
        gate, up = min(gate, s.limit), max(-s.limit, min(up, s.limit))
    if s.act == "silu":
        return gate / (1 + math.exp(-gate)) * up
    if s.act == "swiglu":
        return gate / (1 + math.exp(-s.alpha * gate)) * (up + s.beta)
    if s.act == "gelu_tanh":
        return 0.5 * gate * (1 + math.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up
    return max(gate, 0.0) ** 2 * up


def layer_by_token(p: Problem, x, w1, w2, ids, router, b1=None, b2=None) -> torch.Tensor:
    """The layer as its definition reads, one token, slot and column at a time, in float64."""
    s = p.shape
    out = torch.zeros(p.tokens, MODEL, dtype=torch.float64)
    for t in range(p.tokens):
        for k in range(p.topk):
            e, share = int(ids[t, k]), float(router[t, k])
            if e < 0:
                continue
            y = w1[e].double() @ x[t].double() * (share if s.router_on_input else 1.0)
            if b1 is not None:
                y += b1[e].double()
            h = torch.empty(INTER, dtype=torch.float64)
            for j in range(INTER):
                gate, up = (2 * j, 2 * j + 1) if s.interleaved and s.gated else (j, INTER + j)
                h[j] = scalar(p, float(y[gate]), float(y[up]) if s.gated else 1.0)
            routed = w2[e].double() @ h
            if b2 is not None:
                routed += b2[e].double()
            out[t] += routed if s.router_on_input else share * routed
    return out


@pytest.mark.parametrize("ids", [HERE, PARTLY], ids=["all experts here", "some elsewhere"])
@pytest.mark.parametrize(
    ("act", "gated", "changes"),
    [
        ("silu", True, {}),
        ("silu", True, {"limit": 0.5}),
        ("silu", False, {}),
        ("silu", True, {"interleaved": True}),
        ("silu", True, {"biases": True}),
        ("silu", True, {"router_on_input": True}),
        ("silu", True, {"router_on_input": True, "biases": True}),
        ("swiglu", True, {"alpha": 1.702, "beta": 1.0, "limit": 0.7}),
        ("swiglu", True, {"alpha": 1.702, "beta": 1.0, "limit": 0.7, "interleaved": True, "biases": True}),
        ("gelu_tanh", True, {}),
        ("gelu_tanh", True, {"interleaved": True}),
        ("relu2", False, {}),
        ("relu2", False, {"biases": True, "interleaved": True}),
    ],
    ids=str,
)
def test_the_layer_is_what_its_definition_says(act, gated, changes, ids):
    p = problem(act, gated, topk=1 if changes.get("router_on_input") else 2, ep=1 if ids is HERE else 2, **changes)
    x, w1, w2, ids, order, router = operands(p, ids[:, : p.topk])
    b1, b2 = biases(p)
    out = reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p, bias1=b1, bias2=b2)
    wanted = layer_by_token(p, x, w1, w2, ids, router, b1, b2)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


def test_an_interleaved_layer_is_the_concatenated_one_with_its_rows_in_turns():
    plain, turns = problem(biases=True), problem(biases=True, interleaved=True)
    x, w1, _, ids, order, _ = operands(plain)
    b1, _ = biases(plain)
    row = torch.stack([torch.arange(INTER), torch.arange(INTER) + INTER], 1).flatten()
    wanted = reference.stage1(x, w1.__getitem__, ids, order, plain, bias=b1)
    found = reference.stage1(x, w1[:, row].__getitem__, ids, order, turns, bias=b1[:, row])
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(reference.stage1(x, w1.__getitem__, ids, order, turns, bias=b1), wanted)


def test_a_router_weight_on_the_input_is_one_on_the_product_before_the_activation():
    p = problem(router_on_input=True, topk=1)
    x, w1, w2, ids, order, router = operands(p)
    h = reference.stage1(x, w1.__getitem__, ids, order, p, router)
    y = reference.stage2(h, w2.__getitem__, ids, order, router, p)
    for row, slot in enumerate(order.tolist()):
        e = int(ids[slot, 0])
        wanted = reference.activate((x[slot : slot + 1] @ w1[e].T) * router[slot], p.shape)
        torch.testing.assert_close(h[row : row + 1], wanted)
        torch.testing.assert_close(y[slot], w2[e] @ wanted[0])
    with pytest.raises(ValueError, match="stage 1 of toy needs router"):
        reference.stage1(x, w1.__getitem__, ids, order, p)


def test_the_operands_are_left_as_they_are():
    p = problem(router_on_input=True, topk=1, biases=True, tokens=1)
    x, w1, w2, ids, order, router = operands(p)
    kept = (x, w1, w2, router, *biases(p))
    before = [t.clone() for t in kept]
    reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p, None, *kept[4:])
    assert all(torch.equal(a, b) for a, b in zip(kept, before, strict=True))


class TestExpertsElsewhere:
    def test_their_slots_come_last_and_count_for_nobody(self):
        order, counts = reference.sorted_slots(PARTLY, EXPERTS)
        assert order.tolist() == [8, 5, 6, 0, 7, 1, 2, 3, 4, 9]
        assert (order.dtype, counts.tolist()) == (torch.int64, [1, 2, 0, 2])

    def test_stage_1_is_zero_beyond_the_rows_that_are_here_and_stage_2_in_their_slots(self):
        p = problem(ep=2, biases=True)
        x, w1, w2, ids, order, router = operands(p, PARTLY)
        b1, b2 = biases(p)
        h = reference.stage1(x, w1.__getitem__, ids, order, p, router, b1)
        h_poisoned = h.clone()
        h_poisoned[5:] = math.nan  # what a kernel leaves there is nobody's business
        y = reference.stage2(h_poisoned, w2.__getitem__, ids, order, router, p, b2)
        assert (h.shape, y.shape) == ((10, INTER), (10, MODEL))
        assert h[:5].ne(0).any(1).all() and h[5:].eq(0).all()
        elsewhere = ids.flatten() < 0
        assert y[~elsewhere].ne(0).any(1).all() and y[elsewhere].eq(0).all()

    def test_a_token_with_none_here_is_zero(self):
        p = problem(ep=2)
        x, w1, w2, ids, order, router = operands(p, PARTLY)
        out = reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p)
        assert out[1].eq(0).all() and out[[0, 2, 3, 4]].ne(0).any(1).all()

    def test_none_at_all_may_be_here(self):
        p = problem(ep=2)
        x, w1, w2, ids, order, router = operands(p, torch.full((5, 2), -1, dtype=torch.int32))
        assert order.tolist() == list(range(10))
        assert reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p).eq(0).all()

    @settings(deadline=None, max_examples=60)
    @given(st.lists(st.integers(-1, 5), min_size=1, max_size=60))
    def test_sorting_is_stable_whatever_the_routing(self, values):
        ids = torch.tensor(values, dtype=torch.int32).view(-1, 1)
        order, counts = reference.sorted_slots(ids, 6)
        by_expert = [[slot for slot, e in enumerate(values) if e == expert] for expert in (*range(6), -1)]
        assert order.tolist() == [slot for slots in by_expert for slot in slots]
        assert counts.tolist() == [len(slots) for slots in by_expert[:6]]

    def test_ranks_add_up_to_the_layer(self):
        """Each rank of two holds two of four experts."""
        p, half = problem(), problem(ep=2)
        x, w1, w2, ids, order, router = operands(p)
        whole = reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p)
        parts = torch.zeros_like(whole)
        for rank in range(2):
            mine = torch.where(ids // 2 == rank, ids % 2, -1)
            local, _ = reference.sorted_slots(mine, 2)
            a, b = w1[2 * rank :], w2[2 * rank :]
            parts += reference.layer(x, a.__getitem__, b.__getitem__, mine, local, router, half)
        torch.testing.assert_close(parts, whole)


def test_an_id_beyond_the_experts_is_refused():
    with pytest.raises(ValueError, match="expert id 4 in ids is none of the 4 experts here"):
        reference.sorted_slots(torch.tensor([[0, 4]]), 4)


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="situ"):
        reference.activate(torch.zeros(1, 4), problem("situ").shape)


def test_stage_1_is_in_sorted_rows_and_stage_2_in_slots():
    p = problem()
    x, w1, w2, ids, order, router = operands(p)
    h = reference.stage1(x, w1.__getitem__, ids, order, p)
    y = reference.stage2(h, w2.__getitem__, ids, order, router, p)
    assert (h.shape, y.shape) == ((p.rows, INTER), (p.rows, MODEL))
    for row, slot in enumerate(order.tolist()):
        t, k = divmod(slot, p.topk)
        e = int(ids[t, k])
        wanted = reference.activate(x[t : t + 1] @ w1[e].T, p.shape)
        torch.testing.assert_close(h[row : row + 1], wanted)
        torch.testing.assert_close(y[slot], router[t, k] * (w2[e] @ wanted[0]))


def test_only_experts_with_rows_are_fetched_and_each_once():
    p = problem()
    x, w1, _, ids, order, _ = operands(p)
    fetched = []

    def weight(expert):
        fetched.append(expert)
        return w1[expert]

    reference.stage1(x, weight, ids, order, p)
    assert fetched == [0, 1, 3]  # expert 2 has no rows


def test_combine_adds_the_slots_first_to_last():
    shape = Shape("toy", 1, INTER, EXPERTS, 3, "silu", True, ("bf16",), (1,), (1,))
    p = Problem(shape, 1, "cpu", "bf16", 1)
    assert reference.combine(torch.tensor([[1e8], [-1e8], [1.0]]), p).item() == 1.0
    assert reference.combine(torch.tensor([[1.0], [1e8], [-1e8]]), p).item() == 0.0


def test_requantisation_acts_on_the_intermediate():
    p = problem()
    x, w1, w2, ids, order, router = operands(p)
    weights = (w1.__getitem__, w2.__getitem__, ids, order, router, p)
    rounded = reference.layer(x, *weights, requantise=lambda h: h.bfloat16().float())
    h = reference.stage1(x, w1.__getitem__, ids, order, p).bfloat16().float()
    assert torch.equal(rounded, reference.combine(reference.stage2(h, *weights[1:]), p))
    assert not torch.equal(rounded, reference.layer(x, *weights))


def test_products_are_in_full_fp32_and_the_setting_is_put_back():
    before = torch.get_float32_matmul_precision()
    p = problem()
    x, w1, _, ids, order, _ = operands(p)
    seen = []

    def weight(expert):
        seen.append(torch.get_float32_matmul_precision())
        return w1[expert]

    torch.set_float32_matmul_precision("medium")
    try:
        reference.stage1(x, weight, ids, order, p)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}


def test_int8_operands_multiply_exactly_enough():
    """Dequantised int8 operands in fp32 against the same sums in int64: the oracle of the integer kernels."""
    g = torch.Generator().manual_seed(3)
    p = Problem(Shape("long", 64, 4096, 1, 1, "silu", True, ("w8a8_int8",), (1,), (48,)), 1, "any", "w8a8_int8", 48)
    h, w = (torch.randint(-127, 128, (rows, 4096), generator=g) for rows in (48, 64))
    sh, sw = (torch.rand(rows, 1, generator=g) * 1e-2 + 1e-4 for rows in (48, 64))
    ids, router = torch.zeros(48, 1, dtype=torch.int32), torch.ones(48, 1)
    order, _ = reference.sorted_slots(ids, 1)
    y = reference.stage2(h.float() * sh, lambda _: w.float() * sw, ids, order, router, p)
    exact = (h @ w.T).double() * sh.double() * sw.double().T
    assert ((y - exact).norm() / exact.norm()).item() < 1e-6


@pytest.mark.gpu
def test_a_gpu_agrees_to_fp32():
    p = problem()
    x, w1, w2, ids, order, router = operands(p)
    here = reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p)
    x, w1, w2, ids, order, router = (t.cuda() for t in (x, w1, w2, ids, order, router))
    there = reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)
