"""The implementation: both stages in one launch."""

from __future__ import annotations

from moetune_kernels.torch_cpu import CpuOperands, TorchCpu

from moetune.kernel import BOTH
from moetune.model.config import Config


class Coupled(TorchCpu):
    """Launches stage 1, then stage 2."""

    def launch(self, stage: int, config: Config, operands: CpuOperands) -> None:
        assert stage == BOTH
        super().launch(1, config, operands)
        super().launch(2, config, operands)
