"""One thing to tune: a shape at one TP, one kernel, one token bucket, one routing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moetune.model.routing import Routing
from moetune.model.shape import Shape

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Problem:
    """A shape at one tensor and one expert parallel degree, multiplied by one kernel, for one token bucket and routing.

    `tokens` counts before the top-k expansion. `rows` are the routed rows, tokens x topk; with `ep` ranks that hold
    shape.experts / ep experts each, rows of experts elsewhere are dropped.
    """

    shape: Shape
    tp: int
    kernel: str
    format: str
    tokens: int
    routing: Routing = field(default_factory=Routing)
    ep: int = 1

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
        return self.shape.experts // self.ep

    @property
    def topk(self) -> int:
        """Experts a token is sent to."""
        return self.shape.topk

    @property
    def rows(self) -> int:
        """Routed rows of all ranks: tokens x topk."""
        return self.tokens * self.shape.topk

    @property
    def expected_rows(self) -> float:
        """Routed rows that are of this rank's experts, on average."""
        return self.rows / self.ep

    @property
    def expected_tokens(self) -> float:
        """Tokens with a row on this rank, on average: tokens x (1 - (1 - 1/ep)^topk)."""
        return self.tokens * (1.0 - (1.0 - 1.0 / self.ep) ** self.topk)

    def draw_ids(self, seed: int) -> np.ndarray:
        """Draw this rank's expert ids, int32 [tokens, topk]: 0 to experts - 1, and -1 for experts elsewhere.

        The rank is the first that has a row: rank 0, as `Routing.draw` gives expert 0 a row, except where the batch has
        a single row, which is the last expert's.
        """
        import numpy as np

        ids = self.routing.draw(self.tokens, self.shape.experts, self.topk, seed)
        here = ids - int(ids.min()) // self.experts * self.experts
        return np.where(here < self.experts, here, np.int32(-1)).astype(np.int32)

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
        return f"{self._ranked}/{self.kernel}/t{self.tokens}/{self.routing}"

    @property
    def chain(self) -> str:
        """What problems that differ only in their token bucket have in common."""
        return f"{self._ranked}/{self.kernel}/{self.routing}"

    @property
    def _ranked(self) -> str:
        return f"{self.shape.name}/tp{self.tp}" + (f"/ep{self.ep}" if self.ep > 1 else "")

    def facts(self) -> dict[str, Any]:
        """Return the numbers a table row needs, as plain JSON values."""
        s = self.shape
        return {
            "shape": s.name, "tp": self.tp, "ep": self.ep, "kernel": self.kernel, "format": self.format,
            "tokens": self.tokens, "routing": str(self.routing), "model_dim": s.model_dim, "inter_dim": self.inter_dim,
            "experts": s.experts, "topk": s.topk, "act": s.act, "gated": s.gated, "alpha": s.alpha,
            "beta": s.beta, "limit": s.limit, "interleaved": s.interleaved, "biases": s.biases,
            "router_on_input": s.router_on_input,
        }  # fmt: skip
