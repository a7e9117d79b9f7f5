"""Expected improvement of a Gaussian process over the free configs."""

from __future__ import annotations

import math

import numpy as np

from moetune.search._base import PoolSampler, Seen
from moetune.search.design import Floats, Ints, coordinates
from moetune.space import Pool

_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)  # length scales tried for all axes together, in widths of an axis
_NOISES = (1e-4, 1e-2, 1e-1)  # variance of the noise over that of the process
_FIT_ON = 256  # observations that decide the scales; their likelihood costs the cube of this
_SWEEPS = 2  # passes over the axes, each scale halved or doubled where that is likelier
_BAD = 0.8  # quantile of the times above which all are alike: how slow a slow config is says little of the best
_JITTER = 1e-9


def matern(squared: Floats) -> Floats:
    """Return the Matern-5/2 correlation of squared scaled distances (Rasmussen and Williams 2006, eq. 4.17)."""
    r = np.sqrt(5.0 * np.maximum(squared, 0.0))
    return (1.0 + r + r * r / 3.0) * np.exp(-r)


def log_evidence(squares: Floats, y: Floats, scales: Floats, noise: float) -> float:
    """Return the log marginal likelihood of `y`, the process variance at its maximum, plus a log-normal prior.

    `squares` [axes, n, n] are squared differences per axis. The prior keeps each scale near one axis width.
    """
    n = len(y)
    k = matern(np.tensordot(scales**-2.0, squares, 1)) + (noise + _JITTER) * np.eye(n)
    lower = np.linalg.cholesky(k)
    z = np.linalg.solve(lower, y)
    fit = -0.5 * n * math.log(float(z @ z) / n + 1e-12) - float(np.log(np.diag(lower)).sum())
    return fit - 0.5 * float((np.log(scales) ** 2).sum())


def fit(x: Floats, y: Floats) -> tuple[Floats, float]:
    """Return the length scale of each axis and the noise ratio that are likeliest for `y` at `x` [n, axes]."""
    squares = (x.T[:, :, None] - x.T[:, None, :]) ** 2
    candidates = [(np.full(x.shape[1], scale), noise) for scale in _SCALES for noise in _NOISES]
    best, scales, noise = max(
        ((log_evidence(squares, y, scales, noise), scales, noise) for scales, noise in candidates),
        key=lambda found: found[0],
    )
    for axis in list(range(len(scales))) * _SWEEPS:
        for factor in (0.5, 2.0):
            moved = scales.copy()
            moved[axis] *= factor
            if (value := log_evidence(squares, y, moved, noise)) > best:
                best, scales = value, moved
                break
    return scales, noise


class Posterior:
    """A process over the points of a pool, given observations at some of them.

    `mean` and `variance` [points] are in the units of the observations.
    """

    def __init__(self, points: Floats, at: Ints, y: Floats) -> None:
        level, width = float(y.mean()), float(y.std()) or 1.0
        scaled = (y - level) / width
        some = slice(None, None, -(-len(at) // _FIT_ON))
        scales, noise = fit(points[at[some]], scaled[some])
        self._points = points / scales
        lower = np.linalg.cholesky(self._k(at, at) + (noise + _JITTER) * np.eye(len(at)))
        self._rows = np.linalg.solve(lower, self._k(at, np.arange(len(points))))
        z = np.linalg.solve(lower, scaled)
        self._amplitude = width * width * float(z @ z) / len(y)
        self._noise = noise
        self._left = np.maximum(1.0 - (self._rows**2).sum(axis=0), 1e-12)
        self.mean = level + width * (z @ self._rows)

    def _k(self, a: Ints, b: Ints) -> Floats:
        p, q = self._points[a], self._points[b]
        return matern((p**2).sum(axis=1)[:, None] + (q**2).sum(axis=1)[None, :] - 2.0 * p @ q.T)

    @property
    def variance(self) -> Floats:
        """Variance of the noise-free value at each point."""
        found: Floats = max(self._amplitude, _JITTER) * self._left
        return found

    def believe(self, index: int) -> None:
        """Condition on the mean at one point: the mean stays, the variance around it shrinks.

        The kriging believer of Ginsbourger, Le Riche and Carraro (2010), by one more row of the Cholesky factor.
        """
        here = np.array([index])
        row = self._k(here, np.arange(len(self._points)))[0] - self._rows[:, index] @ self._rows
        row /= math.sqrt(self._left[index] + self._noise + _JITTER)
        self._rows = np.vstack([self._rows, row])
        self._left = np.maximum(self._left - row**2, 1e-12)


def expected_improvement(mean: Floats, variance: Floats, best: float) -> Floats:
    """Return how far each point is expected to fall below `best` (Jones, Schonlau and Welch 1998, eq. 15)."""
    sd = np.sqrt(variance)
    z = (best - mean) / sd
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z])
    gain: Floats = sd * (z * below + np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))
    return gain


class GpSampler(PoolSampler):
    """A Matern-5/2 process with a length scale per axis on log microseconds; a failed config counts as a slow one."""

    def __init__(self, pool: Pool, seed: int, name: str) -> None:
        super().__init__(pool, seed, name)
        self._points = coordinates(pool)
        self._known: bytes = b""
        self._believed: list[int] = []
        self._posterior: Posterior | None = None

    def choose(self, seen: Seen, free: Ints) -> int:
        """Return the free config of largest expected improvement; draw one while nothing has been timed."""
        if len(seen.ok) < 2:
            return int(self.random(seen).choice(free))
        posterior = self._given(seen)
        gain = expected_improvement(posterior.mean[free], posterior.variance[free], float(seen.values.min()))
        return int(free[np.lexsort((posterior.mean[free], -gain))[0]])

    def _given(self, seen: Seen) -> Posterior:
        """Return the posterior of what is told and believed; within a round only the beliefs grow."""
        known = seen.ok.tobytes() + seen.values.tobytes() + seen.failed.tobytes()
        pending = seen.pending.tolist()
        if self._posterior is None or known != self._known or self._believed != pending[: len(self._believed)]:
            at = np.concatenate([seen.ok, seen.failed])
            bad = float(np.quantile(seen.values, _BAD))
            y = np.minimum(np.concatenate([seen.values, np.full(len(seen.failed), bad)]), bad)
            self._posterior, self._known, self._believed = Posterior(self._points, at, y), known, []
        for index in pending[len(self._believed) :]:
            self._posterior.believe(index)
        self._believed = pending
        return self._posterior
