"""What a sweep concludes of one problem."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from moetune.model.config import Config
from moetune.model.trial import Accuracy, finite


class Decision(StrEnum):
    """The verdict on a problem."""

    TUNED = "tuned"
    TIE = "tie"
    DEFAULT = "default"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    """What a sweep concludes of one problem: everything a table row, its provenance and a report need.

    Times are medians of interleaved end-to-end runs (sort, stage 1, stage 2, combine) in microseconds, with
    their spread. `fixed_default_us` runs the default's rule at 64 tokens. `stage_us` are the winner's two stages
    alone, `default_stage_us` the default's. `quantise_us` is what quantising x takes, counted nowhere else.
    `padded_floor_us` counts the rows that the winner's tiles compute. `decision` failed leaves the rest empty and
    says why in `reason`. `search` is the effort spent (trials, sampler, seed, coupling). `limits` holds the
    accuracy limits applied (`rel_l2`, `worst_row`, `rel_l2_default`). `tied` is how many pairs lie in the spread,
    `routing` a hash of the expert ids drawn and the most rows an expert got. `complete` is False where a time limit
    cut the search short.
    """

    problem: str
    decision: Decision
    facts: dict[str, Any]
    reason: str = ""
    config1: Config | None = None
    config2: Config | None = None
    default1: Config | None = None
    default2: Config | None = None
    us: float = 0.0
    spread_us: float = 0.0
    samples: int = 0
    default_us: float = 0.0
    default_spread_us: float = 0.0
    fixed_default_us: float | None = None
    stage_us: tuple[float, ...] = ()
    default_stage_us: tuple[float, ...] = ()
    quantise_us: float | None = None
    floor_us: float | None = None
    padded_floor_us: float | None = None
    operations: int = 0
    bytes: int = 0
    active_experts: int = 0
    routing: dict[str, Any] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    limits: dict[str, float] = field(default_factory=dict)
    tied: int = 0
    pool: dict[str, int] = field(default_factory=dict)
    excluded: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    identity: str = ""
    complete: bool = True
    command: str = ""
    finished: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the ledger's form."""
        data = asdict(self)
        for name in ("config1", "config2", "default1", "default2"):
            config = getattr(self, name)
            data[name] = dict(config) if config is not None else None
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        """Read the ledger's form; raise KeyError, TypeError or ValueError where it does not fit."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        for name in ("facts", "search", "seconds", "limits", "machine", "routing", "pool", "excluded"):
            if not isinstance(known.get(name, {}), dict):
                raise ValueError(f"{name} is no object")
        known["facts"] = _ONCE_UNSAID | known["facts"]
        lacking = [name for name in _FACTS if name not in known["facts"]]
        if lacking:
            raise ValueError(f"facts lack {lacking[0]}")
        for name in _COUNTS:
            if type(count := known["facts"][name]) is not int or count < 1:
                raise ValueError(f"facts.{name} {count!r} is no count")
        if known["facts"]["experts"] % known["facts"]["ep"]:
            raise ValueError(f"facts.ep {known['facts']['ep']} does not divide the experts")
        if known["facts"]["topk"] > known["facts"]["experts"]:
            raise ValueError(f"facts.topk {known['facts']['topk']} is above the experts")
        for name in ("config1", "config2", "default1", "default2"):
            if known.get(name) is not None:
                known[name] = Config(tuple(known[name].items()))
        known["decision"] = Decision(known["decision"])
        for name in ("stage_us", "default_stage_us"):
            known[name] = tuple(known.get(name, ()))
        for name in (name for name in known if name.endswith("us")):
            if known[name] is None and cls.__dataclass_fields__[name].default is None:
                continue
            for us in known[name] if isinstance(known[name], tuple) else (known[name],):
                if finite(name, us) < 0:
                    raise ValueError(f"{name} {us} is negative")
        if known.get("accuracy"):
            known["accuracy"] = Accuracy(**known["accuracy"])
        return cls(**known)


_FACTS = (
    "shape", "tp", "kernel", "format", "tokens", "routing", "model_dim", "inter_dim", "experts", "topk", "act", "gated",
)  # fmt: skip
"""What every reader of a verdict relies on."""
_COUNTS = ("tp", "ep", "tokens", "model_dim", "inter_dim", "experts", "topk")
_ONCE_UNSAID: dict[str, Any] = {"ep": 1, "router_on_input": False}
"""What held of every problem before its facts said so."""
