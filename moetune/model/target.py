"""What a kernel may assume of a device, and how fast the device can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Target:
    """Limits and measured or published rates of one device.

    `name` is the file's stem or the product, `arch` the compiler's name (`sm_90`, `gfx950`, `cpu`).
    `shared_bytes` is the shared memory (LDS) one block may use, `bandwidth` is bytes/s of sustained reads,
    `peaks` operations/s by rate key (`bf16`, `fp8`, `int8`, `mxfp8_mxfp4`; a missing key means not stated). 0
    registers, cache or bandwidth means not stated.
    """

    name: str
    arch: str
    vendor: str
    warp_size: int
    shared_bytes: int
    max_threads: int
    registers: int
    cu_num: int
    l2_bytes: int
    bandwidth: float
    peaks: Mapping[str, float] = field(default_factory=dict)
    products: tuple[str, ...] = ()
    source: str = ""

    def __hash__(self) -> int:
        return hash((self.name, self.arch, self.cu_num))
