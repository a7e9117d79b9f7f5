"""Compiling Triton kernels for a target without a device."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from moetune.model.target import Target
from moetune.model.trial import Resources

_BACKENDS = {"nvidia": "cuda", "amd": "hip"}


@dataclass(frozen=True)
class Mock:
    """Stands for a tensor in a warm-up call: what Triton specialises on, without the memory.

    The signature of a launch depends on a tensor's dtype, on its address being a multiple of 16, and on AMD on
    its storage of `size_bytes` lying within 2 GB.
    """

    dtype: torch.dtype
    size_bytes: int
    aligned: bool = True

    def data_ptr(self) -> int:
        """Return an address of the same alignment."""
        return 0 if self.aligned else 1

    def ptr_range(self) -> int:
        """Return the bytes that the pointer may reach."""
        return self.size_bytes


@dataclass(frozen=True)
class _Named:
    """A driver that only names its target; a device of its own keeps Triton's per-device caches apart."""

    target: GPUTarget

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return f"{self.target.backend}:{self.target.arch}"

    def get_current_stream(self, device: object = None) -> int:
        return 0


def gpu_target(target: Target) -> GPUTarget:
    """Return Triton's name of a target: sm_90 is ("cuda", 90, 32), gfx950 is ("hip", "gfx950", 64)."""
    arch: Any = target.arch
    if target.vendor == "nvidia":
        arch = int(target.arch.removeprefix("sm_"))
    return GPUTarget(_BACKENDS[target.vendor], arch, target.warp_size)


@contextmanager
def target_driver(target: Target) -> Iterator[None]:
    """Make Triton compile for a target in this process, with or without a device."""
    before = driver._active
    driver.set_active(_Named(gpu_target(target)))
    try:
        yield
    finally:
        driver.set_active(before)


def warm(function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any], target: Target) -> Any:
    """Compile a JIT function for mock arguments into Triton's cache, where the same launch then finds it."""
    with target_driver(target):
        return function.warmup(*arguments, grid=(1,), **options)


def isa(compiled: Any) -> str:
    """Return the text the compiler emits last: PTX or AMDGCN assembly."""
    text: str = compiled.asm["ptx" if "ptx" in compiled.asm else "amdgcn"]
    return text


def resources(compiled: Any) -> Resources:
    """Return what the compiler reports of a binary, without loading it."""
    meta = compiled.metadata
    found = _amd(compiled.asm["amdgcn"]) if "amdgcn" in compiled.asm else _nvidia(compiled.asm["cubin"])
    return Resources(int(meta.shared), *found, threads=meta.num_warps * meta.target.warp_size)


def _amd(text: str) -> tuple[int, int]:
    def figure(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(match[1]) if match else 0

    return figure("vgpr_count"), figure("vgpr_spill_count")


def _nvidia(cubin: bytes) -> tuple[int, int]:
    """Read registers and bytes of stack (spills) per thread from cuobjdump's resource line."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)
