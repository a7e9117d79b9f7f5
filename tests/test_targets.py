"""The data files of the GPUs."""

from __future__ import annotations

import pytest

from moetune.errors import TargetError
from moetune.model.format import FORMATS
from moetune.targets import all_targets, load_target, target_of

GPUS = [name for name, target in all_targets().items() if target.vendor != "cpu"]


def test_the_targets_that_the_kernels_serve_are_known() -> None:
    assert {t.arch for t in all_targets().values()} >= {"sm_90", "gfx942", "gfx950", "gfx1250"}


@pytest.mark.parametrize("name", GPUS)
def test_a_target_states_its_limits_its_source_and_no_unknown_rate(name: str) -> None:
    target = load_target(name)
    assert target.source
    assert target.vendor in ("nvidia", "amd")
    assert target.warp_size in (32, 64)
    assert target.max_threads % target.warp_size == 0
    assert target.shared_bytes > 0 and target.cu_num > 0
    assert set(target.peaks) <= {form.rate for form in FORMATS.values()}
    assert 1e11 < target.bandwidth < 1e14
    assert all(1e12 < peak < 1e17 for peak in target.peaks.values())


@pytest.mark.parametrize(
    ("arch", "warp_size", "shared_bytes"),
    [
        ("sm_90", 32, 227 << 10),
        ("gfx942", 64, 64 << 10),
        ("gfx950", 64, 160 << 10),
        ("gfx1250", 32, 320 << 10),
    ],
)
def test_a_block_of_each_architecture_has_its_shared_memory(arch: str, warp_size: int, shared_bytes: int) -> None:
    target = load_target(arch)
    assert (target.arch, target.warp_size, target.shared_bytes) == (arch, warp_size, shared_bytes)


def test_a_target_is_found_by_name_or_architecture_in_any_case() -> None:
    assert load_target("H200") is load_target("sm_90") is load_target("SM_90")
    assert load_target("MI355X").arch == "gfx950"


def test_an_unknown_target_is_answered_with_the_nearest() -> None:
    with pytest.raises(TargetError, match="no target 'mi355': did you mean 'mi355x'"):
        load_target("mi355")


def test_a_device_is_recognised_by_its_whole_product_name() -> None:
    assert target_of("nvidia h200") is load_target("h200")
    assert target_of("AMD Instinct MI300X") is load_target("mi300x")
    assert target_of("NVIDIA H200 NVL") is None
