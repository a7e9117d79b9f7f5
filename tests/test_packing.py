"""Prepacked weights hold what `triton_packed` says they do, and give it back."""

from __future__ import annotations

import pytest
import torch
from moetune_kernels import packing

SIZES = pytest.mark.parametrize(("rows", "k"), [(64, 128), (130, 160), (72, 288), (8, 32)])
KINDS = pytest.mark.parametrize("kind", ["int4", "e2m1"])


def codes_of(rows: int, k: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * k)
    return torch.randint(0, 16, (rows, k), dtype=torch.uint8, generator=generator)


def eight(codes: torch.Tensor, row: int, block: int, t: int, c: int) -> list[int]:
    """Return the codes of one word by 16-bit half and element."""
    return [
        int(codes[row, 128 * block + 32 * c + 16 * s + 8 * h + 2 * t + p])
        for p in (0, 1) for s in (0, 1) for h in (0, 1)
    ]  # fmt: skip


def places(words: torch.Tensor):
    """Yield row, block, t and c of each word, and its two halves."""
    for block64, block, row, word in torch.cartesian_prod(*map(torch.arange, words.shape)).tolist():
        bits = int(words[block64, block, row, word]) & 0xFFFFFFFF
        yield 64 * block64 + row, block, word // 4, word % 4, (bits & 0xFFFF, bits >> 16)


class TestWords:
    @KINDS
    @SIZES
    def test_they_give_back_the_codes(self, kind, rows, k):
        codes = codes_of(rows, k)
        words = packing.pack_words(codes, kind)
        assert words.dtype == torch.int32 and words.is_contiguous()
        assert words.shape == (-(-rows // 64), -(-k // 128), 64, 16)
        assert torch.equal(packing.unpack_words(words, kind, rows, k), codes)

    def test_an_int4_word_holds_four_codes_a_half_the_first_lowest(self):
        codes = codes_of(64, 256)
        for row, block, t, c, halves in places(packing.pack_words(codes, "int4")):
            found = [half >> 4 * element & 15 for half in halves for element in range(4)]
            assert found == eight(codes, row, block, t, c)

    def test_an_e2m1_word_shows_its_elements_as_bf16_bits_after_a_shift_and_a_mask(self):
        codes = codes_of(64, 256)
        for row, block, t, c, halves in places(packing.pack_words(codes, "e2m1")):
            found = []
            for half in halves:
                bits = [half << 3 * element & 0x81C0 for element in range(3)]
                bits.append(half << 1 & 0x8000 | half >> 5 & 0x0100 | half >> 4 & 0x00C0)
                found += [b >> 12 & 8 | b >> 6 & 7 for b in bits]
            assert found == eight(codes, row, block, t, c)

    @pytest.mark.parametrize(("kind", "zero"), [("int4", 8), ("e2m1", 0)])
    def test_rows_and_k_are_padded_with_the_code_of_zero(self, kind, zero):
        whole = packing.unpack_words(packing.pack_words(codes_of(70, 160), kind), kind, 128, 256)
        assert set(whole[70:].flatten().tolist()) == set(whole[:, 160:].flatten().tolist()) == {zero}


class TestBytes:
    @pytest.mark.parametrize("block", [32, 64, 128])
    @pytest.mark.parametrize("rows", [64, 70])
    def test_they_give_back_the_codes(self, rows, block):
        codes = codes_of(rows, 256)
        packed = packing.pack_bytes(codes, block)
        assert packed.shape == (-(-rows // 64), 256 // block, 64, block // 2) and packed.is_contiguous()
        assert torch.equal(packing.unpack_bytes(packed, rows), codes)

    @pytest.mark.parametrize("block", [32, 64, 128])
    def test_a_byte_holds_two_codes_sixteen_apart(self, block):
        codes = codes_of(64, 128)
        packed = packing.pack_bytes(codes, block)
        for unit in range(128 // block):
            for t in range(4):
                for c in range(block // 32):
                    for b in range(4):
                        byte = packed[0, unit, :, t * (block // 8) + 4 * c + b]
                        low = unit * block + 32 * c + 4 * t + b
                        assert torch.equal(byte & 15, codes[:, low])
                        assert torch.equal(byte >> 4, codes[:, low + 16])


class TestScales:
    def test_scales_lie_by_group_and_are_padded_with_zeros(self):
        scales = torch.randn(70, 3)
        found = packing.by_group(scales, 4)
        assert found.shape == (4, 128) and found.is_contiguous()
        assert torch.equal(found[:3, :70].T, scales)
        assert not found[3].any() and not found[:, 70:].any()

    def test_pairs_join_rows_eight_apart(self):
        scales = torch.randn(3, 64).bfloat16()
        pairs = packing.pair_scales(scales)
        assert pairs.shape == (3, 32)
        assert torch.equal(packing.unpair_scales(pairs), scales)
        halves = pairs.contiguous().view(torch.bfloat16).view(3, 32, 2)  # little endian: the low half first
        assert torch.equal(halves[:, 8:16, 0], scales[:, 16:24])
        assert torch.equal(halves[:, 8:16, 1], scales[:, 24:32])

    def test_e8m0_scales_come_back_up_to_two_to_the_seventeenth(self):
        exponents = torch.arange(0, 145, dtype=torch.uint8).repeat(2)[: 70 * 4].view(70, 4)
        assert torch.equal(packing.unpack_e8m0(packing.pack_e8m0(exponents, 128), 70, 128), exponents)

    def test_larger_e8m0_scales_saturate_and_nan_stays(self):
        scales = torch.tensor([[144, 145, 254, 255]], dtype=torch.uint8)
        found = packing.unpack_e8m0(packing.pack_e8m0(scales, 128), 1, 128)
        assert found.tolist() == [[144, 144, 144, 255]]

    def test_four_e8m0_scales_of_a_row_share_a_word_by_128_of_k(self):
        scales = torch.arange(64 * 5, dtype=torch.uint8).remainder(100).view(64, 5)
        packed = packing.pack_e8m0(scales, 160)
        assert packed.shape == (2, 64)
        bytes_ = packed.view(torch.uint8).view(2, 64, 4).int() - packing.BIAS
        assert torch.equal(bytes_[0], scales[:, :4].int())
        assert torch.equal(bytes_[1, :, 0], scales[:, 4].int())


class TestRowOrder:
    @pytest.mark.parametrize(("interleaved", "gate", "up"), [(False, 1, 1 + 24), (True, 2, 3)])
    def test_gate_and_up_rows_come_in_turns_of_eight(self, interleaved, gate, up):
        order = packing.row_order(24, True, interleaved).tolist()
        assert sorted(order) == list(range(48))
        assert (order[1], order[9]) == (gate, up)
        step = 2 if interleaved else 1
        assert order[16:24] == [step * (8 + i) for i in range(8)]

    def test_rows_without_a_gate_stay(self):
        assert packing.row_order(24, False, False).tolist() == list(range(24))
