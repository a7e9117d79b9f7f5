import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moetune_kernels.formats import (
    dequantise_e4m3,
    dequantise_e4m3_blocks,
    draw_e4m3_blocks,
    quantise_e4m3,
    quantise_e4m3_blocks,
)

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
BOTH = pytest.mark.parametrize(("dtype", "largest", "least"), [(FN, 448.0, 2.0**-9), (FNUZ, 240.0, 2.0**-10)])
GROUPS = st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=1, max_size=150)


def bits(codes: torch.Tensor) -> list[int]:
    return codes.view(torch.uint8).tolist()


@BOTH
def test_the_scale_is_the_largest_over_the_largest_code(dtype, largest, least):
    x = torch.zeros(2, 256)
    x[0, 3], x[0, 200], x[1, 0] = -largest, 3.0, 0.7
    codes, scales = quantise_e4m3(x, dtype=dtype)
    assert (codes.dtype, scales.dtype, codes.shape) == (dtype, torch.float32, (2, 256))
    assert scales.tolist() == [[1.0, float(torch.tensor(3.0) / largest)], [float(torch.tensor(0.7) / largest), 0.0]]
    assert [float(codes[0, 3]), float(codes[0, 200]), float(codes[1, 0])] == [-largest, largest, largest]


def test_known_values_have_known_codes():
    """A largest of 448 (240) gives the scale 1: 1 is exponent 7 of bias 7 (8 of bias 8) with no mantissa."""
    x = torch.tensor([448.0, 1.0, -1.0, 1.125, 0.0, -0.0, 2.0**-9, 2.0**-6])
    assert bits(quantise_e4m3(x)[0]) == [0x7E, 0x38, 0xB8, 0x39, 0x00, 0x80, 0x01, 0x08]
    x[0] = 240.0
    assert bits(quantise_e4m3(x, dtype=FNUZ)[0]) == [0x7F, 0x40, 0xC0, 0x41, 0x00, 0x00, 0x02, 0x10]


@BOTH
def test_ties_go_to_the_even_code(dtype, largest, least):
    """e4m3 is spaced 2 from 16 to 32, 16 from 128 to 256, and by its least number at the bottom."""
    ties = torch.tensor([17.0, 19.0, 136.0, 152.0, 0.5 * least, 1.5 * least, 2.5 * least])
    rounded = [16.0, 20.0, 128.0, 160.0, 0.0, 2 * least, 2 * least]
    codes, scales = quantise_e4m3(torch.cat([torch.tensor([largest]), ties, -ties]), dtype=dtype)
    assert scales.item() == 1
    assert codes.float().tolist() == [largest, *rounded, *(-r for r in rounded)]


def test_fnuz_has_no_negative_zero():
    """0x80 is its NaN: what rounds to zero from below must not become one."""
    x = torch.tensor([240.0, -(2.0**-12), -0.0, -(2.0**-11)])
    assert bits(quantise_e4m3(x, dtype=FNUZ)[0])[1:] == [0, 0, 0]


@BOTH
def test_the_largest_never_leaves_the_range_by_rounding_of_the_scale(dtype, largest, least):
    x = torch.logspace(-35, 38, 5000).unsqueeze(1) * torch.tensor([1.0, -1.0])
    codes, _ = quantise_e4m3(x, dtype=dtype)
    assert codes.float().abs().eq(largest).all()


