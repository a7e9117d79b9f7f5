import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moetune_kernels.formats import (
    dequantise_int4,
    draw_int4,
    drawing,
    pack_nibbles,
    quantise_int4,
    unpack_nibbles,
)

ZERO_POINTS = pytest.mark.parametrize("zero_points", [False, True], ids=["symmetric", "zero points"])
GROUPS = st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=32, max_size=32)


def group(*values: float) -> torch.Tensor:
    return torch.tensor([*values, *[0.0] * (32 - len(values))])


def test_the_even_k_is_in_the_low_nibble():
    packed = pack_nibbles(torch.tensor([1, 2, 15, 0], dtype=torch.uint8))
    assert packed.tolist() == [0x21, 0x0F]
    assert unpack_nibbles(packed).tolist() == [1, 2, 15, 0]
    codes = torch.randint(0, 16, (3, 2, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(unpack_nibbles(pack_nibbles(codes)), codes)


def test_symmetric_codes_are_offset_by_8_in_units_of_the_largest_over_7():
    packed, scales, zeros = quantise_int4(group(7.0, -7.0, 1.0, -1.0, 3.4), 32, zero_points=False)
    assert zeros is None
    assert (packed.dtype, packed.shape, scales.dtype, scales.tolist()) == (torch.uint8, (16,), torch.bfloat16, [1.0])
    assert unpack_nibbles(packed).tolist() == [15, 1, 9, 7, 11, *[8] * 27]


def test_zero_points_shift_the_range_of_a_group_onto_0_to_15():
    """From -4 to 11 is 15 steps of 1, and code 4 is zero."""
    packed, scales, zeros = quantise_int4(group(11.0, -4.0, 1.0, -1.2), 32, zero_points=True)
    assert (scales.tolist(), zeros.tolist(), zeros.dtype) == ([1.0], [4], torch.uint8)
    assert unpack_nibbles(packed).tolist() == [15, 0, 5, 3, *[4] * 28]
    assert dequantise_int4(packed, scales, zeros)[:4].tolist() == [11.0, -4.0, 1.0, -1.0]


def test_the_range_includes_zero():
    for sign, zero in ((1, 0), (-1, 15)):
        packed, scales, zeros = quantise_int4(sign * torch.linspace(10, 15, 32), 32, zero_points=True)
        assert (scales.tolist(), zeros.tolist()) == ([1.0], [zero])
        assert dequantise_int4(packed, scales, zeros)[31] == sign * 15


@ZERO_POINTS
def test_ties_go_to_the_even_multiple_of_the_scale(zero_points):
    ends = (8.0, -7.0) if zero_points else (7.0, -7.0)  # zero point 7: odd
    w = group(*ends, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5)
    found = dequantise_int4(*quantise_int4(w, 32, zero_points))
    assert found[:8].tolist() == [*ends, 0.0, 2.0, 2.0, 0.0, -2.0, -2.0]


def test_codes_are_those_of_the_scale_as_stored():
    """1.0 / 7 in bf16 is 0.142578125: 0.0714 is half a step of 1 / 7, and 0.5008 of what is stored."""
    packed, scales, _ = quantise_int4(group(1.0, 0.0714), 32, zero_points=False)
    assert scales.item() == 0.142578125
    assert unpack_nibbles(packed)[:2].tolist() == [15, 9]


def test_every_stored_code_has_its_value_also_those_never_made():
    codes = torch.arange(16, dtype=torch.uint8).repeat(2)
    packed, scales = pack_nibbles(codes), torch.tensor([0.5, -2.0], dtype=torch.bfloat16)
    values = dequantise_int4(packed, scales)
    assert values.tolist() == [(q - 8) * 0.5 for q in range(16)] + [(q - 8) * -2.0 for q in range(16)]
    values = dequantise_int4(packed, scales, torch.tensor([0, 15], dtype=torch.uint8))
    assert values.tolist() == [q * 0.5 for q in range(16)] + [(q - 15) * -2.0 for q in range(16)]


@ZERO_POINTS
@pytest.mark.parametrize("size", [32, 64, 128])
def test_a_group_has_a_scale_of_its_own(size, zero_points):
    w = torch.randn(2, 3, 256, generator=torch.Generator().manual_seed(size))
    packed, scales, zeros = quantise_int4(w, size, zero_points)
    assert (packed.shape, scales.shape) == ((2, 3, 128), (2, 3, 256 // size))
    assert zeros is None if not zero_points else zeros.shape == scales.shape
    alone = quantise_int4(w[1, 2, size : 2 * size], size, zero_points)
    assert torch.equal(packed[1, 2, size // 2 : size], alone[0])
    assert torch.equal(scales[1, 2, 1], alone[1][0])
    error = (dequantise_int4(packed, scales, zeros) - w).view(2, 3, -1, size)
    assert (error.abs() <= 0.54 * scales.float().unsqueeze(-1)).all()


@ZERO_POINTS
@settings(deadline=None, max_examples=100)
@given(values=GROUPS)
def test_a_round_trip_errs_by_half_a_step(zero_points, values):
    """And by what rounding the scale to bf16, by up to 1/256, moves the ends of the range."""
    w = torch.tensor(values)
    packed, scales, zeros = quantise_int4(w, 32, zero_points)
    error = (dequantise_int4(packed, scales, zeros).double() - w.double()).abs().amax()
    assert error <= float(scales) * (0.5 + 15 / 256) if float(scales) else w.abs().amax() < 15 * 1.2e-38


@settings(deadline=None, max_examples=100)
@given(values=GROUPS)
def test_symmetric_quantising_again_changes_nothing(values):
    once = quantise_int4(torch.tensor(values), 32, zero_points=False)
    again = quantise_int4(dequantise_int4(*once), 32, zero_points=False)
    if float(once[1]) > 1e-37:
        assert torch.equal(once[0], again[0]) and torch.equal(once[1], again[1])


@ZERO_POINTS
@pytest.mark.parametrize("size", [32, 128])
def test_drawn_weights_are_distributed_like_a_quantised_gaussian(size, zero_points):
    packed, scales, zeros = draw_int4((4, 64, 1024), size, zero_points, torch.Generator().manual_seed(3), "cpu")
    assert (packed.shape, packed.dtype) == ((4, 64, 512), torch.uint8)
    assert (scales.shape, scales.dtype) == ((4, 64, 1024 // size), torch.bfloat16)
    gaussian = torch.randn(256, 1024, generator=torch.Generator().manual_seed(4)) * 0.02
    wanted, wanted_scales, wanted_zeros = quantise_int4(gaussian, size, zero_points)
    for half in (packed & 15, packed >> 4):
        drawn = torch.bincount(half.flatten().int(), minlength=16) / half.numel()
        expected = torch.bincount(unpack_nibbles(wanted).flatten().int(), minlength=16) / (2 * wanted.numel())
        assert (drawn - expected).abs().max() < 0.01
    for share in (0.05, 0.5, 0.95):
        assert scales.float().quantile(share).item() == pytest.approx(
            wanted_scales.float().quantile(share).item(), rel=0.03
        )
    values = dequantise_int4(packed, scales, zeros)
    assert values.std().item() == pytest.approx(0.02, rel=0.05)
    assert abs(values.mean().item()) < 3e-4
    pairs = torch.corrcoef(values.view(-1, 2).T)
    assert abs(pairs[0, 1].item()) < 0.01
    if zero_points:
        drawn, expected = (torch.bincount(z.flatten(), minlength=16) / z.numel() for z in (zeros, wanted_zeros))
        assert (drawn - expected).abs().max() < 0.03
    else:
        assert zeros is None


def test_drawn_codes_lie_around_the_zero_point_of_their_group():
    packed, _, zeros = draw_int4((1, 256, 1024), 32, True, torch.Generator().manual_seed(3), "cpu")
    codes = unpack_nibbles(packed).view(1, 256, 32, 32).float()
    for zero in (5, 7, 10):
        assert codes[zeros == zero].mean().item() == pytest.approx(zero, abs=0.25)


@ZERO_POINTS
def test_chunks_of_whole_groups_are_drawn_for_their_own_zero_points(zero_points, monkeypatch):
    monkeypatch.setattr(drawing, "CHUNK", 1000)
    shape = (3, 20, 256)
    out = (
        torch.full((3, 20, 128), 255, dtype=torch.uint8),
        torch.zeros(3, 20, 8, dtype=torch.bfloat16),
        torch.zeros(3, 20, 8, dtype=torch.uint8) if zero_points else None,
    )
    drawn = draw_int4(shape, 32, zero_points, torch.Generator().manual_seed(7), "cpu", out)
    again = draw_int4(shape, 32, zero_points, torch.Generator().manual_seed(7), "cpu")
    for a, b, c in zip(drawn, out, again, strict=True):
        assert a is b
        assert a is None or torch.equal(a, c)
    assert dequantise_int4(*drawn).std().item() == pytest.approx(0.02, rel=0.1)
