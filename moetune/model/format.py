"""Number formats of activations and weights, with their stored width."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Operand:
    """How one operand is stored: bits per element, and one scale per `group` elements along K.

    `group` 0 means no scale, -1 one scale per row; each scale has a zero point of `zero_bits`, if any.
    """

    dtype: str
    bits: int
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0

    def bytes(self, rows: int, k: int) -> int:
        """Return the stored bytes of a [rows, k] matrix with its scales and zero points."""
        data = rows * k * self.bits // 8
        if self.group == 0:
            return data
        scales = rows if self.group < 0 else rows * -(-k // self.group)
        return data + scales * (self.scale_bits + self.zero_bits) // 8


@dataclass(frozen=True)
class Format:
    """A pair of operand formats that a kernel multiplies.

    `tile` is the number of weight rows that share a scale (128 for 128 x 128 blocks, else 1). `k_multiple` is what K
    must be a multiple of. `rate` is the key of the target's peak. `aiter_a`, `aiter_w` and `aiter_q` are the
    strings of `q_dtype_a`, `q_dtype_w` and `q_type` in aiter's tables.
    """

    name: str
    activations: Operand
    weights: Operand
    k_multiple: int
    rate: str
    aiter_a: str
    aiter_w: str
    aiter_q: str
    tile: int = 1


_BF16 = Operand("bf16", 16)
_FP4, _FP8, _INT8 = "torch.float4_e2m1fn_x2", "torch.float8_e4m3fn", "torch.int8"


def _int4(plain: Format) -> list[Format]:
    """Return a format with groups of 128, 64 (`_g64`) and 32 (`_g32`), symmetric and with zero points (`_zp`)."""
    return [
        replace(
            plain,
            name=plain.name + ("" if group == 128 else f"_g{group}") + ("_zp" if zero_bits else ""),
            weights=replace(plain.weights, group=group, zero_bits=zero_bits),
            k_multiple=group,
            aiter_q=f"QuantType.per_1x{group}",
        )
        for zero_bits in (0, 4)
        for group in (128, 64, 32)
    ]


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("bf16", _BF16, _BF16, 16, "bf16", "torch.bfloat16", "torch.bfloat16", "QuantType.No"),
        Format(
            "fp8_block", Operand("e4m3", 8, 128, 32), Operand("e4m3", 8, 128, 32), 128, "fp8", _FP8, _FP8,
            "QuantType.per_1x128", tile=128,
        ),
        Format(
            "a8w4", Operand("mxfp8", 8, 32, 8), Operand("mxfp4", 4, 32, 8), 32, "mxfp8_mxfp4", _FP8, _FP4,
            "QuantType.per_1x32",
        ),
        Format(
            "a16w4", _BF16, Operand("mxfp4", 4, 32, 8), 32, "bf16", "torch.bfloat16", _FP4, "QuantType.per_1x32"
        ),
        *_int4(Format("w4a16", _BF16, Operand("int4", 4, 128, 16), 128, "bf16", "torch.bfloat16", "torch.int4", "")),
        Format("w8a8_int8", Operand("int8", 8, -1, 32), Operand("int8", 8, -1, 32), 16, "int8", _INT8, _INT8,
               "QuantType.per_Token"),
        *_int4(
            Format("w4a8_int8", Operand("int8", 8, -1, 32), Operand("int4", 4, 128, 16), 128, "int8", _INT8,
                   "torch.int4", "")
        ),
    )
}  # fmt: skip
