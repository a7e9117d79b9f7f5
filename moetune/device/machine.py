"""What machine this is, and which of its devices can be used."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moetune.model.target import Target

BUSY_BYTES = 2 << 30
"""A GPU on which others hold more memory than this is not idle: more than a desktop and a few idle contexts take."""


@dataclass(frozen=True)
class Device:
    """One device: how torch names it, its product, and what the driver must know of it.

    `uuid` serves the lock only and is never stored. `used_bytes` is what other processes hold.
    """

    name: str
    product: str
    arch: str
    uuid: str
    cu_num: int
    warp_size: int
    shared_bytes: int
    l2_bytes: int
    used_bytes: int

    @property
    def idle(self) -> bool:
        """Whether nobody else seems to use the device."""
        return self.used_bytes < BUSY_BYTES


def has_gpu() -> bool:
    """Return whether a GPU driver is loaded, without loading anything."""
    return any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/kfd"))


def cpu_device() -> Device:
    """Describe the CPU as a device."""
    return Device("cpu", cpu_product(), "cpu", "cpu", usable_cores(), 1, 0, last_level_cache_bytes(), 0)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_product() -> str:
    """Return the CPU's model name, or its architecture where it is not told."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def last_level_cache_bytes() -> int:
    """Return the size of the last-level cache, 32 MiB where the system does not tell."""
    sizes = []
    for size in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = size.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes, default=32 << 20)


class Probe:
    """Lists the GPUs that torch can see; runs in a child process."""

    def devices(self) -> list[Device]:
        """Return every visible GPU."""
        import torch

        found = []
        for index in range(torch.cuda.device_count()):
            facts: Any = torch.cuda.get_device_properties(index)  # the stubs lack what CUDA builds tell
            free, total = torch.cuda.mem_get_info(index)
            hip = torch.version.hip is not None
            shared = facts.shared_memory_per_block if hip else facts.shared_memory_per_block_optin
            found.append(
                Device(
                    name=f"cuda:{index}",
                    product=facts.name,
                    arch=facts.gcnArchName.split(":")[0] if hip else f"sm_{facts.major}{facts.minor}",
                    uuid=str(facts.uuid),
                    cu_num=facts.multi_processor_count,
                    warp_size=facts.warp_size,
                    shared_bytes=shared,
                    l2_bytes=facts.L2_cache_size,
                    used_bytes=total - free - torch.cuda.memory_reserved(index) - _CONTEXT_BYTES,
                )
            )
        return found


_CONTEXT_BYTES = 600 << 20  # what this process's own context takes at most, so that it does not count as used


def target_for(device: Device) -> Target:
    """Return the target of a device: its data file's, or one built from what the device tells, without rates."""
    from dataclasses import replace

    from moetune.targets import all_targets, target_of

    known = target_of(device.product)
    if known is not None:
        return replace(known, cu_num=device.cu_num)
    like = next((t for t in all_targets().values() if t.arch == device.arch), None)
    if device.arch == "cpu" and like is not None:
        return replace(like, cu_num=device.cu_num, l2_bytes=device.l2_bytes)
    return Target(
        name=device.product,
        arch=device.arch,
        vendor="nvidia" if device.arch.startswith("sm_") else "amd",
        warp_size=device.warp_size,
        shared_bytes=device.shared_bytes,
        max_threads=1024,
        registers=65536,
        cu_num=device.cu_num,
        l2_bytes=device.l2_bytes,
        bandwidth=0.0,
    )


def software() -> dict[str, Any]:
    """Return the versions that decide what a kernel compiles to; child processes only."""
    import sys

    import torch

    from moetune import __version__

    try:
        from triton import __version__ as triton
    except ImportError:
        triton = ""
    facts: dict[str, Any] = {
        "moetune": __version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "torch": torch.__version__,
        "triton": triton,
        "runtime": torch.version.hip or torch.version.cuda or "",
        "driver": "",
    }
    version = Path("/sys/module/nvidia/version")
    if version.exists():
        facts["driver"] = version.read_text().strip()
    return facts


def sm_clock_mhz(uuid: str) -> int | None:
    """Return the SM clock of a GPU, or None without NVML (the extra `nvml`)."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        return int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    except pynvml.NVMLError:
        return None
