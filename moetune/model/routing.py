"""Which experts the tokens of a batch go to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moetune.errors import UsageError, nearest

if TYPE_CHECKING:
    import numpy as np

KINDS = ("uniform", "balanced", "zipf", "hot")


@dataclass(frozen=True)
class Routing:
    """A distribution of expert choices: `uniform`, `balanced`, `zipf` (popularity rank^-value) or `hot`.

    `hot` sends every token to one expert and leaves `value` (a share) of the experts without rows: a stress
    case for checks, not a load seen in serving.
    """

    kind: str = "uniform"
    value: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Routing:
        """Read ``uniform``, ``balanced``, ``zipf:1.2`` or ``hot:0.5``; raise UsageError on anything else."""
        kind, _, value = text.strip().partition(":")
        if kind not in KINDS:
            raise UsageError(f"routing {text!r}: {nearest(kind, KINDS)}")
        if kind in ("uniform", "balanced"):
            if value:
                raise UsageError(f"routing {text!r}: {kind} takes no number; write {kind!r}")
            return cls(kind)
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number <= 8 or (kind == "hot" and number >= 1):
            raise UsageError(f"routing {text!r}: write zipf:1.2 (a positive exponent) or hot:0.5 (a share below 1)")
        return cls(kind, number)

    def __str__(self) -> str:
        return self.kind if self.kind in ("uniform", "balanced") else f"{self.kind}:{self.value:g}"

    def draw(self, tokens: int, experts: int, topk: int, seed: int) -> np.ndarray:
        """Draw expert ids, int32 [tokens, topk], distinct within a token; the same for the same arguments.

        The first and the last expert always get a row (topk 1 and one token: the last only), so that a check
        reaches both ends of the weights.
        """
        import numpy as np

        rng = np.random.default_rng([seed, tokens, experts, topk])
        if self.kind == "balanced":
            ids = (np.arange(tokens * topk) % experts).reshape(tokens, topk)
        else:
            weights = np.zeros(experts)
            if self.kind == "zipf":
                weights = -self.value * np.log(rng.permutation(experts) + 1.0)
            elif self.kind == "hot":
                empty = rng.permutation(np.arange(1, experts - 1))[: int(experts * self.value)]
                kept = max(topk, experts - len(empty))
                weights[empty[: experts - kept]] = -1e9
                weights[experts - 1] = 1e9
            ids = np.empty((tokens, topk), dtype=np.int64)
            for start in range(0, tokens, 1024):  # bounds the noise matrix at 1024 x experts
                size = min(1024, tokens - start)
                keys = weights + rng.gumbel(size=(size, experts))
                best = np.argpartition(-keys, topk - 1, axis=1)[:, :topk]
                order = np.argsort(-np.take_along_axis(keys, best, axis=1), axis=1)
                ids[start : start + size] = np.take_along_axis(best, order, axis=1)
        first, last = (0, 0), (-1, -1)
        for expert, other, slot, spare in ((0, experts - 1, first, last), (experts - 1, 0, last, first)):
            if not (ids == expert).any():  # nor may it take the only row of the other end
                ids[spare if ids[slot] == other else slot] = expert
        return np.ascontiguousarray(ids.astype(np.int32))
