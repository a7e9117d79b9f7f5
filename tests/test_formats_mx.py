import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moetune_kernels.formats import (
    dequantise_mxfp4,
    dequantise_mxfp8,
    draw_mxfp4,
    quantise_mxfp4,
    quantise_mxfp8,
)

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
QUANTISERS = pytest.mark.parametrize(
    ("quantise", "dequantise", "emax"),
    [(quantise_mxfp8, dequantise_mxfp8, 8), (quantise_mxfp4, dequantise_mxfp4, 2)],
    ids=["mxfp8", "mxfp4"],
)
BLOCKS = st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=32, max_size=32)


def block(*values: float) -> torch.Tensor:
    return torch.tensor([*values, *[0.0] * (32 - len(values))])


def nibbles(packed: torch.Tensor) -> list[int]:
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten().tolist()


def test_mxfp4_rounds_ties_to_the_even_code():
    """An amax of 4 gives the scale 2^(2 - 2) = 1, so that the elements are their own codes' values."""
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    packed, scales = quantise_mxfp4(block(4.0, *ties, *(-t for t in ties)))
    assert scales.tolist() == [127]
    rounded = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert dequantise_mxfp4(packed, scales)[:15].tolist() == [4.0, *rounded, *(-r for r in rounded)]


@pytest.mark.parametrize("code", range(8))
def test_mxfp4_rounds_to_the_nearest_on_both_sides_of_every_code(code):
    value = E2M1[code]
    below = (E2M1[code - 1] + value) / 2 + 1e-3 if code else 0.0
    above = (E2M1[code + 1] + value) / 2 - 1e-3 if code < 7 else 7.9
    packed, _ = quantise_mxfp4(block(7.99, below, value, above, -value))
    assert nibbles(packed)[1:5] == [code, code, code, code | 8]


def test_mxfp4_saturates_at_six():
    packed, scales = quantise_mxfp4(block(7.9, -7.9, 6.0))
    assert scales.tolist() == [127]
    assert dequantise_mxfp4(packed, scales)[:3].tolist() == [6.0, -6.0, 6.0]


def test_mxfp4_puts_the_even_k_into_the_low_nibble():
    packed, _ = quantise_mxfp4(block(0.5, 6.0, -1.5))
    assert packed[:2].tolist() == [0x71, 0x0B]


def test_mxfp8_saturates_at_448_and_rounds_ties_to_even():
    """An amax of 256 to 512 gives the scale 1; e4m3 is spaced 32 from 256 on and 2 from 16 to 32."""
    x = block(500.0, -500.0, 448.0, 272.0, 304.0, 17.0, 19.0, 2.0**-9, 2.0**-10)
    codes, scales = quantise_mxfp8(x)
    assert scales.tolist() == [127]
    expected = [448.0, -448.0, 448.0, 256.0, 320.0, 16.0, 20.0, 2.0**-9, 0.0]
    assert dequantise_mxfp8(codes, scales)[:9].tolist() == expected


@QUANTISERS
@pytest.mark.parametrize(
    ("amax", "exponent"),
    [(1.0, 0), (1.99, 0), (2.0, 1), (0.75, -1), (2.0**100, 100), (3.4e38, 127), (2.0**-126, -126)],
)
def test_the_scale_is_the_floor_of_the_logarithm_less_emax(quantise, dequantise, emax, amax, exponent):
    _, scales = quantise(block(-amax, amax / 3))
    assert scales.tolist() == [max(exponent - emax + 127, 0)]


@QUANTISERS
def test_a_zero_block_has_the_smallest_scale_and_stays_zero(quantise, dequantise, emax):
    elements, scales = quantise(torch.zeros(3, 64))
    assert scales.tolist() == [[0, 0]] * 3
    assert dequantise(elements, scales).eq(0).all()


@QUANTISERS
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_block_that_is_not_finite_becomes_nan_and_its_neighbours_do_not(quantise, dequantise, emax, bad):
    elements, scales = quantise(torch.cat([block(1.0), block(1.0, bad), block(1.0)]))
    assert scales[1] == 255
    back = dequantise(elements, scales)
    assert back[32:64].isnan().all()
    assert back[:32].tolist() == back[64:].tolist() == block(1.0).tolist()


