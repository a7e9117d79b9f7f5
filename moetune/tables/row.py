"""A verdict as a table row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moetune.errors import TableError
from moetune.model.config import Config
from moetune.model.verdict import Decision, Verdict

_FACTS = (
    "kernel", "format", "tokens", "routing", "model_dim", "inter_dim", "experts", "topk", "act", "gated",
    "alpha", "beta", "limit", "interleaved", "biases", "router_on_input", "ep",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A verdict with a correct config: tuned, or a tie or default that carries the default's config."""

    verdict: Verdict

    @classmethod
    def of(cls, verdict: Verdict) -> Row | None:
        """Return a verdict's row, None for a failed one; raise TableError where the verdict is incomplete."""
        if verdict.decision is Decision.FAILED:
            return None
        lacking = [f"facts.{name}" for name in _FACTS if name not in verdict.facts]
        lacking += [f"machine.{name}" for name in ("arch", "cu_num") if name not in verdict.machine]
        lacking += ["config1"] * (verdict.config1 is None) + ["us"] * (not verdict.us > 0)
        if lacking:
            raise TableError(f"the verdict of {verdict.problem} lacks {', '.join(lacking)}; sweep it again")
        return cls(verdict)

    @property
    def facts(self) -> dict[str, Any]:
        """The problem's numbers, see Problem.facts."""
        return self.verdict.facts

    @property
    def gfx(self) -> str:
        """The architecture: `sm_90`, AMD's, or `cpu`."""
        return str(self.verdict.machine["arch"])

    @property
    def cu_num(self) -> int:
        """How many SMs, CUs or cores."""
        return int(self.verdict.machine["cu_num"])

    @property
    def config1(self) -> Config:
        """Stage 1's config, or that of both stages."""
        assert self.verdict.config1 is not None  # held by `of`
        return self.verdict.config1

    @property
    def config2(self) -> Config:
        """Stage 2's config."""
        return self.verdict.config2 or self.config1

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes another problem, or the same on another kind of device; rows sort by it, tokens last.

        Models of equal dimensions share a row: neither the shape's name nor the TP is part of it.
        """
        f = self.facts
        return (
            self.gfx, self.cu_num, f["model_dim"], f["inter_dim"], f["experts"], f["topk"], f["act"], f["gated"],
            f["alpha"], f["beta"], f["limit"], f["interleaved"], f["biases"], f["router_on_input"], f["ep"],
            f["format"], f["kernel"], f["routing"], f["tokens"],
        )  # fmt: skip

    def measured_like(self, other: Row) -> bool:
        """Whether the two times can be compared: one identity (machine, versions, kernel source, timing policy)."""
        return bool(self.verdict.identity) and self.verdict.identity == other.verdict.identity
