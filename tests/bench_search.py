"""Replay the samplers on made-up cost surfaces: `python tests/bench_search.py [--seeds N] [--surfaces N]`.

A surface is an analytic time of one grouped GEMM stage over a pool of about a thousand configs: padding of
tile_m, wave quantisation, tile efficiency, latency hidden by buffers and prefetch, occupancy from shared memory
and registers, L2 reuse by group_m; a fixed ruggedness per config that no axis explains, and noise per measurement.
Its constants are drawn anew for each surface. Nothing here was measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from fakes import AXES, TARGET, FakeKernel, fake_problem, fake_trial

from moetune.model.config import Config
from moetune.search import SAMPLERS, StageSearch
from moetune.space import Pool, enumerate_pool

BUDGETS = (25, 50, 100)
_SM = 132


@dataclass(frozen=True)
class Surface:
    """The true microseconds of each config of a pool, and the relative noise of one measurement."""

    pool: Pool
    us: np.ndarray
    noise: float

    def measure(self, config: Config, rng: np.random.Generator) -> float:
        """Return one noisy median."""
        return float(self.us[self.pool.index[config]] * np.exp(self.noise * rng.standard_normal()))


def make_pool() -> Pool:
    """Return a pool of about a thousand configs."""
    axes = AXES | {"tile_k": (32, 64, 128, 256), "num_buffers": (2, 3, 4, 5)}
    return enumerate_pool(FakeKernel(values=axes), 1, fake_problem(), replace(TARGET, shared_bytes=232_448))


def make_surface(pool: Pool, seed: int) -> Surface:
    """Draw a surface: from a few rows per expert (bandwidth decides) to hundreds (the tensor cores do)."""
    rng = np.random.default_rng(seed)
    c = {axis: np.array([config[axis] for config in pool.configs], dtype=float) for axis in pool.axes}
    m, n, k, buffers, ahead, warps, group = (c[axis] for axis in pool.axes)
    experts, columns, depth = rng.choice([32, 64, 128, 512]), rng.choice([512, 1024, 2048]), rng.choice([1024, 4096])
    rows = np.maximum(1, rng.poisson(2.0 ** rng.uniform(0, 8.5), size=experts))
    tiles = sum(np.ceil(r / m) for r in rows) * np.ceil(columns / n)
    shared = (buffers + ahead) * (m + n) * k * 2
    registers = m * n / (warps * 32) + 40 + 24 * ahead
    resident = np.clip(np.floor(np.minimum(232_448 / shared, 65_536 / (registers * warps * 32))), 1, 8)
    rate = 6e6 * (1 - np.exp(-m * n / rng.uniform(1e3, 4e3))) * (1 - np.exp(-k / rng.uniform(10, 40)))  # per us and SM
    rate *= np.where((warps == 8) == (m * n >= rng.choice([4096, 8192, 16384])), 1.0, rng.uniform(0.75, 0.95))
    rate *= np.where(registers > 255, 0.35, 1.0)
    flight = resident * (buffers - 1 + rng.uniform(0.2, 0.8) * ahead) * (m + n) * k * 2  # bytes under way per SM
    reach = flight / (flight + rng.uniform(5e3, 3e4))
    reuse = 1 + rng.uniform(0, 0.15) * np.abs(np.log2(group) - rng.uniform(0, 5)) / 5
    compute = 2 * m * n * depth / rate
    memory = (m * 0.4 + n) * depth * 2 * reuse / (35_000 * reach) * np.minimum(resident * 0.6, 1.5)
    steps = depth / k * rng.uniform(0.05, 0.2) / np.sqrt(resident * buffers)
    waves = np.ceil(tiles / (_SM * resident)) * resident
    us = 4 + waves * (np.maximum(compute, memory) + 0.3 * np.minimum(compute, memory) + steps)
    us = (us**3 + np.quantile(us, rng.uniform(0, 0.3)) ** 3) ** (1 / 3)  # weights stream at a rate no tile changes
    us *= np.exp(0.02 * rng.standard_normal(len(us)))
    return Surface(pool, us, noise=0.005)


def regrets(surface: Surface, sampler: str, budgets: Sequence[int], seed: int) -> list[float]:
    """Return how much slower than the pool's best the best config tried is, one search a budget.

    Finals re-time the leaders, so the best of the eight that measured fastest counts.
    """
    found = []
    for budget in budgets:
        rng = np.random.default_rng([seed, budget])
        default = surface.pool.configs[int(np.argsort(surface.us)[len(surface.us) // 2])]
        search = StageSearch(
            surface.pool, default, [], problem=f"bench{seed}", budget=budget, sampler=sampler, seed=seed
        )
        measured: dict[Config, float] = {}
        while configs := search.ask():
            new = {config: surface.measure(config, rng) for config in configs}
            search.tell([fake_trial(config, us, round=search.round) for config, us in new.items()])
            measured |= new
        leaders = sorted(measured, key=measured.__getitem__)[:8]
        best = min(surface.us[surface.pool.index[config]] for config in leaders)
        found.append(float(best / surface.us.min() - 1))
    return found


def main() -> None:
    """Print the mean and the 90th percentile of the regret of each sampler at each budget."""
    parser = argparse.ArgumentParser(description="Regret of each sampler on made-up surfaces.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--surfaces", type=int, default=6)
    parser.add_argument("--samplers", default=",".join(name for name in SAMPLERS if name != "auto"))
    options = parser.parse_args()
    surfaces = [make_surface(make_pool(), number) for number in range(options.surfaces)]
    for number, surface in enumerate(surfaces):
        ratio = np.sort(surface.us) / surface.us.min() - 1
        near = f"within 1 % {(ratio < 0.01).sum()}, 5 % {(ratio < 0.05).sum()}, median {np.median(ratio):+.0%}"
        print(f"surface {number}: {len(ratio)} configs, best {surface.us.min():.0f} us, {near}")
    print(f"{'sampler':12}" + "".join(f"{f'@{b} mean':>12}{'p90':>8}" for b in BUDGETS) + f"{'s/search':>10}")
    for sampler in options.samplers.split(","):
        start = time.perf_counter()
        table = np.array([regrets(s, sampler, BUDGETS, seed) for s in surfaces for seed in range(options.seeds)])
        each = (time.perf_counter() - start) / table.size
        cells = "".join(
            f"{table[:, i].mean():>12.2%}{np.quantile(table[:, i], 0.9):>8.2%}" for i in range(len(BUDGETS))
        )
        print(f"{sampler:12}{cells}{each:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
