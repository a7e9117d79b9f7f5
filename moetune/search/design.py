"""Where the pool's configs lie, and a first choice among them that covers every axis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetune.space import Pool

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def positions(pool: Pool) -> Ints:
    """Return the position of each config's values on their axes, [configs, axes]."""
    found = [pool.coordinates(config) for config in pool.configs]
    return np.array(found, dtype=np.int64).reshape(len(found), len(pool.axes))


def coordinates(pool: Pool) -> Floats:
    """Return each config as a point of the unit cube, [configs, axes that vary].

    Axes of positive values are taken as log2 (a tile twice as large is one step away), others as they are.
    """
    columns = []
    for axis, where in zip(pool.axes.values(), positions(pool).T, strict=True):
        values = np.array(axis, dtype=np.float64)
        values = np.log2(values) if values.min() > 0 else values
        if np.ptp(values) > 0:
            columns.append(((values - values.min()) / np.ptp(values))[where])
    return np.stack(columns, axis=1) if columns else np.zeros((len(pool.configs), 0))


def spread(pool: Pool, count: int, seed: int) -> list[int]:
    """Return indices of `count` configs that use the values of each axis equally often.

    One at a time, the config is taken whose values were used least so far (counts weighed by the number of
    values of their axis), among equals the farthest from those taken in Hamming distance, then by lot. A larger
    count continues a smaller one, and nothing but the pool and the random seed decides.
    """
    where = positions(pool)
    lot = np.random.default_rng([seed, pool.stage]).permutation(len(where))
    where = where[lot]
    used = [np.zeros(len(values)) for values in pool.axes.values()]
    free = np.ones(len(where), dtype=bool)
    distance = np.full(len(where), where.shape[1], dtype=np.int64)
    chosen: list[int] = []
    for _ in range(min(count, len(where))):
        crowding = sum((u[where[:, a]] * len(u) for a, u in enumerate(used)), np.zeros(len(where)))
        at = int(np.lexsort((-distance, np.where(free, crowding, np.inf)))[0])
        free[at] = False
        distance = np.minimum(distance, (where != where[at]).sum(axis=1))
        for axis, value in enumerate(where[at]):
            used[axis][value] += 1
        chosen.append(int(lot[at]))
    return chosen
