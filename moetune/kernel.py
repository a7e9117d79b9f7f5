"""The kernel contract, and discovery of kernels by entry point.

A kernel is two objects. The *description* is pure Python, named by an entry point of the group
`moetune.kernels`; it must import without torch and triton. The *implementation* is what the description names
by import path (`package.module:Class`); it is loaded only in child processes, and called without arguments.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from moetune.errors import KernelError, nearest
from moetune.model.config import Config
from moetune.model.floor import Traffic
from moetune.model.format import Format
from moetune.model.problem import Problem
from moetune.model.shape import Shape
from moetune.model.target import Target
from moetune.model.trial import Resources

if TYPE_CHECKING:
    import torch

    from moetune.device.arena import Arena

GROUP = "moetune.kernels"
BOTH = 0
"""The stage number of a kernel whose two stages share one config."""
LAYER = 3
"""The stage number of the whole layer, combine included."""
LOOP = "-loop"
"""Ends the name of a kernel that launches each expert alone."""


@dataclass(frozen=True)
class Constraint:
    """A named rule over configs: `check` returns why a config cannot run on a problem and target, or None."""

    name: str
    check: Callable[[Config, Problem, Target], str | None]


@dataclass(frozen=True)
class Footprint:
    """What a config is predicted to need: shared memory in bytes, threads per block."""

    shared_bytes: int
    threads: int


@dataclass(frozen=True)
class Limits:
    """Accuracy limits of a kernel.

    The limit of rel_l2 against the reference lies between `floor` and `cap`, against the default's output it is
    `versus_default`. The worst row may be `worst_row` times the limit.
    """

    floor: float
    cap: float
    versus_default: float = 0.005
    worst_row: float = 4.0

    @property
    def caps(self) -> dict[str, float]:
        """The highest errors against the reference: what a default, or another way to compute the layer, may have."""
        return {"rel_l2": self.cap, "worst_row": self.worst_row * self.cap}


class Kernel(Protocol):
    """The description of a kernel: plain attributes and pure functions."""

    @property
    def name(self) -> str:
        """Return the kernel's name, that of its entry point."""

    @property
    def format(self) -> Format:
        """Return the operands' number formats."""

    @property
    def stages(self) -> tuple[int, ...]:
        """Return (1, 2), or (BOTH,) where one config drives both."""

    @property
    def coupling(self) -> str:
        """Return ``none``, ``tile_m`` (both stages use one tile_m) or ``config`` (stages is (BOTH,))."""

    @property
    def compiles_ahead(self) -> bool:
        """Return whether `compile` fills the cache; else the first launch compiles, under a deadline of its own."""

    @property
    def device(self) -> str:
        """Return ``gpu`` or ``cpu``."""

    @property
    def limits(self) -> Limits:
        """Return the accuracy limits."""

    @property
    def implementation(self) -> str:
        """Return the implementation's import path, ``package.module:Class``."""

    def unserved(self, target: Target) -> str | None:
        """Return why the kernel cannot run on a target, or None."""

    def unsupported(self, shape: Shape, tp: int) -> str | None:
        """Return why the kernel cannot compute a shape at a TP, or None."""

    def axes(self, stage: int) -> Mapping[str, tuple[int, ...]]:
        """Return the axes of a stage and their values, in a fixed order."""

    def constraints(self, stage: int) -> tuple[Constraint, ...]:
        """Return the rules of a stage, cheapest first."""

    def default(self, stage: int, problem: Problem, target: Target) -> Config:
        """Return the config used with no table; it satisfies every constraint."""

    def footprint(self, stage: int, config: Config, problem: Problem, target: Target) -> Footprint:
        """Return what a config is predicted to need."""

    def binary(self, stage: int, config: Config, problem: Problem) -> Hashable:
        """Return what decides the compiled binary: configs and problems that agree in it share one."""

    def traffic(self, stage: int, problem: Problem, rows_per_expert: Sequence[int]) -> Traffic:
        """Return bytes and operations of stage 1 or 2 (asked of each, also where they share a config)."""

    def computed_rows(self, stage: int, config: Config, rows_per_expert: Sequence[int]) -> int:
        """Return the rows that the tiles of stage 1 or 2 compute, padding included."""

    def source_hash(self) -> str:
        """Return a hash of the sources that decide what is computed and how fast."""


def rules_of(kernel: Kernel, stage: int) -> tuple[Constraint, ...]:
    """Return a kernel's own constraints of a stage, then those that follow from its footprint."""

    def shared(config: Config, problem: Problem, target: Target) -> str | None:
        need = kernel.footprint(stage, config, problem, target).shared_bytes
        if need <= target.shared_bytes:
            return None
        return f"shared memory {need:,} of {target.shared_bytes:,} bytes"

    def threads(config: Config, problem: Problem, target: Target) -> str | None:
        need = kernel.footprint(stage, config, problem, target).threads
        return f"{need:,} of {target.max_threads:,} threads" if need > target.max_threads else None

    return (*kernel.constraints(stage), Constraint("threads", threads), Constraint("shared memory", shared))


