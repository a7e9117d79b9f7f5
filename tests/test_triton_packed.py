"""The PTX that widens four-bit codes, run instruction by instruction over what `packing` makes of them."""

from __future__ import annotations

import operator
import re

import pytest
import torch
from moetune_kernels import formats, packing, triton_packed

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 += tuple(-size for size in E2M1)
OPERATIONS = {
    "mov": operator.pos, "shl": operator.lshift, "shr": operator.rshift, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "sub": operator.sub,
}  # fmt: skip
SCALES = (1.0, 0.0123, -3.25, 2.0**-20)


def floats(word: int) -> torch.Tensor:
    """Return the two bf16 of a word, the low half first, in float64."""
    halves = torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32)
    return halves.to(torch.int16).view(torch.bfloat16).double()


def word_of(values: torch.Tensor) -> int:
    """Return two numbers, rounded to bf16, as a word."""
    low, high = (values.bfloat16().view(torch.int16).int() & 0xFFFF).tolist()
    return low | high << 16


def execute(ptx: str, **inputs: int) -> dict[str, int]:
    """Run straight-line PTX over 32-bit registers and return them; knows what these snippets use."""
    registers = {f"${name[1:]}": value for name, value in inputs.items()}

    def value(word: str) -> int:
        return registers[word] if word in registers else int(word, 0)

    for name, target, words in re.findall(r"^\s+(\w+)[.\w]*\s+({[^}]+}|[$\w]+), ([^;]+);", ptx, re.MULTILINE):
        if name == "reg":
            continue
        a, *more = (value(word) for word in words.split(", "))
        if target.startswith("{"):
            low, high = target.strip("{}").split(", ")
            registers |= {low: a & 0xFFFF, high: a >> 16}
            continue
        if name == "lop3":
            assert more[2] == 0xEA  # (a and b) or c
            result = a & more[0] | more[1]
        elif f"{name}.rn.bf16x2" in ptx:
            left, right = floats(a), floats(more[0])
            result = word_of(left + right if name == "add" else left * right)
        else:
            result = OPERATIONS[name](a, *more)
        registers[target] = result & 0xFFFFFFFF
    return registers


def bf16(registers: dict[str, int]) -> torch.Tensor:
    """Return the eight results [s, h, p], in float64."""
    return torch.cat([floats(registers[f"${2 * i}"] | registers[f"${2 * i + 1}"] << 16) for i in range(4)])


def codes_of_word(codes: torch.Tensor, word: int) -> torch.Tensor:
    """Return the eight codes of word t x 4 + c of a row: k = 32 c + 16 s + 8 h + 2 t + p for s, h, p in 0, 1."""
    t, c = divmod(word, 4)
    return torch.stack([codes[32 * c + 16 * s + 8 * h + 2 * t + p] for s in (0, 1) for h in (0, 1) for p in (0, 1)])


@pytest.fixture
def codes() -> torch.Tensor:
    """Codes uint8 [64, 128], in whose words each code takes each place."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 16, (64, 128), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("zero", [None, 0, 7, 15])
def test_an_int4_word_widens_to_its_codes_less_their_zero_times_their_scale(codes, zero):
    words = packing.pack_words(codes, "int4")[0, 0]
    less = 8 if zero is None else zero
    for row in range(0, 64, 4):
        scale = torch.tensor([SCALES[row // 4 % 4]] * 2)
        factor = floats(word_of(scale))[0]
        for place in range(16):
            found = bf16(
                execute(
                    triton_packed._INT4.value, _8=int(words[row, place]) & 0xFFFFFFFF,
                    _9=word_of(torch.tensor([-128.0 - less] * 2)), _10=word_of(scale),
                )
            )  # fmt: skip
            wanted = (codes_of_word(codes[row], place).double() - less) * factor
            assert torch.equal(found, wanted.bfloat16().double())


@pytest.mark.parametrize("byte", [0, 1, 100, 127, 144])
def test_an_e2m1_word_widens_to_its_elements_times_their_scale_short_of_a_power_of_two(codes, byte):
    words = packing.pack_words(codes, "e2m1")[0, 0]
    scale = int(packing.pack_e8m0(torch.full((1, 4), byte, dtype=torch.uint8), 128)[0, 0]) & 255
    values = torch.tensor(E2M1, dtype=torch.float64)
    for row in range(0, 64, 4):
        for place in range(16):
            word = int(words[row, place]) & 0xFFFFFFFF
            found = bf16(execute(triton_packed._E2M1.value, _8=word, _9=scale * 0x00800080))
            wanted = values[codes_of_word(codes[row], place).int()] * 2.0 ** (byte - 127)
            exact = wanted.abs() >= 2.0**-117  # below, a product is less than the least normal number
            assert torch.equal((found * triton_packed.UNBIAS.value)[exact], wanted[exact])


def bytes_of(word: int) -> list[int]:
    return list(word.to_bytes(4, "little"))


def signed(byte: int) -> int:
    return (byte ^ 128) - 128


@pytest.mark.parametrize("low", range(16))
def test_a_byte_widens_to_sixteen_times_its_two_signed_codes(low):
    for high in range(16):
        codes = torch.tensor([[low] * 16 + [high] * 16], dtype=torch.uint8)
        word = int.from_bytes(bytes(packing.pack_bytes(codes ^ 8, 32)[0, 0, 0, :4].tolist()), "little")
        found = execute(triton_packed._INT8.value, _2=word)
        assert [signed(byte) for byte in bytes_of(found["$0"])] == [16 * (low - 8)] * 4
        assert [signed(byte) for byte in bytes_of(found["$1"])] == [16 * (high - 8)] * 4


@pytest.mark.parametrize("zero", range(16))
def test_a_byte_widens_to_its_two_codes_less_its_own_zero(zero):
    zeros = [zero, 15 - zero, zero, 3]
    for code in range(16):
        lows, highs = [code, 15 - code, 0, 15], [15 - code, 0, 15, code]
        packed = formats.pack_nibbles(torch.tensor([lows, highs], dtype=torch.uint8).T.contiguous())[:, 0]
        found = execute(
            triton_packed._INT8_LESS_ZERO.value,
            _2=int.from_bytes(bytes(packed.tolist()), "little"), _3=int.from_bytes(bytes(zeros), "little"),
        )  # fmt: skip
        assert [signed(byte) for byte in bytes_of(found["$0"])] == [c - z for c, z in zip(lows, zeros, strict=True)]
        assert [signed(byte) for byte in bytes_of(found["$1"])] == [c - z for c, z in zip(highs, zeros, strict=True)]