def test_a_scale_of_255_is_nan_and_of_0_is_the_subnormal_two_to_the_minus_127():
    packed, codes = torch.full((3, 16), 0x22, dtype=torch.uint8), torch.ones(3, 32).to(torch.float8_e4m3fn)
    scales = torch.tensor([[255], [0], [254]], dtype=torch.uint8)
    for back in (dequantise_mxfp4(packed, scales), dequantise_mxfp8(codes, scales)):
        assert back[0].isnan().all()
        assert back[1].eq(2.0**-127).all()
        assert back[2].eq(2.0**127).all()


@QUANTISERS
@settings(deadline=None, max_examples=60)
@given(values=BLOCKS)
def test_quantising_again_changes_nothing(quantise, dequantise, emax, values):
    once = quantise(torch.tensor(values))
    again = quantise(dequantise(*once))
    for a, b in zip(once, again, strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@settings(deadline=None, max_examples=60)
@given(values=BLOCKS)
def test_mxfp4_elements_are_the_nearest_representable(values):
    x = torch.tensor(values)
    packed, scales = quantise_mxfp4(x)
    unit = 2.0 ** (int(scales) - 127)
    grid = torch.tensor([s * v * unit for v in E2M1 for s in (1, -1)], dtype=torch.float64)
    nearest = (x.double()[:, None] - grid).abs().amin(1)
    assert torch.equal((dequantise_mxfp4(packed, scales).double() - x.double()).abs(), nearest)


@settings(deadline=None, max_examples=60)
@given(values=BLOCKS)
def test_mxfp8_errs_by_a_sixteenth_where_it_does_not_saturate(values):
    x = torch.tensor(values).double()
    codes, scales = quantise_mxfp8(x)
    unit = 2.0 ** (int(scales) - 127)
    error = (dequantise_mxfp8(codes, scales).double() - x).abs()
    bound = torch.where(x.abs() > 448 * unit, 64 * unit, (x.abs() / 16).clamp(min=unit * 2.0**-10))
    assert (error <= bound * (1 + 1e-6)).all()


def test_strided_and_bf16_inputs_quantise_like_contiguous_fp32():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).bfloat16().T
    for quantise in (quantise_mxfp8, quantise_mxfp4):
        for a, b in zip(quantise(x), quantise(x.contiguous().float()), strict=True):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_drawn_weights_are_distributed_like_a_quantised_gaussian():
    packed, scales = draw_mxfp4((4, 64, 1024), torch.Generator().manual_seed(3), "cpu")
    assert (packed.shape, scales.shape) == ((4, 64, 512), (4, 64, 32))
    wanted, _ = quantise_mxfp4(torch.randn(256, 1024, generator=torch.Generator().manual_seed(4)) * 0.02)
    for half in (packed & 15, packed >> 4):
        drawn = torch.bincount(half.flatten().int(), minlength=16) / half.numel()
        expected = torch.bincount(torch.tensor(nibbles(wanted)), minlength=16) / (2 * wanted.numel())
        assert (drawn - expected).abs().max() < 0.01
    values = dequantise_mxfp4(packed, scales)
    assert values.std().item() == pytest.approx(0.02, rel=0.1)
    assert abs(values.mean().item()) < 5e-4
    pairs = torch.corrcoef(values.view(-1, 2).T)
    assert abs(pairs[0, 1].item()) < 0.01


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bits_and_draws_the_same_distribution():
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * torch.logspace(-38, 37, 64)[:, None]
    x[0], x[1, 3], x[2, 3] = 0, math.nan, math.inf
    for quantise, dequantise in ((quantise_mxfp8, dequantise_mxfp8), (quantise_mxfp4, dequantise_mxfp4)):
        here, there = quantise(x), quantise(x.cuda())
        finite = here[1].ne(255).repeat_interleave(here[0].shape[1] // here[1].shape[1], dim=1)
        assert torch.equal(here[0].view(torch.uint8)[finite], there[0].cpu().view(torch.uint8)[finite])
        assert torch.equal(here[1], there[1].cpu())
        assert torch.equal(dequantise(*here).nan_to_num(), dequantise(*there).cpu().nan_to_num())
    generator = torch.Generator("cuda").manual_seed(0)
    values = dequantise_mxfp4(*draw_mxfp4((4, 64, 1024), generator, "cuda"))
    assert values.std().item() == pytest.approx(0.02, rel=0.1)
