"""The implementation whose compiler fails."""

from __future__ import annotations

import errno
import os
import time

from moetune_kernels.torch_cpu import TorchCpu

from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.model.trial import Resources

from . import WAYS


class Compiled(TorchCpu):
    """Compiles nothing, in many ways."""

    def compile(self, stage: int, config: Config, problem: Problem, target: Target) -> Resources:
        way = WAYS[config["way"]]
        if way == "aborts":
            os.abort()
        if way == "hangs":
            time.sleep(3600)
        if way == "raises":
            raise RuntimeError("PassManager::run failed\nwith details")
        if way == "disk_full":
            raise OSError(errno.ENOSPC, "No space left on device")
        return Resources(shared_bytes=1 << 20 if way == "too_much_shared_memory" else 1024)