@pytest.mark.parametrize("k", [1, 100, 128, 129, 192, 300])
def test_the_last_group_of_a_row_may_be_short(k):
    x = torch.randn(3, k, generator=torch.Generator().manual_seed(k))
    codes, scales = quantise_e4m3(x)
    assert (codes.shape, scales.shape) == ((3, k), (3, -(-k // 128)))
    assert codes.is_contiguous() and scales.is_contiguous()
    for i, part in enumerate(x.split(128, dim=1)):
        alone, scale = quantise_e4m3(part)
        assert bits(codes[:, 128 * i : 128 * i + 128]) == bits(alone)
        assert scales[:, i].tolist() == scale[:, 0].tolist() == (part.abs().amax(1) / 448).tolist()
    torch.testing.assert_close(dequantise_e4m3(codes, scales), x, rtol=1 / 16, atol=2e-5)


def test_another_group_size_is_taken():
    x = torch.randn(2, 96, generator=torch.Generator().manual_seed(0))
    codes, scales = quantise_e4m3(x, group=32)
    assert scales.shape == (2, 3)
    assert scales[1, 2] == x[1, 64:].abs().amax() / 448
    torch.testing.assert_close(dequantise_e4m3(codes, scales, group=32), x, rtol=1 / 16, atol=2e-5)


@BOTH
@settings(deadline=None, max_examples=60)
@given(values=GROUPS)
def test_a_round_trip_errs_by_a_sixteenth_or_half_the_least_number(dtype, largest, least, values):
    x = torch.tensor(values)
    codes, scales = quantise_e4m3(x, dtype=dtype)
    unit = scales.double().repeat_interleave(128)[: len(values)]
    error = (dequantise_e4m3(codes, scales).double() - x.double()).abs()
    bound = (x.double().abs() / 16).maximum(unit * least / 2) * (1 + 1e-5)
    assert ((error <= bound) | ((unit == 0) & (x.double().abs() < largest * 1.2e-38))).all()


@BOTH
@settings(deadline=None, max_examples=60)
@given(values=GROUPS)
def test_quantising_again_gives_the_same_codes(dtype, largest, least, values):
    once = quantise_e4m3(torch.tensor(values), dtype=dtype)
    again = quantise_e4m3(dequantise_e4m3(*once), dtype=dtype)
    kept = (once[1] > 1e-37).repeat_interleave(128)[: len(values)]
    assert torch.equal(once[0].float()[kept], again[0].float()[kept])


@pytest.mark.parametrize(("n", "k"), [(256, 384), (128, 100), (200, 192), (3, 5)])
@BOTH
def test_blocks_share_a_scale_and_the_last_may_be_short(n, k, dtype, largest, least):
    w = torch.randn(2, n, k, generator=torch.Generator().manual_seed(n + k))
    codes, scales = quantise_e4m3_blocks(w, dtype)
    assert (codes.shape, codes.dtype) == ((2, n, k), dtype)
    assert (scales.shape, scales.dtype) == ((2, -(-n // 128), -(-k // 128)), torch.float32)
    for expert in range(2):
        for i in range(scales.shape[1]):
            for j in range(scales.shape[2]):
                rows, columns = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
                block = w[expert, rows, columns]
                assert scales[expert, i, j] == block.abs().amax() / largest
                wanted = (block / scales[expert, i, j]).clamp(-largest, largest).to(dtype)
                assert bits(codes[expert, rows, columns]) == bits(wanted)
    torch.testing.assert_close(dequantise_e4m3_blocks(codes, scales), w, rtol=1 / 16, atol=1e-4)


@pytest.mark.parametrize("dtype", [FN, FNUZ])
def test_drawn_weights_are_distributed_like_a_quantised_gaussian(dtype):
    codes, scales = draw_e4m3_blocks((3, 256, 640), torch.Generator().manual_seed(3), "cpu", dtype=dtype)
    assert (codes.shape, codes.dtype) == ((3, 256, 640), dtype)
    assert (scales.shape, scales.dtype) == ((3, 2, 5), torch.float32)
    gaussian = torch.randn(3, 256, 640, generator=torch.Generator().manual_seed(4)) * 0.02
    wanted, wanted_scales = quantise_e4m3_blocks(gaussian, dtype)
    drawn = torch.bincount(codes.view(torch.uint8).flatten().int(), minlength=256) / codes.numel()
    expected = torch.bincount(wanted.view(torch.uint8).flatten().int(), minlength=256) / codes.numel()
    assert (drawn - expected).abs().sum() < 0.05
    assert drawn[0x80 if dtype is FNUZ else 0x7F] == 0  # no NaN
    assert codes.float().abs().amax() == torch.finfo(dtype).max
    assert scales.mean().item() == pytest.approx(wanted_scales.mean().item(), rel=0.03)
    values = dequantise_e4m3_blocks(codes, scales)
    assert values.std().item() == pytest.approx(0.02, rel=0.05)
    assert abs(values.mean().item()) < 2e-4


def test_small_blocks_are_drawn_with_scales_of_their_own():
    _, scales = draw_e4m3_blocks((400, 16, 32), torch.Generator().manual_seed(3), "cpu")
    gaussian = torch.randn(400, 16, 32, generator=torch.Generator().manual_seed(4)) * 0.02
    assert scales.mean().item() == pytest.approx(quantise_e4m3_blocks(gaussian)[1].mean().item(), rel=0.03)
    assert scales.shape == (400, 1, 1)
