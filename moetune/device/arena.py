"""Memory for operands, each between two guard zones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

POISON = 0xFF
"""The byte that fills guards and outputs: NaN in bf16, fp16, fp32, e4m3fn and as an E8M0 scale."""

_ALIGN = 512


@dataclass(frozen=True)
class _Span:
    buffer: torch.Tensor
    guard: int
    size: int
    output: bool

    def sides(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.buffer[: self.guard], self.buffer[self.guard + self.size :]


class Arena:
    """Allocates tensors on one device, each between guards of `tile_rows` rows (elements, of a vector)."""

    def __init__(self, device: torch.device, tile_rows: int) -> None:
        self.device = device
        self.tile_rows = tile_rows
        self._spans: dict[str, _Span] = {}
        self._fill = POISON

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, *, output: bool = False) -> torch.Tensor:
        """Return an uninitialised tensor of `shape`; `output` says that kernels write it.

        A name used again replaces the earlier tensor, whose memory goes with its last reference.
        """
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        row = dtype.itemsize * (shape[-1] if len(shape) > 1 else 1)
        guard = -(-max(self.tile_rows * row, 4096) // _ALIGN) * _ALIGN
        body = -(-size // _ALIGN) * _ALIGN
        buffer = torch.empty(guard + body + guard, dtype=torch.uint8, device=self.device)
        span = _Span(buffer, guard, size, output)
        self._spans[name] = span
        for side in span.sides():
            side.fill_(self._fill)
        return buffer[guard : guard + size].view(dtype).view(shape)

    def fill_guards(self, value: int = POISON) -> None:
        """Fill every guard with one byte, which `damaged_guards` then expects."""
        self._fill = value
        for span in self._spans.values():
            for side in span.sides():
                side.fill_(value)

    def damaged_guards(self) -> list[str]:
        """Return the names of the tensors whose guards no longer hold what filled them."""
        names = list(self._spans)
        if not names:
            return []
        flags = torch.stack([
            (before != self._fill).any() | (after != self._fill).any()
            for before, after in (span.sides() for span in self._spans.values())
        ])  # fmt: skip
        if not bool(flags.any()):
            return []
        return [name for name, flag in zip(names, flags.tolist(), strict=True) if flag]

    def checksum(self) -> tuple[int, ...]:
        """Return a sum over the bytes of every operand that kernels only read."""
        sums = []
        for span in self._spans.values():
            if not span.output:
                body = span.buffer[span.guard : span.guard + span.size // 8 * 8].view(torch.int64)
                tail = span.buffer[span.guard + span.size // 8 * 8 : span.guard + span.size]
                sums.append(body.sum() + tail.sum())
        return tuple(torch.stack(sums).tolist()) if sums else ()
