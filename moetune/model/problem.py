"""One thing to tune: a shape at one TP, one kernel, one token bucket, one routing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moetune.model.routing import Routing
from moetune.model.shape import Shape


@dataclass(frozen=True)
class Problem:
    """A shape at one tensor parallel degree, multiplied by one kernel, for one token bucket and routing.

    `tokens` counts before the top-k expansion. `rows` are the routed rows, tokens x topk.
    """

    shape: Shape
    tp: int
    kernel: str
    format: str
    tokens: int
    routing: Routing = field(default_factory=Routing)

    @property
    def model_dim(self) -> int:
        """Width of the layer's input and output."""
        return self.shape.model_dim

    @property
    def inter_dim(self) -> int:
        """Width of one expert's intermediate on one rank."""
        return self.shape.inter_at(self.tp)

    @property
    def experts(self) -> int:
        """Experts on one rank."""
        return self.shape.experts

    @property
    def topk(self) -> int:
        """Experts a token is sent to."""
        return self.shape.topk

    @property
    def rows(self) -> int:
        """Routed rows: tokens x topk."""
        return self.tokens * self.shape.topk

    @property
    def gates(self) -> int:
        """Weight rows of stage 1 per intermediate column: 2 with a gate, else 1."""
        return 2 if self.shape.gated else 1

    def n(self, stage: int) -> int:
        """Weight rows (output columns before activation) of a stage."""
        return self.gates * self.inter_dim if stage == 1 else self.model_dim

    def k(self, stage: int) -> int:
        """Reduction length of a stage."""
        return self.model_dim if stage == 1 else self.inter_dim

    @property
    def key(self) -> str:
        """The problem's name in ledgers, e.g. ``demo/tp1/cpu/t16/uniform``."""
        return f"{self.shape.name}/tp{self.tp}/{self.kernel}/t{self.tokens}/{self.routing}"

    @property
    def chain(self) -> str:
        """What problems that differ only in their token bucket have in common."""
        return f"{self.shape.name}/tp{self.tp}/{self.kernel}/{self.routing}"

    def facts(self) -> dict[str, Any]:
        """Return the numbers a table row needs, as plain JSON values."""
        s = self.shape
        return {
            "shape": s.name, "tp": self.tp, "kernel": self.kernel, "format": self.format, "tokens": self.tokens,
            "routing": str(self.routing), "model_dim": s.model_dim, "inter_dim": self.inter_dim,
            "experts": s.experts, "topk": s.topk, "act": s.act, "gated": s.gated, "alpha": s.alpha,
            "beta": s.beta, "limit": s.limit, "interleaved": s.interleaved, "biases": s.biases,
        }  # fmt: skip
