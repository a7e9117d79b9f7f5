"""What was tried and what came of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from moetune.model.config import Config


class Outcome(StrEnum):
    """How a trial ended; data, never an exception."""

    OK = "ok"
    EXCLUDED = "excluded"
    COMPILE_ERROR = "compile_error"
    RESOURCE_ERROR = "resource_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    INACCURATE = "inaccurate"
    OUT_OF_BOUNDS = "out_of_bounds"
    NONDETERMINISTIC = "nondeterministic"


class Phase(StrEnum):
    """How far a trial came."""

    COMPILE = "compile"
    CHECK = "check"
    SCREEN = "screen"


@dataclass(frozen=True)
class Resources:
    """What the compiler reports of one binary: bytes of shared memory, registers and spills per thread."""

    shared_bytes: int = 0
    registers: int = 0
    spills: int = 0
    threads: int = 0


@dataclass(frozen=True)
class Accuracy:
    """How far an output is from the reference and from the default's output.

    `rel_l2` is ||o - r|| / ||r|| against the fp32 reference, `worst_row` the largest row's (its norm floored
    at a tenth of the median row's), `rel_l2_default` against the default's output; `nonfinite` counts NaN and
    infinite elements among `elements`.
    """

    rel_l2: float
    worst_row: float
    rel_l2_default: float
    elements: int
    nonfinite: int


@dataclass(frozen=True)
class Timing:
    """Cold-cache samples of one launch: median and spread (half the interquartile range) in microseconds.

    `dropped` says that the candidate was given up early: its few samples were already hopeless.
    """

    median_us: float
    spread_us: float
    samples: int
    dropped: bool = False


@dataclass(frozen=True)
class Trial:
    """One config tried on one problem and stage (stage 0: both stages under one config)."""

    problem: str
    stage: int
    config: Config
    round: int
    phase: Phase
    outcome: Outcome
    reason: str = ""
    identity: str = ""
    resources: Resources | None = None
    accuracy: Accuracy | None = None
    timing: Timing | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the config ran correctly and was timed."""
        return self.outcome is Outcome.OK and self.timing is not None

    def to_json(self) -> dict[str, Any]:
        """Return the ledger's form."""
        data = asdict(self)
        data["config"] = dict(self.config)
        return {k: v for k, v in data.items() if v not in (None, "", {})}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trial:
        """Read the ledger's form; raise KeyError, TypeError or ValueError where it does not fit."""
        return cls(
            problem=data["problem"],
            stage=int(data["stage"]),
            config=Config(tuple(data["config"].items())),
            round=int(data["round"]),
            phase=Phase(data["phase"]),
            outcome=Outcome(data["outcome"]),
            reason=data.get("reason", ""),
            identity=data.get("identity", ""),
            resources=Resources(**data["resources"]) if "resources" in data else None,
            accuracy=Accuracy(**data["accuracy"]) if "accuracy" in data else None,
            timing=_timed(data["timing"]) if "timing" in data else None,
            seconds=data.get("seconds", {}),
        )


@dataclass(frozen=True)
class Entry:
    """One line of a final: the configs run (stage 2's is None in a stage final) and their interleaved timing."""

    config: Config
    config2: Config | None
    timing: Timing
    accuracy: Accuracy | None = None
    rejected: str = ""


@dataclass(frozen=True)
class Final:
    """An interleaved re-timing of finalists and the default; the default is the first entry.

    `kind` is ``stage`` (one stage alone) or ``pair`` (sort, stage 1, stage 2 and combine end to end).
    """

    problem: str
    kind: str
    stage: int
    entries: tuple[Entry, ...]
    identity: str = ""
    clock_mhz: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the ledger's form."""
        data = asdict(self)
        for entry, source in zip(data["entries"], self.entries, strict=True):
            entry["config"] = dict(source.config)
            entry["config2"] = dict(source.config2) if source.config2 is not None else None
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Final:
        """Read the ledger's form."""
        return cls(
            problem=data["problem"],
            kind=data["kind"],
            stage=int(data["stage"]),
            entries=tuple(
                Entry(
                    config=Config(tuple(e["config"].items())),
                    config2=Config(tuple(e["config2"].items())) if e.get("config2") is not None else None,
                    timing=Timing(**e["timing"]),
                    accuracy=Accuracy(**e["accuracy"]) if e.get("accuracy") else None,
                    rejected=e.get("rejected", ""),
                )
                for e in data["entries"]
            ),
            identity=data.get("identity", ""),
            clock_mhz=tuple(data["clock_mhz"]) if data.get("clock_mhz") else None,
        )


def _timed(data: dict[str, Any]) -> Timing:
    """Return a trial's timing; raise ValueError where it is none."""
    timing = Timing(**data)
    if finite("median_us", timing.median_us) <= 0 or finite("spread_us", timing.spread_us) < 0 or timing.samples < 1:
        raise ValueError(f"{timing} is no timing")
    return timing


def finite(name: str, value: object) -> float:
    """Return a finite number as it is; raise ValueError on anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} {value!r} is no finite number")
    return value
