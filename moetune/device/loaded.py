"""A problem on the device: its operands, what the default makes of them, and the limits that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moetune.device.accuracy import calibrate, compare, default_fault
from moetune.device.answers import Entrant, Rival
from moetune.device.arena import POISON, Arena
from moetune.kernel import BOTH, LAYER, Implementation, Kernel, Operands
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.trial import Accuracy

SEEDS = 3
"""How many draws the default's error is taken over."""


def bits_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors as bytes, sharing their memory."""
    return [t.view(torch.uint8) for t in tensors]


def same_bits(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether tensors agree bit for bit, NaN included."""
    return all(torch.equal(a, b) for a, b in zip(bits_of(one), bits_of(other), strict=True))


@dataclass
class Loaded:
    """Operands of one problem in an arena, and by stage (1, 2, LAYER) the reference and the default's output in fp32.

    `intermediate` are copies of the default's stage 1 output, which every stage 2 starts from. `limits` are by
    stage; `checksum` is of the operands that kernels only read.
    """

    kernel: Kernel
    code: Implementation
    device: torch.device
    problem: Problem
    seed: int
    tile_rows: int
    defaults: tuple[Config, ...]
    arena: Arena
    operands: Operands
    references: dict[int, Tensor] = field(default_factory=dict)
    default_outputs: dict[int, Tensor] = field(default_factory=dict)
    intermediate: list[Tensor] = field(default_factory=list)
    accuracy: dict[int, list[Accuracy]] = field(default_factory=dict)
    limits: dict[int, dict[str, float]] = field(default_factory=dict)
    checksum: tuple[int, ...] = ()
    _rivals: dict[tuple[Config, ...], Mapping[str, Callable[[], None]]] = field(default_factory=dict)

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages whose output can be looked at."""
        return (LAYER,) if BOTH in self.kernel.stages else (1, 2, LAYER)

    def variant(self, problem: Problem, seed: int) -> Loaded:
        """Load another draw, or other tokens or routing, on the same expert weights and under the same limits."""
        other = _draw(self.kernel, self.code, self.device, problem, seed, self.tile_rows, self.defaults, self.operands)
        other.limits = self.limits
        return other

    def poison(self, *stages: int) -> None:
        """Fill the outputs of stages with NaN."""
        for stage in stages:
            for output in bits_of(self.code.outputs(stage, self.operands)):
                output.fill_(POISON)

    def run(self, stage: int, config: Config) -> None:
        """Launch a stage after its tiles are mapped; both stages and the combine for stage 0."""
        self.code.launch(stage, config, self.operands)
        if stage == BOTH:
            self.code.combine(self.operands)

    def products(self, configs: Sequence[Config]) -> None:
        """Launch the stages, without a combine, after their tiles are mapped."""
        for stage, config in zip(self.kernel.stages, configs, strict=True):
            self.code.launch(stage, config, self.operands)

    def layer(self, entrant: Entrant) -> None:
        """Run the whole layer: sort, both stages, combine; or a rival's way to it."""
        if isinstance(entrant, Rival):
            self.rivals(entrant.configs)[entrant.name]()
            return
        self.code.sort(self.operands, *entrant)
        self.products(entrant)
        self.code.combine(self.operands)

    def rivals(self, configs: tuple[Config, ...]) -> Mapping[str, Callable[[], None]]:
        """Return the kernel's other ways to the layer, made once so that they keep their memory; empty for none."""
        if configs not in self._rivals:
            offered = getattr(self.code, "rivals", None)
            by_stage = dict(zip(self.kernel.stages, configs, strict=True))
            self._rivals[configs] = dict(offered(self.operands, by_stage)) if offered else {}
        return self._rivals[configs]

    def restore(self, stage: int) -> None:
        """Give stage 2 the default's verified stage 1 output, which candidates of stage 1 overwrite."""
        if stage == 2:
            for tensor, kept in zip(self.code.outputs(1, self.operands), self.intermediate, strict=True):
                tensor.copy_(kept)

    def damage(self, stage: int) -> str:
        """Return what a run of a stage has written that it must not, or nothing."""
        guards = self.arena.damaged_guards()
        if guards:
            return f"writes outside its operands (the guard zone of {', '.join(guards)} changed)"
        if self.arena.checksum() != self.checksum:
            return "writes into its operands (their checksum changed)"
        if stage == 2 and not same_bits(self.code.outputs(1, self.operands), self.intermediate):
            return "writes into its input (stage 1's output changed)"
        return ""

    def take_default(self) -> None:
        """Run the default over poisoned outputs, and keep what it and the reference give."""
        self.poison(*self.stages)
        self.layer(self.defaults)
        for stage in self.stages:
            self.references[stage] = self.code.reference(stage, self.operands)
            self.default_outputs[stage] = self.code.decode(stage, self.operands)
            accuracy = compare(self.default_outputs[stage], self.references[stage], None)
            self.accuracy.setdefault(stage, []).append(accuracy)


def load(
    kernel: Kernel, code: Implementation, device: torch.device, problem: Problem, seed: int, tile_rows: int,
    defaults: Sequence[Config],
) -> Loaded:  # fmt: skip
    """Draw operands, and calibrate the limits on the default's errors over SEEDS draws."""
    loaded = _draw(kernel, code, device, problem, seed, tile_rows, tuple(defaults), None)
    loaded.take_default()
    if 1 in loaded.stages:
        loaded.intermediate = [t.clone() for t in code.outputs(1, loaded.operands)]
    for number in range(1, SEEDS):
        other = loaded.variant(problem, seed + number)
        other.take_default()
        for stage in loaded.stages:
            loaded.accuracy[stage] += other.accuracy[stage]
    loaded.limits = {stage: calibrate(loaded.accuracy[stage], kernel.limits) for stage in loaded.stages}
    return loaded


def default_reason(loaded: Loaded) -> str:
    """Return why the default itself is wrong, by the caps alone, or nothing."""
    for stage in loaded.stages:
        for accuracy in loaded.accuracy[stage]:
            reason = default_fault(accuracy, loaded.kernel.limits)
            if reason:
                where = "the layer" if stage == LAYER else f"stage {stage}"
                return f"the default's output is wrong: {where}: {reason}"
    return ""


def _draw(
    kernel: Kernel, code: Implementation, device: torch.device, problem: Problem, seed: int, tile_rows: int,
    defaults: tuple[Config, ...], weights_of: Operands | None,
) -> Loaded:  # fmt: skip
    arena = Arena(device, tile_rows)
    operands = code.make_operands(problem, seed, arena, weights_of)
    code.quantise(operands)
    loaded = Loaded(kernel, code, device, problem, seed, tile_rows, defaults, arena, operands)
    loaded.checksum = arena.checksum()
    return loaded
