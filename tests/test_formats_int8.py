import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moetune_kernels.formats import dequantise_int8, draw_int8, quantise_int8

ROWS = st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=1, max_size=40)


def test_codes_are_x_in_units_of_the_largest_over_127():
    x = torch.tensor([[127.0, -127.0, 64.0, -1.0, 0.4], [0.0, 0.5, -0.25, 0.125, 0.0]])
    codes, scales = quantise_int8(x)
    assert (codes.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert scales.tolist() == (torch.tensor([127.0, 0.5]) / 127).tolist()
    assert codes.tolist() == [[127, -127, 64, -1, 0], [0, 127, -64, 32, 0]]  # 63.5 and 31.75


def test_ties_go_to_the_even_code():
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5])
    assert quantise_int8(x)[0].tolist() == [127, 0, 2, 2, 0, -2, -2, 126, -126]


def test_minus_128_is_never_made():
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 200)[:, None]
    codes = quantise_int8(x)[0].int()
    assert codes.abs().amax(1).eq(127).all()


def test_a_row_has_one_scale_and_does_not_change_another():
    x = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    codes, scales = quantise_int8(x)
    assert (codes.shape, scales.shape) == ((2, 3, 50), (2, 3))
    alone = quantise_int8(x[1, 2])
    assert torch.equal(codes[1, 2], alone[0]) and torch.equal(scales[1, 2], alone[1])


@settings(deadline=None, max_examples=100)
@given(values=ROWS)
def test_a_round_trip_errs_by_half_a_step(values):
    x = torch.tensor(values)
    codes, scales = quantise_int8(x)
    error = (dequantise_int8(codes, scales).double() - x.double()).abs().amax()
    least = 127 * torch.finfo(torch.float32).tiny  # smaller rows count as zero
    assert error <= max(float(scales) * 0.5 * (1 + 1e-5), least if float(scales) == 0 else 0)


@settings(deadline=None, max_examples=100)
@given(values=ROWS)
def test_quantising_again_gives_the_same_codes(values):
    once = quantise_int8(torch.tensor(values))
    again = quantise_int8(dequantise_int8(*once))
    if float(once[1]) > 1e-37:  # 127 steps of a scale next to the least one are as likely as not below it
        assert torch.equal(once[0], again[0])
        torch.testing.assert_close(once[1], again[1], rtol=3e-7, atol=0)


@pytest.mark.parametrize(("n", "k"), [(256, 4096), (2048, 96)])
def test_drawn_weights_are_distributed_like_a_quantised_gaussian(n, k):
    codes, scales = draw_int8((2, n, k), torch.Generator().manual_seed(3), "cpu")
    assert (codes.shape, codes.dtype) == ((2, n, k), torch.int8)
    assert (scales.shape, scales.dtype) == ((2, n), torch.float32)
    wanted, wanted_scales = quantise_int8(torch.randn(2 * n, k, generator=torch.Generator().manual_seed(4)) * 0.02)
    assert codes.float().std().item() == pytest.approx(wanted.float().std().item(), rel=0.01)
    assert abs(codes.float().mean().item()) < 0.15
    at_the_end = [c.int().abs().eq(127).float().mean().item() for c in (codes, wanted)]
    assert at_the_end[0] == pytest.approx(at_the_end[1], rel=0.25)  # one a row and some
    assert codes.int().abs().amax() == 127
    for share in (0.02, 0.25, 0.5, 0.75, 0.98):
        a, b = (s.flatten().quantile(share).item() for s in (scales, wanted_scales))
        assert a == pytest.approx(b, rel=0.03)
    values = dequantise_int8(codes, scales)
    assert values.std().item() == pytest.approx(0.02, rel=0.04)
    assert values.isfinite().all()


def test_a_nan_is_kept_in_the_scale_alone():
    codes, scales = quantise_int8(torch.tensor([[1.0, math.nan], [1.0, 2.0]]))
    assert scales[0].isnan() and codes[0].tolist() == [0, 0]
    assert scales[1].isfinite() and codes[1].tolist() == [64, 127]
