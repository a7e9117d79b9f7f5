"""The Triton kernels on a real device: what the interpreter and the compiler alone cannot show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import test_triton_quantise as quantise
import torch

from moetune.device.arena import Arena
from moetune.device.compiling import CompilePool, Job
from moetune.device.machine import Probe, target_for, usable_cores
from moetune.kernel import kernel_names, load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.model.target import Target

pytestmark = pytest.mark.gpu

SHAPE = Shape("layer", 1024, 512, 32, 4, "silu", True, (), (1,), (1,))
ODD = replace(
    SHAPE, name="odd", model_dim=1056, inter_dim=416, act="swiglu", alpha=1.702, beta=1.0, limit=0.5,
    interleaved=True, biases=True,
)  # fmt: skip
NAMES = [name for name in kernel_names() if name != "cpu"]
KERNELS = pytest.mark.parametrize("kernel", NAMES)


@dataclass(frozen=True)
class Device:
    """The device's target, and where the binaries lie that were compiled for it."""

    target: Target
    cache: Path


def problem_of(kernel: str, tokens: int, routing: str = "uniform", ep: int = 1, shape: Shape = SHAPE) -> Problem:
    return Problem(shape, 1, kernel, load_kernel(kernel).format.name, tokens, Routing.parse(routing), ep)


def configs_of(kernel: str, target: Target, shape: Shape = SHAPE) -> list[tuple[Config, Config]]:
    """Return the defaults of few rows an expert; of a plain kernel those of many as well."""
    tokens = (64,) if "_g" in kernel or "_zp" in kernel or shape is ODD else (1, 2048)
    description = load_kernel(kernel)
    problems = [problem_of(kernel, count, shape=shape) for count in tokens]
    return [tuple(description.default(stage, problem, target) for stage in (1, 2)) for problem in problems]


def serves(kernel: str, shape: Shape) -> bool:
    return load_kernel(kernel).unsupported(shape, 1) is None


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """Compile every kernel for the device, in processes that hold none."""
    if not torch.cuda.is_available():
        pytest.fail("no device: these tests run with a GPU only")
    target = target_for(Probe().devices()[0])
    folder = tmp_path_factory.mktemp("triton")
    pool = CompilePool(min(8, usable_cores()), {"TRITON_CACHE_DIR": str(folder)}, folder / "log")
    jobs = []
    for name in NAMES:
        kernel = load_kernel(name)
        for shape in filter(lambda shape: serves(name, shape), (SHAPE, ODD)):
            problem = problem_of(name, 1, shape=shape)
            for pair in configs_of(name, target, shape):
                for stage, config in zip((1, 2), pair, strict=True):
                    binary = kernel.binary(stage, config, problem)
                    jobs.append(Job(kernel.implementation, stage, config, problem, target, binary))
    try:
        compiled = [pool.result(future) for future in pool.want(jobs)]
    finally:
        pool.close()
    assert {
        f"{job.problem.key}: {c.reason}" for job, c in zip(jobs, compiled, strict=True) if c.outcome != "ok"
    } == set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        yield Device(target, folder)


def make(problem: Problem) -> tuple[Any, Arena, Any]:
    code = load_implementation(load_kernel(problem.kernel).implementation)
    arena = Arena(torch.device("cuda"), 256)
    return code, arena, code.make_operands(problem, 3, arena)


def layer(code: Any, operands: Any, pair: tuple[Config, Config]) -> None:
    code.sort(operands, *pair)
    for stage, config in zip((1, 2), pair, strict=True):
        code.launch(stage, config, operands)
    code.combine(operands)


def bytes_after(code: Any, operands: Any, pair: tuple[Config, Config]) -> list[torch.Tensor]:
    """Run the layer over poisoned outputs; return their bytes."""
    outputs = [tensor.view(torch.uint8) for stage in (1, 2, 3) for tensor in code.outputs(stage, operands)]
    for tensor in outputs:
        tensor.fill_(0xFF)
    layer(code, operands, pair)
    return [tensor.clone() for tensor in outputs]


def limits_of(kernel: str) -> dict[int, float]:
    """Return what rounding may cost: y and output to bf16, int4 weights to bf16, a code of h that falls otherwise."""
    if kernel.startswith("w4a16"):
        return {1: 4.5e-3, 2: 2.8e-3, 3: 6e-3}
    return {1: 1e-3, 2: 2.5e-3, 3: 3.5e-3} if kernel in ("bf16", "a16w4") else {1: 5e-3, 2: 3e-3, 3: 6e-3}


def check(device: Device, problem: Problem) -> None:
    """Run a layer in each config twice, and once expert by expert."""
    code, arena, operands = make(problem)
    before = arena.checksum()
    looped = replace(operands, problem=replace(problem, kernel=f"{problem.kernel}-loop"))
    for pair in configs_of(problem.kernel, device.target, problem.shape):
        first = bytes_after(code, operands, pair)
        for stage, limit in limits_of(problem.kernel).items():
            found, wanted = code.decode(stage, operands), code.reference(stage, operands)
            assert float((found - wanted).norm() / wanted.norm()) < limit, (problem.key, stage, pair)
        assert all(map(torch.equal, first, bytes_after(code, operands, pair))), (problem.key, pair)
        assert all(map(torch.equal, first, bytes_after(code, looped, pair))), (problem.key, pair)
    assert arena.damaged_guards() == []
    assert arena.checksum() == before


@KERNELS
def test_a_launch_finds_the_binary_compiled_ahead_and_compiles_nothing(kernel, device):
    def binaries() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for end in ("cubin", "hsaco") for path in device.cache.rglob(f"*.{end}")}

    compiled = binaries()
    assert compiled
    for tokens in (1, 2, 16, 100, 600):  # more than 512 tokens are sorted by other kernels
        code, _, operands = make(problem_of(kernel, tokens))
        for pair in configs_of(kernel, device.target):
            layer(code, operands, pair)
            layer(code, replace(operands, problem=replace(operands.problem, kernel=f"{kernel}-loop")), pair)
    torch.cuda.synchronize()
    assert binaries() == compiled


@KERNELS
@pytest.mark.parametrize(
    ("tokens", "routing", "ep"), [(1, "uniform", 1), (77, "hot:0.5", 1), (1500, "zipf:1.2", 1), (300, "uniform", 4)]
)
def test_a_layer_agrees_with_the_reference_and_repeats_bitwise(kernel, device, tokens, routing, ep):
    check(device, problem_of(kernel, tokens, routing, ep))


@pytest.mark.parametrize("kernel", [name for name in NAMES if serves(name, ODD)])
def test_so_does_one_of_clamped_swiglu_with_biases_and_dimensions_that_tiles_do_not_divide(kernel, device):
    check(device, problem_of(kernel, 130, shape=ODD))


@KERNELS
def test_a_captured_graph_replays_the_layer(kernel, device):
    code, _, operands = make(problem_of(kernel, 200))
    pair = configs_of(kernel, device.target)[-1]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        layer(code, operands, pair)
        wanted = operands.output.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            layer(code, operands, pair)
    torch.cuda.synchronize()
    operands.output.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(operands.output, wanted)


CASES = {name: case for name, case in quantise.CASES.items() if case[0] != "e4m3fnuz"}
"""NVIDIA GPUs have no conversion to e4m3fnuz."""


@pytest.mark.parametrize("case", CASES)
def test_the_device_quantises_as_formats_does_bit_by_bit(case, device):
    assert quantise.differences(*CASES[case], device="cuda") == []
