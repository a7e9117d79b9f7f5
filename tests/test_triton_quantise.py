"""Quantising rows in Triton's interpreter, bit by bit beside `formats`; a script of `interpreter` as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import interpret
from moetune_kernels import formats

KINDS = ("int8", "e4m3fn", "e4m3fnuz", "mxfp8", "mxfp8 as bf16")
WIDTHS = {"int8": (32, 288, 2880), "e4m3fn": (96, 128, 288), "e4m3fnuz": (96, 128, 288)}
"""Widths of a row; 288 ends in a short group. MX blocks of 32 divide every width."""
USED = 5


def awkward(k: int) -> torch.Tensor:
    """Return rows of ordinary numbers and of others: zeros, NaN, infinity, tiny, huge, ties and saturating blocks."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(40, k, generator=generator)
    x[10:20] *= torch.logspace(-30, 30, 10)[:, None]
    x[20] = 0.0
    x[21] = -0.0
    x[22, 0] = torch.nan
    x[22, -1] = torch.inf
    x[23, k // 2] = -torch.inf
    x[24] = 3e38
    x[25] = torch.linspace(2e-38, 1e-37, k)  # about the least scale; the interpreter misreads subnormals
    x[26] = torch.linspace(-448, 448, k)
    x[27] = torch.linspace(-2e-2, 2e-2, k)
    x[27, ::32] = 1.9  # leaves the rest of each block among the subnormals of e4m3
    x[28] = torch.arange(k) % 255 - 127 + 0.5  # ties of int8
    x[28, ::32] = 127
    x[29] = (torch.arange(k) % 31 + 0.5) / 16 + 8  # ties of e4m3 in units of a scale of 1
    x[29, ::32] = 448
    x[30] = (torch.arange(k) % 31 + 0.5) / 8 + 8
    x[30, ::32] = 240
    x[31] = 500.0
    x[32] = -torch.rand(k, generator=generator)
    return x


def quantised(kind: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the codes and scales of `formats`."""
    if kind == "int8":
        return formats.quantise_int8(x)
    if kind.startswith("e4m3"):
        return formats.quantise_e4m3(x, dtype=getattr(torch, f"float8_{kind}"))
    codes, scales = formats.quantise_mxfp8(x)
    return (codes, scales) if kind == "mxfp8" else (formats.dequantise_mxfp8(codes, scales).bfloat16(), None)


def differences(kind: str, k: int, dtype: torch.dtype, used: bool, device: str = "cpu") -> list[str]:
    """Return which of codes and scales differ from `formats`, or were written beyond the rows in use."""
    from moetune_kernels import triton_quantise as quantise

    x = awkward(k).to(dtype)
    codes, scales = quantised(kind, x)
    memory = [None if t is None else torch.empty(len(x) + 8, *t.shape[1:], dtype=t.dtype) for t in (codes, scales)]
    for tensor in memory:
        if tensor is not None:
            tensor.view(torch.uint8).fill_(0xA5)
    empty = [None if t is None else t.clone() for t in memory]
    x, *memory = [None if t is None else t.to(device) for t in (x, *memory)]
    offsets = torch.tensor([0, 1, USED], dtype=torch.int32, device=device)
    common: tuple[Any, ...] = (len(x), k, device == "cpu", (offsets, 2) if used else None)
    if kind == "int8":
        call = quantise.int8_rows(x, *memory, *common)
    elif kind.startswith("e4m3"):
        call = quantise.e4m3_rows(x, *memory, *common, kind == "e4m3fnuz")
    elif kind == "mxfp8":
        call = quantise.mxfp8_rows(x, *memory, *common)
    else:
        call = quantise.round_rows(x, memory[0], *common)
    function, grid, arguments, options = call
    function[grid](*arguments, **options)
    memory = [None if t is None else t.cpu() for t in memory]
    rows = USED if used else len(x)
    wrong = []
    for name, found, wanted, before in zip(("codes", "scales"), memory, (codes, scales), empty, strict=True):
        if found is None or wanted is None or before is None:
            continue
        if not torch.equal(found[rows:].view(torch.uint8), before[rows:].view(torch.uint8)):
            wrong.append(f"{name} beyond")
        if kind == "mxfp8 as bf16":
            wanted = wanted + 0.0  # a zero comes out positive
        bad = (bits(found[:rows]) != bits(wanted[:rows])).view(rows, -1).any(1)
        if bad.any():
            wrong.append(f"{name} of rows {bad.nonzero().flatten().tolist()}")
    return wrong


def bits(x: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, every NaN alike."""
    if x.dtype.is_floating_point:
        nan = x.float().isnan()
        x = torch.where(nan, torch.tensor(torch.nan), x.float())
    return x.contiguous().view(torch.uint8)


CASES = {
    f"{kind}, {k} wide, {str(dtype).removeprefix('torch.')}, {'the rows in use' if used else 'all rows'}": (
        kind, k, dtype, used,
    )
    for kind in KINDS
    for k in WIDTHS.get(kind, (32, 288))
    for dtype, used in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False))
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return interpret(tmp_path_factory, Path(__file__))


@pytest.mark.parametrize("case", CASES)
def test_codes_and_scales_are_those_of_formats_bit_by_bit(found, case):
    assert found[case] == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: differences(*case) for name, case in CASES.items()}))
