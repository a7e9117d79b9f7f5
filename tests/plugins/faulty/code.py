"""The implementation that commits the faults."""

from __future__ import annotations

import os
import time

import torch
from moetune_kernels.torch_cpu import CpuOperands, TorchCpu

from moetune.model.config import Config

from . import FAULTS


class Faulty(TorchCpu):
    """Computes the right result, then spoils it; "elsewhere" is at another token count than the bucket's 16."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self.fault = "none"

    def launch(self, stage: int, config: Config, operands: CpuOperands) -> None:
        super().launch(stage, config, operands)
        if stage == 1:
            self.launches += 1
            self.fault = FAULTS[config["fault"]]
            getattr(self, self.fault)(operands)

    def none(self, o: CpuOperands) -> None: ...

    def writes_outside(self, o: CpuOperands) -> None:
        _behind(o.h).fill_(1.0)

    def reads_outside(self, o: CpuOperands) -> None:
        o.h[0, 0] += _behind(o.x)[0] * 0

    def hangs(self, o: CpuOperands) -> None:
        time.sleep(3600)

    def aborts(self, o: CpuOperands) -> None:
        os.abort()

    def nan(self, o: CpuOperands) -> None:
        o.h[0, 0] = float("nan")

    def zeros(self, o: CpuOperands) -> None:
        o.h.zero_()

    def wrong_row(self, o: CpuOperands) -> None:
        o.h[-1] *= 1.5

    def wrong_tile(self, o: CpuOperands) -> None:
        o.h[0, :16] = 0

    def differs(self, o: CpuOperands) -> None:
        o.h[0, 0] *= 1 + self.launches % 2 / 64

    def raises(self, o: CpuOperands) -> None:
        raise RuntimeError("this config cannot run\nsecond line")

    def out_of_memory(self, o: CpuOperands) -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    def changes_weights(self, o: CpuOperands) -> None:
        o.w1[0, 0, 0] += 1

    def unwritten(self, o: CpuOperands) -> None:
        o.h[-1, -1] = float("nan")

    def changes_weights_then_raises(self, o: CpuOperands) -> None:
        self.changes_weights(o)
        self.raises(o)

    def writes_outside_then_raises(self, o: CpuOperands) -> None:
        self.writes_outside(o)
        self.raises(o)

    def exits(self, o: CpuOperands) -> None:
        raise SystemExit(0)

    def aborts_in_layers(self, o: CpuOperands) -> None: ...

    def combine(self, operands: CpuOperands) -> None:
        super().combine(operands)
        if self.fault == "aborts_in_layers":
            os.abort()

    def aborts_elsewhere(self, o: CpuOperands) -> None:
        if o.problem.tokens != 16:
            os.abort()

    def wrong_elsewhere(self, o: CpuOperands) -> None:
        if o.problem.tokens != 16:
            o.h.zero_()

    def changes_weights_elsewhere(self, o: CpuOperands) -> None:
        if o.problem.tokens != 16:
            o.w1[0, 0, 0] += 1


def _behind(tensor: torch.Tensor) -> torch.Tensor:
    """Return the four elements behind a tensor, which lie in its guard zone."""
    end = tensor.storage_offset() + -(-tensor.numel() * tensor.itemsize // 512) * 512 // tensor.itemsize
    return torch.as_strided(tensor, (4,), (1,), end)
