"""What becomes of groups that are zero, too small for a scale, or not finite, where scales are fp32 or bf16."""

import math
from functools import partial

import pytest
import torch
from moetune_kernels.formats import (
    dequantise_e4m3,
    dequantise_int4,
    dequantise_int8,
    quantise_e4m3,
    quantise_int4,
    quantise_int8,
)

FORMATS = {
    "int8": (quantise_int8, dequantise_int8),
    "e4m3fn": (quantise_e4m3, dequantise_e4m3),
    "e4m3fnuz": (partial(quantise_e4m3, dtype=torch.float8_e4m3fnuz), dequantise_e4m3),
    "int4": (partial(quantise_int4, group=128, zero_points=False), dequantise_int4),
    "int4 with zero points": (partial(quantise_int4, group=128, zero_points=True), dequantise_int4),
}
EACH = pytest.mark.parametrize(("quantise", "dequantise"), FORMATS.values(), ids=FORMATS)


@EACH
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_zeros_have_scale_0_and_stay_zeros(quantise, dequantise, sign):
    found = quantise(sign * torch.zeros(2, 128))
    assert found[1].flatten().tolist() == [0.0, 0.0]
    assert dequantise(*found).eq(0).all()


@EACH
def test_a_group_whose_scale_would_be_subnormal_counts_as_zero(quantise, dequantise):
    """So that nothing depends on whether a device flushes subnormal numbers."""
    found = quantise(torch.linspace(-1e-38, 1e-38, 128).unsqueeze(0))
    assert found[1].item() == 0
    assert dequantise(*found).eq(0).all()
    assert found[0].float().unique().numel() == 1
    assert quantise(torch.full((1, 128), 1e-35))[1].item() > 1.1e-38


@EACH
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_group_that_is_not_finite_has_scale_nan_and_its_neighbours_do_not(quantise, dequantise, bad):
    x = torch.ones(3, 128)
    x[1, 77] = bad
    found = quantise(x)
    assert found[1].flatten().isnan().tolist() == [False, True, False]
    values = dequantise(*found)
    assert values[1].isnan().all()
    assert values[::2].sub(1).abs().max() < 0.005
    codes = found[0].float()[1].unique()
    assert codes.numel() == 1 and codes.isfinite().all()


@EACH
def test_the_largest_numbers_of_fp32_have_a_scale(quantise, dequantise):
    x = torch.linspace(-1, 1, 128).unsqueeze(0) * 3e38
    values = dequantise(*quantise(x))
    assert values.isfinite().all()
    assert ((values.double() - x.double()).norm() / x.double().norm()).item() < 0.08


@EACH
def test_strided_and_bf16_inputs_quantise_like_contiguous_fp32(quantise, dequantise):
    x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0)).bfloat16().T
    for a, b in zip(quantise(x), quantise(x.contiguous().float()), strict=True):
        assert a is b is None or torch.equal(a.float(), b.float())


@EACH
def test_the_input_is_left_as_it_is(quantise, dequantise):
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    dequantise(*quantise(x))
    assert torch.equal(x, before)


@pytest.mark.gpu
@EACH
def test_a_gpu_gives_the_same_bits(quantise, dequantise):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * torch.logspace(-38, 37, 64)[:, None]
    x[0], x[1, 3], x[2, 3] = 0, math.nan, math.inf
    here, there = quantise(x), quantise(x.cuda())
    for a, b in zip(here, there, strict=True):
        assert a is b is None or torch.equal(a.float().nan_to_num(-1), b.cpu().float().nan_to_num(-1))
    assert torch.equal(dequantise(*here).nan_to_num(-1), dequantise(*there).cpu().nan_to_num(-1))
