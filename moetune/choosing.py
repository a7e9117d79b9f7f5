"""From the words of a command to the problems, kernels and devices of a sweep."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from moetune.catalog import load_shape
from moetune.device.child import Child, ChildDied, ChildError, ChildTimeout
from moetune.device.machine import Device, cpu_device, has_gpu
from moetune.errors import KernelError, MachineError, UsageError
from moetune.kernel import Kernel, kernel_names, load_kernel
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.space import exclusion

if TYPE_CHECKING:
    from moetune.search.starts import Known

PROBE_S = 120.0


def on_cpu(kernels: Sequence[str]) -> bool:
    """Return whether every kernel named runs on the CPU; False where none is named."""
    return bool(kernels) and all(load_kernel(name).device == "cpu" for name in kernels)


def visible_devices() -> list[Device]:
    """Return the GPUs that torch sees, asked in a child process; none where no GPU driver is loaded."""
    if not has_gpu():
        return []
    child = Child("moetune.device.machine:Probe", Path(os.devnull))
    try:
        found: list[Device] = child.call("devices", timeout_s=PROBE_S)
    except (ChildDied, ChildError, ChildTimeout) as error:
        raise MachineError(f"the GPUs cannot be listed: {error}; try --kernel cpu") from error
    finally:
        child.kill()
    return found


def choose_devices(devices: Sequence[Device], wanted: str, *, busy: bool = False) -> list[Device]:
    """Return the GPUs named (``0,1``), or the visible ones of the first one's product that are idle (or `busy`)."""
    if wanted:
        by_number = {d.name.rpartition(":")[2]: d for d in devices}
        unknown = [w for w in wanted.split(",") if w.strip() not in by_number]
        if unknown:
            have = ", ".join(by_number) or "none"
            raise UsageError(f"--gpus {wanted!r}: no GPU {unknown[0].strip()!r} is visible (visible: {have})")
        chosen = list(dict.fromkeys(by_number[w.strip()] for w in wanted.split(",")))
    else:
        chosen = [d for d in devices if d.idle or busy]
        if devices and not chosen:
            raise MachineError("every visible GPU is in use; wait, or name one with --gpus 0")
    other = [d for d in chosen if d.product != chosen[0].product or d.cu_num != chosen[0].cu_num]
    if other and wanted:
        raise UsageError(f"--gpus {wanted!r}: {other[0].product} and {chosen[0].product} cannot share one sweep")
    return [d for d in chosen if d not in other]


def choose_kernels(names: Sequence[str], shapes: Sequence[Shape], target: Target) -> dict[str, Kernel]:
    """Return the kernels named, or every one that serves the target in a format of a shape; raise KernelError."""
    if names:
        chosen = {name: load_kernel(name) for name in names}
        for kernel in chosen.values():
            reason = kernel.unserved(target)
            if reason:
                raise KernelError(f"--kernel {kernel.name}: {reason}")
        return chosen
    found = {}
    for name in kernel_names():
        kernel = load_kernel(name)
        if kernel.unserved(target) is None and any(kernel.format.name in s.formats for s in shapes):
            found[name] = kernel
    if not found:
        raise KernelError(
            f"no kernel serves {target.arch} in the formats of {', '.join(s.name for s in shapes)}; "
            "name one with --kernel"
        )
    return found


def choose_problems(
    names: Sequence[str], tps: Sequence[int], tokens: Sequence[int], routings: Sequence[Routing],
    kernels: dict[str, Kernel], target: Target, *, named: bool, eps: Sequence[int] = (),
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:  # fmt: skip
    """Return the problems in the order of their chains, and a line for each combination that cannot be.

    Kernels that the command has not `named` are tuned only for shapes served in their format. Without `eps`, expert
    parallel degrees, every rank holds all experts.
    """
    problems = []
    left_out = []
    shapes = list(dict.fromkeys(load_shape(name) for name in names))
    twins = [shape.name for number, shape in enumerate(shapes) if shape.name in {s.name for s in shapes[:number]}]
    if twins:
        raise UsageError(f"two shapes are named {twins[0]!r} and differ; rename one file, a ledger tells them by name")
    for shape in shapes:
        for tp in tps:
            if tp not in shape.tp:
                raise UsageError(f"--tp {tp}: {shape.name} has TP {', '.join(map(str, shape.tp))}")
        for ep in eps:
            if shape.experts % ep:
                raise UsageError(f"--ep {ep}: does not divide the {shape.experts} experts of {shape.name}")
        for kernel in kernels.values():
            if not named and kernel.format.name not in shape.formats:
                continue
            for tp in tps or shape.tp:
                reason = kernel.unsupported(shape, tp) or _without_default(shape, tp, kernel, target)
                if reason:
                    left_out.append(f"{shape.name} TP{tp} with {kernel.name}: {reason}")
                    continue
                for ep, routing, count in product(eps or (1,), routings, tokens or shape.tokens):
                    problems.append(Problem(shape, tp, kernel.name, kernel.format.name, count, routing, ep))
    if not problems:
        raise UsageError(f"nothing to tune: {left_out[0] if left_out else 'no problem'}")
    problems = list(dict.fromkeys(problems))
    for problem in problems:
        kernel = kernels[problem.kernel]
        for stage in kernel.stages:
            default = kernel.default(stage, problem, target)
            off = [axis for axis, values in kernel.axes(stage).items() if default.get(axis) not in values]
            wrong = exclusion(kernel, stage, default, problem, target)
            if off:
                raise KernelError(f"{problem.key}: the default of stage {stage} is not on axis {off[0]} ({default})")
            if wrong:
                raise KernelError(
                    f"{problem.key}: the default of stage {stage} cannot run ({wrong.reason}): "
                    f"a fault of kernel {kernel.name}"
                )
    return tuple(problems), tuple(left_out)


def _without_default(shape: Shape, tp: int, kernel: Kernel, target: Target) -> str | None:
    """Return why a kernel has no config for a shape on a target, or None; asked of the fewest tokens."""
    problem = Problem(shape, tp, kernel.name, kernel.format.name, min(shape.tokens))
    try:
        for stage in kernel.stages:
            kernel.default(stage, problem, target)
    except KernelError as error:
        return str(error)
    return None


def known_configs(paths: Sequence[Path]) -> tuple[Known, ...]:
    """Return the configs that tables and ledgers hold, to start from; raise what reading them raises."""
    from moetune.search.starts import Known
    from moetune.tables.reading import read_source

    return tuple(
        Known(v.facts, stage, config, us)
        for path in paths
        for v in read_source(path).verdicts
        for stage, config, us in ((1, v.config1, v.us), (2, v.config2, v.us))
        if config is not None
    )


def digest(known: Sequence[Known]) -> str:
    """Return a hash of configs to start from, empty for none."""
    text = "\n".join(f"{sorted(k.facts.items())} {k.stage} {k.config}" for k in known)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if known else ""


def the_cpu() -> list[Device]:
    """Return the CPU as the only device."""
    return [cpu_device()]


def default_out(device: Device) -> Path:
    """Return the default output folder of a machine, e.g. ``moetune-out/nvidia-h200``."""
    return Path("moetune-out") / re.sub(r"[^a-z0-9]+", "-", device.product.lower()).strip("-")