class Operands(Protocol):
    """The tensors of one problem, made by the implementation; the device worker looks only at these.

    `problem` and `seed` say what was drawn, `ids` [tokens, topk] int32 the routing (`Problem.draw_ids`: -1 for experts
    elsewhere), `output` [tokens, model_dim] what combine writes.
    """

    problem: Problem
    seed: int
    ids: torch.Tensor
    output: torch.Tensor


class Implementation(Protocol):
    """The code behind a description; loaded only in child processes."""

    def compile(self, stage: int, config: Config, problem: Problem, target: Target) -> Resources:
        """Compile a config for a target without a device, into the cache that `launch` will hit."""

    def make_operands(self, problem: Problem, seed: int, arena: Arena, weights_of: Operands | None = None) -> Operands:
        """Draw operands into the arena; with `weights_of`, reuse its expert weights and draw the rest."""

    def quantise(self, operands: Operands) -> bool:
        """Quantise x for stage 1 on the device; return False where the format needs none."""

    def sort(self, operands: Operands, *configs: Config) -> None:
        """Sort the routed rows by expert (stable) and map the tiles of each config, until the next call."""

    def launch(self, stage: int, config: Config, operands: Operands) -> None:
        """Run stage 1 or 2 (or both, stage 0) after `sort` has mapped the config."""

    def combine(self, operands: Operands) -> None:
        """Sum the topk slots of each token in fixed order into `operands.output`."""

    def outputs(self, stage: int, operands: Operands) -> tuple[torch.Tensor, ...]:
        """Return the tensors that a stage writes, scales included (stage 3: combine's)."""

    def decode(self, stage: int, operands: Operands) -> torch.Tensor:
        """Return a stage's output as fp32 [rows, columns] (stage 3: [tokens, model_dim])."""

    def reference(self, stage: int, operands: Operands) -> torch.Tensor:
        """Return the fp32 oracle of a stage, computed from the same quantised operands.

        Stage 2 starts from the stage 1 output that the operands hold; stage 3 (and stage 0) is the whole layer
        from x, with the requantisation between the stages emulated.
        """

    def rivals(self, operands: Operands, configs: Mapping[int, Config]) -> Mapping[str, Callable[[], None]]:
        """Return other ways to compute the whole layer on the same operands, by name; optional: none without it.

        `configs` are by stage. Each call sorts where it needs to and leaves the layer in `operands.output`, as
        `combine` does; like a launch it is captured in a graph once it has run, so it waits for nothing, and from
        the second time on allocates no memory but what a graph keeps for it.
        """


@dataclass(frozen=True)
class _Entry:
    name: str
    path: str
    load: Callable[[], Any]


def _entries() -> dict[str, _Entry]:
    return {e.name: _Entry(e.name, e.value, e.load) for e in entry_points(group=GROUP)}


def kernel_names() -> list[str]:
    """Return the names of the kernels installed, sorted."""
    return sorted(_entries())


def load_kernel(name: str) -> Kernel:
    """Return the description named; raise KernelError where there is none or it does not load.

    ``X-loop`` is what `loop()` of the description of X returns, where it has that: a kernel of this name and X's
    format, whose implementation launches each expert alone.
    """
    entries = _entries()
    plain = name.removesuffix(LOOP)
    if name not in entries and plain in entries:
        loop: Callable[[], Kernel] | None = getattr(load_kernel(plain), "loop", None)
        if loop is None:
            raise KernelError(f"no kernel {name!r}: kernel {plain!r} has no launches expert by expert; name {plain!r}")
        return loop()
    if name not in entries:
        raise KernelError(f"no kernel {name!r}: {nearest(plain, entries) if entries else 'none is installed'}")
    try:
        kernel = entries[name].load()
    except Exception as error:  # a plug-in may fail in any way
        raise KernelError(f"kernel {name!r} ({entries[name].path}) does not load: {error}") from error
    members = [name for name in vars(Kernel) if not name.startswith("_")]
    missing = [name for name in members if not hasattr(kernel, name)]
    if missing:
        raise KernelError(f"kernel {name!r} ({entries[name].path}) lacks {', '.join(missing)} of the contract")
    found: Kernel = kernel
    return found


def load_implementation(path: str) -> Implementation:
    """Import `module:Class` and return an instance; child processes only."""
    module, _, attribute = path.partition(":")
    implementation: Implementation = getattr(importlib.import_module(module), attribute)()
    return implementation
