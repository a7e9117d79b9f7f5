"""What the Triton kernels compile to, on every target that serves them, without a device."""

import re

import pytest
from drawn import ARCHS, EACH, FAMILIES, LARGE, build, draw

from moetune.kernel import load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.targets import load_target

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

CONFIG = Config.of(tile_m=32, tile_n=64, tile_k=128, num_buffers=2, prefetch=0, num_warps=4, group_m=1)
SCALES = ("gfx950", "gfx1250")
PACKED = ("a8w4", "a16w4", "w4a16", "w4a8_int8")
REGISTERS = r"wgmma\.mma_async\S+\s*\{[^}]*\},\s*\{"
"""A wgmma whose left operand is a list of registers, not a descriptor of shared memory."""
_MULTIPLIED = {"fp8_block": "fp8", "w8a8_int8": "int8", "w4a8_int8": "int8"}
_INSTRUCTIONS = {
    ("bf16", "sm_90"): r"wgmma\.mma_async\.\S+\.f32\.bf16\.bf16",
    ("fp8", "sm_90"): r"wgmma\.mma_async\.\S+\.f32\.e4m3\.e4m3",
    ("int8", "sm_90"): r"wgmma\.mma_async\.\S+\.s32\.s8\.s8",
    ("bf16", "gfx942"): r"v_mfma_f32_\w+_bf16",
    ("fp8", "gfx942"): r"v_mfma_f32_\w+_fp8_fp8",
    ("int8", "gfx942"): r"v_mfma_i32_\w+_i8",
    ("bf16", "gfx950"): r"v_mfma_f32_\w+_bf16",
    ("fp8", "gfx950"): r"v_mfma_f32_\w+_(f8f6f4|fp8_fp8)",
    ("int8", "gfx950"): r"v_mfma_i32_\w+_i8",
    ("mx", "gfx950"): r"v_mfma_scale_f32_\w+_f8f6f4",
    ("bf16", "gfx1250"): r"v_wmma_f32_\w+_bf16",
    ("fp8", "gfx1250"): r"v_wmma_f32_\w+_fp8_fp8",
    ("int8", "gfx1250"): r"v_wmma_i32_\w+_iu8",
    ("mx", "gfx1250"): r"v_wmma_scale_f32_\w+_f8f6f4",
}
_ANY = r"wgmma\.mma_async\.\S+|mma\.sync\.\S+|v_w?mfma_\w+|v_wmma_\w+"
SERVED = [
    (kernel, arch) for arch in ARCHS for kernel in FAMILIES if not load_kernel(kernel).unserved(load_target(arch))
]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def implementation(kernel: str):
    return load_implementation(load_kernel(kernel).implementation)


def problem(kernel: str, tokens: int = 8192, tp: int = 1) -> Problem:
    return Problem(LARGE, tp, kernel, kernel, tokens)


def wrong(kernel: str, arch: str, text: str) -> set[str]:
    """Return the matrix instructions that the kernel should not need on a target; a word where there is none at all."""
    wanted = _INSTRUCTIONS["mx" if kernel == "a8w4" and arch in SCALES else _MULTIPLIED.get(kernel, "bf16"), arch]
    found = set(re.findall(_ANY, text)) or {"none"}
    if arch == "sm_90" and kernel in PACKED and len(re.findall(REGISTERS, text)) < len(re.findall("mma_async", text)):
        found.add("a left operand in shared memory")
    return {instruction for instruction in found if not re.fullmatch(wanted, instruction)}


def test_every_target_is_served_by_every_family():
    assert len(SERVED) == len(ARCHS) * len(FAMILIES)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("kernel", "arch"), SERVED)
def test_the_matrix_instruction_of_each_target_is_emitted(kernel, arch, stage, cache):
    two_parts = CONFIG.replace(tile_m=32 if kernel == "a8w4" and arch in SCALES else 48)
    text = implementation(kernel).isa(stage, two_parts, problem(kernel), load_target(arch))
    assert wrong(kernel, arch, text) == set()


@pytest.mark.compile
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kernel", "arch"), SERVED)
def test_configs_drawn_from_the_legal_space_compile_to_it(kernel, arch, compiled):
    configs = draw(kernel, arch)
    assert len(configs) == EACH[arch]
    found = {str((stage, str(c))): wrong(kernel, arch, build(kernel, arch, stage, c).text) for stage, c in configs}
    assert {config: instructions for config, instructions in found.items() if instructions} == {}


