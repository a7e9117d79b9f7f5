"""Other ways to compute the layer agree with the kernel they stand beside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from moetune_kernels.torch_cpu import CpuOperands, TorchCpu
from moetune_kernels.triton_rivals import grouped_mm

from moetune.catalog import load_shape
from moetune.device.accuracy import compare, fault
from moetune.device.answers import Rival
from moetune.device.arena import Arena
from moetune.device.checking import check_layer
from moetune.device.loaded import Loaded, load
from moetune.kernel import LAYER, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem

CPU = load_kernel("cpu")
CONFIGS = (Config.of(tile_m=16, tile_n=128, tile_k=64),) * 2


def _problem(tokens: int) -> Problem:
    return Problem(load_shape("demo"), 1, "cpu", "bf16", tokens)


def _loaded(code: TorchCpu, tokens: int = 16) -> Loaded:
    return load(CPU, code, torch.device("cpu"), _problem(tokens), 0, 64, CONFIGS)


@pytest.mark.parametrize("tokens", [1, 40])
def test_torchs_grouped_matmul_computes_the_layer(tokens: int) -> None:
    code = TorchCpu()
    o: CpuOperands = code.make_operands(_problem(tokens), 0, Arena(torch.device("cpu"), 64))
    code.sort(o)
    offsets = torch.zeros(o.problem.experts + 1, dtype=torch.int32)
    offsets[1:] = torch.bincount(o.ids.flatten(), minlength=o.problem.experts).cumsum(0)
    names = ("x", "w1", "w2", "router", "h", "y", "output")
    tensors = {name: getattr(o, name) for name in names} | {"order": o.order.int(), "offsets": offsets}
    operands: Any = SimpleNamespace(problem=o.problem, tensors=tensors, output=o.output)
    o.output.fill_(float("nan"))
    grouped_mm(operands)
    assert fault(compare(o.output.float(), code.reference(LAYER, o), None), CPU.limits.caps) is None
    first = o.output.clone()
    grouped_mm(operands)
    assert torch.equal(o.output, first)


def test_the_cpus_loop_over_experts_computes_the_layer_and_spoils_nothing_after_it() -> None:
    loaded = _loaded(TorchCpu(), 40)
    assert list(loaded.rivals(CONFIGS)) == ["per-expert loop"]
    accuracy, wrong = check_layer(loaded, Rival("per-expert loop", CONFIGS))
    assert not wrong and 0 < accuracy.rel_l2 < CPU.limits.cap
    assert check_layer(loaded, CONFIGS)[1] == ""


def test_rivals_are_made_once_for_a_pair_so_that_they_keep_their_memory() -> None:
    made = []

    class Counting(TorchCpu):
        def rivals(self, operands: CpuOperands, configs: Any) -> Any:
            made.append(configs)
            return super().rivals(operands, configs)

    loaded = _loaded(Counting())
    for _ in range(2):
        loaded.layer(Rival("per-expert loop", CONFIGS))
    assert made == [{1: CONFIGS[0], 2: CONFIGS[1]}]


def test_a_kernel_without_the_method_has_no_rivals() -> None:
    class Without(TorchCpu):
        rivals = None  # type: ignore[assignment]

    assert dict(_loaded(Without()).rivals(CONFIGS)) == {}


def test_a_rival_is_held_to_the_caps_where_a_config_is_held_to_the_defaults_output() -> None:
    class Rounds(TorchCpu):
        def combine(self, operands: CpuOperands) -> None:
            super().combine(operands)
            if self.rounds:
                operands.output *= 1.0078125  # one step of bf16 above the default's: 0.0078

        rounds = False

    code = Rounds()
    loaded = _loaded(code)
    code.rounds = True
    assert "rel_l2" in check_layer(loaded, Rival("per-expert loop", CONFIGS))[1]
    loaded.kernel = _with_cap(0.02)
    assert check_layer(loaded, Rival("per-expert loop", CONFIGS))[1] == ""
    assert "rel_l2" in check_layer(loaded, CONFIGS)[1]


def _with_cap(cap: float) -> Any:
    from moetune_kernels.cpu import CpuKernel

    from moetune.kernel import Limits

    class Loose(CpuKernel):
        limits = Limits(floor=1e-3, cap=cap)

    return Loose()
