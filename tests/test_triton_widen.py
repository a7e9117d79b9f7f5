"""The PTX that widens MX elements, run instruction by instruction over every byte."""

import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def execute(ptx: str, inputs: dict[str, int]) -> dict[str, int]:
    """Run straight-line PTX over 32-bit registers; knows what the two snippets use."""
    registers = dict(inputs)

    def value(word: str) -> int:
        return registers[word] if word in registers else int(word, 0)

    for name, target, arguments in re.findall(r"(\w+)\.b32 ([$\w]+), ([^;]+);", ptx):
        a, b, *more = (value(word) for word in arguments.split(", "))
        if name == "prmt":
            source = (a | b << 32).to_bytes(8, "little")
            assert a < 1 << 32 and b == 0
            result = int.from_bytes(bytes(source[more[0] >> 4 * i & 7] for i in range(4)), "little")
        elif name == "lop3":
            assert more[1] == 0xEA  # (a and b) or c
            result = a & b | more[0]
        else:
            result = {"shl": a << b, "shr": a >> b, "and": a & b}[name]
        registers[target] = result & 0xFFFFFFFF
    return registers


def halves(*words: int) -> list[float]:
    """Return the bf16 values of 32-bit registers, low half first."""
    bits = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    return torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double().tolist()


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_widens_to_its_elements(byte):
    from moetune_kernels import triton_widen

    others = [(byte + 85) % 256, 255 - byte, byte ^ 0x5A]
    quad = [byte, *others]
    word = int.from_bytes(bytes(quad), "little")
    e2m1 = execute(triton_widen._E2M1.value, {"$4": word})
    signed = E2M1 + [-v for v in E2M1]
    assert halves(e2m1["$0"], e2m1["$1"]) == [signed[b & 15] * 2.0**-126 for b in quad]
    assert halves(e2m1["$2"], e2m1["$3"]) == [signed[b >> 4] * 2.0**-126 for b in quad]
    e4m3 = execute(triton_widen._E4M3.value, {"$2": word})
    codes = torch.tensor(quad, dtype=torch.uint8).view(torch.float8_e4m3fn).double() * 2.0**-120
    found = torch.tensor(halves(e4m3["$0"], e4m3["$1"]), dtype=torch.float64)
    assert torch.equal(found[~codes.isnan()], codes[~codes.isnan()])
