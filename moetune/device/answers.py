"""What the device worker answers; plain facts that the driver can read without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moetune.model.config import Config
from moetune.model.trial import Accuracy, Outcome, Phase, Timing


@dataclass(frozen=True)
class Facts:
    """What a started worker tells: versions, timing policy, and measured rates where no data file has any."""

    software: dict[str, Any]
    policy: dict[str, Any]
    timer_floor_us: float
    rates: dict[str, float]


@dataclass(frozen=True)
class Prepared:
    """A problem loaded: how wrong its default is, the limits that follow, and what the routing drew.

    `fault` says why the default cannot be trusted. `limits` are by stage (1, 2, LAYER), `ids_digest` is a hash of the
    expert ids drawn.
    """

    limits: dict[int, dict[str, float]]
    rows_per_expert: tuple[int, ...]
    quantise_us: float | None
    seconds: float
    fault: str = ""
    ids_digest: str = ""


@dataclass(frozen=True)
class Attempt:
    """What became of one candidate. `lost` says that the worker can no longer be trusted."""

    phase: Phase
    outcome: Outcome
    reason: str = ""
    accuracy: Accuracy | None = None
    timing: Timing | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    lost: bool = False


@dataclass(frozen=True)
class Rival:
    """Another way to compute the whole layer, by the name that the kernel gives it, with the configs it may use."""

    name: str
    configs: tuple[Config, ...]


Entrant = tuple[Config, ...] | Rival
"""What a final of whole layers times: a config for each stage (or one for both), or a rival."""


@dataclass(frozen=True)
class Run:
    """One entrant of a final: its timing, and why its output is wrong, if it is."""

    timing: Timing
    accuracy: Accuracy
    rejected: str = ""
