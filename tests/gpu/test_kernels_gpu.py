"""The Triton kernels on a real device: what the interpreter and the compiler alone cannot show."""

from pathlib import Path

import pytest

from moetune.kernel import load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.targets import load_target

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

SHAPE = Shape("layer", 1024, 512, 32, 4, "silu", True, ("bf16", "a8w4"), (1,), (1,))
KERNELS = pytest.mark.parametrize("kernel", ["bf16", "a8w4"])
CONFIGS = [
    dict(tile_m=16, tile_n=64, tile_k=128, num_buffers=4, prefetch=0, num_warps=4, group_m=1),
    dict(tile_m=32, tile_n=128, tile_k=64, num_buffers=3, prefetch=1, num_warps=8, group_m=8),
    dict(tile_m=64, tile_n=128, tile_k=64, num_buffers=3, prefetch=0, num_warps=4, group_m=8),
    dict(tile_m=128, tile_n=128, tile_k=64, num_buffers=3, prefetch=0, num_warps=8, group_m=16),
    dict(tile_m=128, tile_n=64, tile_k=64, num_buffers=4, prefetch=1, num_warps=8, group_m=1),
]
LIMITS = {1: 1e-3, 2: 2.5e-3, 3: 3.5e-3}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    if not torch.cuda.is_available():
        pytest.fail("no device: these tests run with a GPU only")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def make(kernel: str, tokens: int, routing: str = "uniform"):
    from moetune.device.arena import Arena

    implementation = load_implementation(load_kernel(kernel).implementation)
    arena = Arena(torch.device("cuda"), 128)
    problem = Problem(SHAPE, 1, kernel, kernel, tokens, Routing.parse(routing))
    return implementation, arena, implementation.make_operands(problem, 3, arena)


def layer(implementation, operands, config: Config) -> None:
    implementation.sort(operands, config)
    implementation.launch(1, config, operands)
    implementation.launch(2, config, operands)
    implementation.combine(operands)


@KERNELS
@pytest.mark.parametrize(("tokens", "routing"), [(1, "uniform"), (77, "hot:0.5"), (1500, "zipf:1.2")])
def test_every_config_agrees_with_the_reference_and_repeats_bitwise(kernel, tokens, routing):
    implementation, arena, operands = make(kernel, tokens, routing)
    before = arena.checksum()
    for axes in CONFIGS:
        config = Config.of(**axes)
        runs = []
        for _ in range(2):
            for stage in (1, 2, 3):
                for tensor in implementation.outputs(stage, operands):
                    tensor.view(torch.uint8).fill_(0xFF)
            layer(implementation, operands, config)
            runs.append([t.view(torch.uint8).clone() for s in (1, 2, 3) for t in implementation.outputs(s, operands)])
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
        for stage, limit in LIMITS.items():
            found, wanted = implementation.decode(stage, operands), implementation.reference(stage, operands)
            assert float((found - wanted).norm() / wanted.norm()) < limit, (stage, axes)
    assert arena.damaged_guards() == []
    assert arena.checksum() == before


@KERNELS
def test_a_launch_finds_the_binary_compiled_ahead_and_compiles_nothing(kernel, cache):
    target = load_target("sm_90")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("compiled for sm_90")
    implementation = load_implementation(load_kernel(kernel).implementation)
    config = Config.of(**CONFIGS[0])
    for stage in (1, 2):
        implementation.compile(stage, config, Problem(SHAPE, 1, kernel, kernel, 1), target)
    entries = {path: path.stat().st_mtime_ns for path in Path(cache).rglob("*.cubin")}
    for tokens in (1, 2, 16, 64, 100):
        other, _, operands = make(kernel, tokens)
        layer(other, operands, config)
    torch.cuda.synchronize()
    assert {path: path.stat().st_mtime_ns for path in Path(cache).rglob("*.cubin")} == entries


@KERNELS
def test_a_captured_graph_replays_the_layer(kernel):
    implementation, _, operands = make(kernel, 200)
    config = Config.of(**CONFIGS[2])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layer(implementation, operands, config)
        wanted = operands.output.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            layer(implementation, operands, config)
    operands.output.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(operands.output, wanted)


def test_the_device_quantises_as_formats_does_bit_by_bit():
    from moetune_kernels import formats

    implementation, _, operands = make("a8w4", 64)
    x = operands.tensors["x"]
    x[0] = 0.0
    x[1] *= 1e-38
    x[2] = 500.0
    x[3, 0] = float("nan")
    x[3, 40] = float("inf")
    x[4] = torch.linspace(-448, 448, x.shape[1])
    x[5] = torch.linspace(-2e-2, 2e-2, x.shape[1])
    x[5, ::32] = 1.9
    x[6] = 3e38
    implementation.quantise(operands)
    codes, scales = formats.quantise_mxfp8(x)
    nan = codes.float().isnan()
    found = operands.tensors["codes"]
    assert torch.equal(found.float().isnan(), nan)
    assert torch.equal(found.view(torch.uint8)[~nan], codes.view(torch.uint8)[~nan])
    assert torch.equal(operands.tensors["scales"], scales)