@pytest.mark.compile
@pytest.mark.parametrize(("kernel", "arch"), SERVED)
def test_the_default_fits_into_its_targets_shared_memory(kernel, arch, compiled):
    code, description, target = implementation(kernel), load_kernel(kernel), load_target(arch)
    needed = {
        (tokens, stage): code.compile(stage, description.default(stage, on, target), on, target).shared_bytes
        for tokens in (16, 8192)
        for stage in (1, 2)
        for on in [problem(kernel, tokens)]
    }
    assert max(needed.values()) <= target.shared_bytes, needed


@pytest.mark.parametrize("kernel", FAMILIES)
def test_widened_weights_reach_wgmma_from_registers_and_others_from_shared_memory(kernel, cache):
    text = implementation(kernel).isa(1, CONFIG.replace(tile_m=48), problem(kernel), load_target("sm_90"))
    assert len(re.findall(REGISTERS, text)) == (len(re.findall("mma_async", text)) if kernel in PACKED else 0)


@pytest.mark.parametrize("kernel", ["bf16", "a8w4", "w4a8_int8"])
@pytest.mark.parametrize("change", [{"prefetch": 1}, {"num_buffers": 3}], ids=["prefetch", "num_buffers"])
@pytest.mark.parametrize("stage", [1, 2])
def test_an_axis_of_the_pipeline_changes_the_code(kernel, change, stage, cache):
    code = implementation(kernel)
    texts = [code.isa(stage, c, problem(kernel), load_target("sm_90")) for c in (CONFIG, CONFIG.replace(**change))]
    assert body(texts[0]) != body(texts[1])


def test_prefetch_asks_for_each_step_of_the_ring(cache):
    code, target = implementation("bf16"), load_target("sm_90")
    for buffers in (2, 4):
        config = CONFIG.replace(prefetch=1, num_buffers=buffers)
        asked = code.isa(1, config, problem("bf16"), target).count("prefetch.global.L2")
        assert asked > 0
        assert asked % buffers == 0
    assert "prefetch.global" not in code.isa(1, CONFIG, problem("bf16"), target)


def body(ptx: str) -> list[str]:
    """Return the instructions, without comments and line tables."""
    return [line for line in map(str.strip, ptx.splitlines()) if line and not line.startswith(("//", "."))]


@pytest.mark.parametrize("kernel", ["bf16", "a8w4", "w8a8_int8"])
def test_one_binary_serves_every_group_m_token_bucket_and_tp(kernel, cache):
    code, target = implementation(kernel), load_target("sm_90")
    first = code.compile(1, CONFIG, problem(kernel, 8192), target)
    entries = set(cache.rglob("*.cubin"))
    others = [
        code.compile(1, CONFIG.replace(group_m=8), problem(kernel, 8192), target),
        code.compile(1, CONFIG, problem(kernel, 64), target),
    ]
    if kernel != "w8a8_int8":  # its row pass over h has a binary for each inter_dim
        others.append(code.compile(1, CONFIG, problem(kernel, 8192, tp=2), target))
    assert set(cache.rglob("*.cubin")) == entries
    assert others == [first] * len(others)
    keys = {
        load_kernel(kernel).binary(1, c, problem(kernel, t)) for c, t in ((CONFIG, 1), (CONFIG.replace(group_m=8), 64))
    }
    assert len(keys) == 1


@pytest.mark.parametrize("kernel", FAMILIES)
def test_registers_and_spills_are_reported_without_a_device(kernel, cache):
    found = implementation(kernel).compile(2, CONFIG, problem(kernel), load_target("sm_90"))
    assert (found.threads, found.spills) == (128, 0)
    assert 32 < found.registers < 256
    assert found.shared_bytes > 0


@pytest.mark.parametrize("kernel", FAMILIES)
def test_mock_arguments_are_specialised_as_the_tensors_of_a_launch(kernel):
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    from moetune.device.arena import Arena

    shape = Shape("small", 256, 128, 6, 2, "silu", True, (kernel,), (1,), (1,))
    small = Problem(shape, 1, kernel, kernel, 5)
    code = implementation(kernel)
    slots = code.layout(small)
    arena = Arena(torch.device("cpu"), 16)
    real = {name: arena.empty(name, slot.shape, slot.dtype) for name, slot in slots.items()}
    for target in (GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx950", 64)):
        for stage in (1, 2):
            keys = []
            for tensors in (real, code.mocks(small)):
                call, *_ = code.calls(stage, CONFIG, small, tensors, load_target("sm_90"))
                function = call.function
                binder = create_function_from_signature(function.signature, function.params, make_backend(target))
                keys.append(binder(*call.arguments, **call.options)[1])
            assert keys[0] == keys[1]
