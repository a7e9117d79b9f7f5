import re

import pytest

from moetune.kernel import load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.targets import load_target

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

SHAPE = Shape("layer", 4096, 1024, 512, 10, "silu", True, ("bf16", "a8w4"), (1, 4), (1,))
SMALL = Shape("small", 256, 128, 6, 2, "silu", True, ("bf16", "a8w4"), (1,), (1,))
CONFIG = Config.of(tile_m=64, tile_n=64, tile_k=128, num_buffers=2, prefetch=0, num_warps=4, group_m=1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def implementation(kernel: str):
    return load_implementation(load_kernel(kernel).implementation)


def problem(kernel: str, tokens: int = 8192, tp: int = 1) -> Problem:
    return Problem(SHAPE, tp, kernel, kernel, tokens)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "arch", "instruction"),
    [
        ("bf16", "sm_90", r"wgmma\.mma_async\.\S+\.f32\.bf16\.bf16"),
        ("bf16", "gfx950", r"v_mfma_f32_\w+_bf16"),
        ("bf16", "gfx1250", r"v_wmma_f32_\w+_bf16"),
        ("a8w4", "sm_90", r"wgmma\.mma_async\.\S+\.f32\.bf16\.bf16"),
        ("a8w4", "gfx950", r"v_mfma_scale_f32_\w+_f8f6f4"),
        ("a8w4", "gfx1250", r"v_wmma_scale_f32_\w+_f8f6f4"),
    ],
)
def test_the_matrix_instruction_of_each_target_is_emitted(kernel, arch, instruction, stage):
    text = implementation(kernel).isa(stage, CONFIG, problem(kernel), load_target(arch))
    assert re.search(instruction, text)


@pytest.mark.parametrize("kernel", ["bf16", "a8w4"])
@pytest.mark.parametrize("change", [{"prefetch": 1}, {"num_buffers": 3}], ids=["prefetch", "num_buffers"])
@pytest.mark.parametrize("stage", [1, 2])
def test_an_axis_of_the_pipeline_changes_the_code(kernel, change, stage):
    code = implementation(kernel)
    texts = [code.isa(stage, c, problem(kernel), load_target("sm_90")) for c in (CONFIG, CONFIG.replace(**change))]
    assert body(texts[0]) != body(texts[1])


def body(ptx: str) -> list[str]:
    """Return the instructions, without comments and line tables."""
    return [line for line in map(str.strip, ptx.splitlines()) if line and not line.startswith(("//", "."))]


@pytest.mark.parametrize("kernel", ["bf16", "a8w4"])
def test_one_binary_serves_every_group_m_token_bucket_and_tp(kernel, cache):
    code, target = implementation(kernel), load_target("sm_90")
    first = code.compile(1, CONFIG, problem(kernel, 8192), target)
    entries = set(cache.rglob("*.cubin"))
    others = [
        code.compile(1, CONFIG.replace(group_m=8), problem(kernel, 8192), target),
        code.compile(1, CONFIG, problem(kernel, 64), target),
        code.compile(1, CONFIG, problem(kernel, 8192, tp=2), target),
    ]
    assert set(cache.rglob("*.cubin")) == entries
    assert others == [first] * 3
    keys = {
        load_kernel(kernel).binary(1, c, problem(kernel, t)) for c, t in ((CONFIG, 1), (CONFIG.replace(group_m=8), 64))
    }
    assert len(keys) == 1


@pytest.mark.parametrize("kernel", ["bf16", "a8w4"])
def test_registers_and_spills_are_reported_without_a_device(kernel):
    found = implementation(kernel).compile(2, CONFIG, problem(kernel), load_target("sm_90"))
    assert (found.threads, found.spills) == (128, 0)
    assert 32 < found.registers < 256
    assert found.shared_bytes > 0


@pytest.mark.parametrize("kernel", ["bf16", "a8w4"])
def test_mock_arguments_are_specialised_as_the_tensors_of_a_launch(kernel):
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    from moetune.device.arena import Arena

    small = Problem(SMALL, 1, kernel, kernel, 5)
    code = implementation(kernel)
    slots = code.layout(small)
    arena = Arena(torch.device("cpu"), 16)
    real = {name: arena.empty(name, slot.shape, slot.dtype) for name, slot in slots.items()}
    for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx950", 64)):
        for stage in (1, 2):
            keys = []
            for tensors in (real, code.mocks(small)):
                call = code.call(stage, CONFIG, small, tensors)
                function = call.function
                binder = create_function_from_signature(function.signature, function.params, make_backend(target))
                keys.append(binder(*call.arguments, **call.options)[1])
            assert keys[0] == keys[1]
