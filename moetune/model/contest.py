"""A row of a table, or a command's configs, re-timed beside what it claims to beat."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.trial import Accuracy, Timing

ROW, DEFAULT, FIXED = "row", "default", "fixed default"
"""The names of a kernel's own contestants; rivals bring theirs."""


class Standing(StrEnum):
    """How a row stands against its default; `default`: it is the default's config; `failed`: the default is wrong."""

    FASTER = "faster"
    TIE = "tie"
    DEFAULT = "default"
    SLOWER = "slower"
    WRONG = "wrong"
    FAILED = "failed"

    @property
    def holds(self) -> bool:
        """Whether the row is right, and not slower than the default beyond the spread."""
        return self in (Standing.FASTER, Standing.TIE, Standing.DEFAULT)


@dataclass(frozen=True)
class Claim:
    """A row: a config for each stage of a problem (or one for both), and the seed of the draw.

    `us` is the time a table gives, `identity` what that was measured with. `command` repeats the row. `fault` says why
    the installed kernel cannot run the configs, where it cannot.
    """

    number: int
    problem: Problem
    configs: tuple[Config, ...]
    seed: int = 0
    us: float | None = None
    identity: str = ""
    command: str = ""
    fault: str = ""

    @property
    def name(self) -> str:
        """The row in words, e.g. ``row 3 (demo/tp1/cpu/t16/uniform)``."""
        return f"row {self.number} ({self.problem.key})"


@dataclass(frozen=True)
class Contestant:
    """One way to compute the layer.

    `layer` times the whole of it; `products` the stages together without sort and combine, `alone` each stage: only
    a kernel's own configs have those. `limits` are those its accuracy is held to, `reason` says why it is wrong or
    has no time.
    """

    name: str
    configs: tuple[Config, ...] = ()
    layer: Timing | None = None
    products: Timing | None = None
    alone: tuple[Timing | None, ...] = ()
    accuracy: Accuracy | None = None
    limits: dict[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Contest:
    """What became of a claim: its standing, and the contestants, the row first where it was run.

    `floors_us` are those of the two stages, `padded_floor_us` counts the rows that the row's tiles compute. `alike`
    says that the claim's time was measured as this one: same machine, versions, kernel source, problem and policy.
    """

    claim: Claim
    standing: Standing = Standing.FAILED
    reason: str = ""
    contestants: tuple[Contestant, ...] = ()
    floors_us: tuple[float | None, ...] = ()
    padded_floor_us: float | None = None
    quantise_us: float | None = None
    alike: bool = False
    machine: dict[str, Any] = field(default_factory=dict)

    def contestant(self, name: str) -> Contestant | None:
        """Return the contestant of a name, or None."""
        return next((c for c in self.contestants if c.name == name), None)

    @property
    def floor_us(self) -> float | None:
        """The floor of both stages; None where the target states no rates."""
        known = [floor for floor in self.floors_us if floor is not None]
        return sum(known) if known and len(known) == len(self.floors_us) else None
