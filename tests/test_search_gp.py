from __future__ import annotations

import math

import numpy as np
import pytest
from fakes import TARGET, FakeKernel, fake_problem

from moetune.search.design import coordinates, positions, spread
from moetune.search.gp import Posterior, expected_improvement, matern
from moetune.space import enumerate_pool

POOL = enumerate_pool(FakeKernel(), 1, fake_problem(), TARGET)


def points(n: int, axes: int = 2) -> np.ndarray:
    return np.random.default_rng(0).random((n, axes))


def test_matern_falls_from_one_and_matches_a_hand_worked_value() -> None:
    assert matern(np.array([0.0]))[0] == 1.0
    r = math.sqrt(5.0)  # at distance one
    assert matern(np.array([1.0]))[0] == pytest.approx((1 + r + 5 / 3) * math.exp(-r))


def test_the_mean_passes_near_the_observations_and_is_sure_there() -> None:
    x = points(60)
    y = np.sin(4 * x[:, 0]) + x[:, 1] ** 2
    at = np.arange(30)
    posterior = Posterior(x, at, y[at])
    assert np.abs(posterior.mean[at] - y[at]).max() < 0.02
    assert np.abs(posterior.mean - y).max() < 0.3
    assert posterior.variance[at].max() < posterior.variance[30:].mean()


def test_an_axis_that_does_not_matter_gets_a_long_scale() -> None:
    from moetune.search.gp import fit

    x = points(50, 3)
    y = np.cos(5 * x[:, 1])
    scales, _ = fit(x, y - y.mean())
    assert scales[1] < min(scales[0], scales[2])


def test_believing_leaves_the_mean_and_equals_observing_the_mean() -> None:
    x = points(40)
    at = np.arange(12)
    posterior = Posterior(x, at, np.sin(5 * x[at, 0]))
    mean, before = posterior.mean.copy(), posterior.variance.copy()
    posterior.believe(20)
    posterior.believe(33)
    assert np.array_equal(posterior.mean, mean)
    assert posterior.variance[20] < 0.1 * before[20]
    assert (posterior.variance <= before + 1e-15).all()


def test_expected_improvement_of_hand_worked_cases() -> None:
    gain = expected_improvement(np.array([1.0, 0.0, 9.0]), np.array([1.0, 1e-18, 1e-4]), best=1.0)
    assert gain[0] == pytest.approx(1 / math.sqrt(2 * math.pi))  # at the best, unsure by one
    assert gain[1] == pytest.approx(1.0)  # certain to gain one
    assert 0 <= gain[2] < 1e-12  # certain to lose


def test_coordinates_are_log2_on_the_unit_cube() -> None:
    found = coordinates(POOL)
    assert found.shape == (len(POOL.configs), 7)
    tile_m = {config["tile_m"]: row[0] for config, row in zip(POOL.configs, found, strict=True)}
    assert tile_m == pytest.approx({16: 0.0, 32: 1 / 3, 64: 2 / 3, 128: 1.0})
    assert set(found[:, 4]) == {0.0, 1.0}  # prefetch, which has no logarithm


def test_axes_of_one_value_have_no_coordinate() -> None:
    one = FakeKernel(values={axis: values[:1] for axis, values in FakeKernel().values.items()} | {"tile_n": (64, 128)})
    pool = enumerate_pool(one, 1, fake_problem(), TARGET)
    assert coordinates(pool).shape == (len(pool.configs), 1)


def test_a_longer_spread_continues_a_shorter_one() -> None:
    assert spread(POOL, 40, 3)[:15] == spread(POOL, 15, 3)
    assert len(set(spread(POOL, 10_000, 3))) == len(POOL.configs)


def test_a_spread_is_more_even_than_chance() -> None:
    where = positions(POOL)
    rng = np.random.default_rng(0)

    def unevenness(chosen: list[int]) -> float:
        columns = [np.bincount(where[chosen, axis], minlength=len(v)) for axis, v in enumerate(POOL.axes.values())]
        return sum(float(np.ptp(column)) for column in columns)

    chance = [unevenness(rng.choice(len(where), 24, replace=False).tolist()) for _ in range(20)]
    assert unevenness(spread(POOL, 24, 0)) < min(chance)
