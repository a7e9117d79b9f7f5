import math

import pytest
import torch
from moetune_kernels import reference

from moetune.model.problem import Problem
from moetune.model.shape import Shape

EXPERTS, TOPK, MODEL, INTER = 4, 2, 8, 6


def problem(act="silu", gated=True, tokens=5, **constants) -> Problem:
    shape = Shape("toy", MODEL, INTER, EXPERTS, TOPK, act, gated, ("bf16",), (1,), (tokens,), **constants)
    return Problem(shape, 1, "cpu", "bf16", tokens)


def operands(p: Problem, ids: torch.Tensor | None = None):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(p.tokens, MODEL, generator=g)
    w1 = torch.randn(EXPERTS, p.n(1), MODEL, generator=g)
    w2 = torch.randn(EXPERTS, MODEL, INTER, generator=g)
    router = torch.rand(p.tokens, TOPK, generator=g)
    if ids is None:
        ids = torch.tensor([[3, 0], [0, 1], [3, 1], [1, 3], [0, 3]], dtype=torch.int32)[: p.tokens]
    order = torch.argsort(ids.flatten(), stable=True)
    return x, w1, w2, ids, order, router


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


def layer_by_token(p: Problem, x, w1, w2, ids, router) -> torch.Tensor:
    """The layer as its definition reads, one token and slot at a time, in float64."""
    out = torch.zeros(p.tokens, MODEL, dtype=torch.float64)
    for t in range(p.tokens):
        for k in range(TOPK):
            e = int(ids[t, k])
            y = (w1[e].double() @ x[t].double()).tolist()
            up = y[INTER:] if p.shape.gated else [1.0] * INTER
            h = torch.tensor([scalar(p, a, b) for a, b in zip(y[:INTER], up, strict=True)])
            out[t] += float(router[t, k]) * (w2[e].double() @ h.double())
    return out


@pytest.mark.parametrize(
    ("act", "gated", "constants"),
    [
        ("silu", True, {}),
        ("silu", True, {"limit": 0.5}),
        ("silu", False, {}),
        ("swiglu", True, {"alpha": 1.702, "beta": 1.0, "limit": 0.7}),
        ("gelu_tanh", True, {}),
        ("relu2", False, {}),
    ],
)
def test_the_layer_is_what_its_definition_says(act, gated, constants):
    p = problem(act, gated, **constants)
    x, w1, w2, ids, order, router = operands(p)
    out = reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p)
    torch.testing.assert_close(out.double(), layer_by_token(p, x, w1, w2, ids, router), rtol=1e-5, atol=1e-5)


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
        t, k = divmod(slot, TOPK)
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


@pytest.mark.gpu
def test_a_gpu_agrees_to_fp32():
    p = problem()
    x, w1, w2, ids, order, router = operands(p)
    here = reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p)
    x, w1, w2, ids, order, router = (t.cuda() for t in (x, w1, w2, ids, order, router))
    there = reference.layer(x, w1.__getitem__, w2.__getitem__, ids, order, router, p)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)
