from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from bench_search import make_pool, make_surface, regrets
from fakes import AXES, SHAPE, TARGET, FakeKernel, fake_problem, fake_trial

from moetune.errors import KernelError, UsageError
from moetune.model.config import Config
from moetune.model.trial import Outcome, Trial
from moetune.search import SAMPLERS, StageSearch
from moetune.search.schedule import next_round, resolve, rounds
from moetune.space import Pool, enumerate_pool

POOL = enumerate_pool(FakeKernel(), 1, fake_problem(), TARGET)
SMALL = enumerate_pool(
    FakeKernel(values={**AXES, "tile_m": (16, 32), "tile_n": (64,), "num_buffers": (3,)}), 1, fake_problem(), TARGET
)
DEFAULT = FakeKernel().default(1, fake_problem(), TARGET)
CONCRETE = [name for name in SAMPLERS if name != "auto"]


def cost(config: Config) -> float | None:
    """A smooth bowl with its least at tile 64 x 128; four buffers of tile_k 128 fail."""
    if config["num_buffers"] == 4 and config["tile_k"] == 128:
        return None
    away = [abs(config["tile_m"] - 64) / 64, abs(config["tile_n"] - 128) / 128, abs(config["num_buffers"] - 3) / 3]
    return 50 * (1 + sum(away)) * (1.0 + 0.1 * config["prefetch"])


def new(sampler: str = "gp", pool: Pool = POOL, budget: int = 40, **changes: object) -> StageSearch:
    options = {"problem": "p", "seed": 0, "starting": [], "default": DEFAULT, **changes}
    return StageSearch(pool, budget=budget, sampler=sampler, **options)  # type: ignore[arg-type]


def run(search: StageSearch, time: Callable[[Config], float | None] = cost) -> list[list[Trial]]:
    """Run a search to its end and return the trials of each round."""
    made = []
    while configs := search.ask():
        trials = [fake_trial(config, time(config), round=search.round) for config in configs]
        search.tell(trials)
        made.append(trials)
    return made


@pytest.mark.parametrize("sampler", CONCRETE)
def test_every_proposal_is_feasible_and_new_and_the_budget_is_met(sampler: str) -> None:
    configs = [trial.config for trials in run(new(sampler)) for trial in trials]
    assert len(configs) == 40
    assert len(set(configs)) == 40
    assert all(config in POOL for config in configs)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_budget_larger_than_the_pool_tries_all_of_it(sampler: str) -> None:
    configs = [trial.config for trials in run(new(sampler, SMALL, budget=500)) for trial in trials]
    assert sorted(configs) == sorted(SMALL.configs)


@pytest.mark.parametrize("sampler", CONCRETE)
@pytest.mark.parametrize("budget", [1, 2, 5, 11])
def test_small_budgets_are_spent_exactly_and_start_with_the_default(sampler: str, budget: int) -> None:
    configs = [trial.config for trials in run(new(sampler, budget=budget)) for trial in trials]
    assert len(configs) == budget
    assert configs[0] == DEFAULT


@pytest.mark.parametrize("sampler", CONCRETE)
def test_a_new_search_told_the_same_trials_proposes_the_same_rounds(sampler: str) -> None:
    """Whatever order the trials of a round come in; resuming a sweep rests on it."""
    whole = run(new(sampler, budget=30, round_size=5))
    resumed = new(sampler, budget=30, round_size=5)
    order = random.Random(1)
    for number, trials in enumerate(whole):
        assert resumed.round == number
        assert resumed.ask() == [trial.config for trial in trials]
        resumed.tell(order.sample(trials, len(trials)))
    assert resumed.ask() == []


def test_asking_again_before_telling_gives_the_same_round() -> None:
    search = new()
    assert search.ask() == search.ask()
    assert search.round == 0


def test_telling_less_than_the_round_is_refused() -> None:
    search = new()
    configs = search.ask()
    with pytest.raises(ValueError, match="round 0 is not complete"):
        search.tell([fake_trial(config, 1.0) for config in configs[1:]])


def test_the_default_comes_first_then_starting_configs_once_each() -> None:
    near, far = POOL.configs[7], POOL.configs[400]
    configs = new(starting=[near, DEFAULT, far, near]).ask()
    assert configs[:3] == [DEFAULT, near, far]


def test_starting_configs_outside_the_pool_are_left_out() -> None:
    off_axis = DEFAULT.replace(tile_m=48)
    excluded = DEFAULT.replace(tile_m=128, tile_n=256, tile_k=128)
    other = Config.of(tile_m=16)
    assert new(starting=[off_axis, excluded, other]).ask() == new().ask()


@pytest.mark.parametrize(
    ("default", "reason"),
    [
        (DEFAULT.replace(tile_m=48), "has tile_m 48, which is not one of 16, 32, 64, 128"),
        (DEFAULT.replace(tile_m=128, tile_n=256, tile_k=128), "is excluded: shared memory"),
        (Config.of(tile_m=16), "does not have the axes tile_m, tile_n"),
    ],
)
def test_a_default_outside_the_pool_is_the_kernels_fault(default: Config, reason: str) -> None:
    with pytest.raises(KernelError, match=rf"p: the default of stage 1 .* {reason}"):
        new(default=default)


def test_the_first_round_is_shared_by_problems_and_changed_by_the_seed() -> None:
    assert new(problem="a").ask() == new(problem="b").ask()
    assert new(problem="a").ask() != new(problem="a", seed=1).ask()


def test_the_first_round_covers_every_value_of_every_axis() -> None:
    configs = new(budget=100).ask()
    assert len(configs) == 25
    for axis, values in POOL.axes.items():
        counts = [sum(config[axis] == value for config in configs) for value in values]
        assert min(counts) >= 0.6 * len(configs) / len(values), axis


def test_guided_rounds_depend_on_the_problem_only_through_its_results() -> None:
    one, other = run(new("gp", problem="a")), run(new("gp", problem="b"))
    assert [[t.config for t in r] for r in one] == [[t.config for t in r] for r in other]
    slow_first = run(new("gp"), lambda config: 1000.0 / (cost(config) or 1.0))
    assert [t.config for t in slow_first[1]] != [t.config for t in one[1]]


def test_the_last_tenth_is_tried_around_the_best_two() -> None:
    made = run(new("gp", budget=50, round_size=8))
    assert sum(len(trials) for trials in made[-1:]) == 5
    before = [t for trials in made[:-1] for t in trials if t.ok and t.timing]
    ranked = sorted(before, key=lambda t: (t.timing.median_us, POOL.index[t.config]))  # type: ignore[union-attr]
    around = {near for trial in ranked[:2] for near in POOL.neighbours(trial.config)}
    assert all(trial.config in around for trial in made[-1])


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_guided_samplers_keep_away_from_what_failed(sampler: str) -> None:
    made = run(new(sampler, budget=60), lambda config: None if config["num_warps"] == 8 else cost(config))
    guided = [trial for trials in made[1:] for trial in trials]
    failed = sum(trial.outcome is not Outcome.OK for trial in guided)
    share = sum(config["num_warps"] == 8 for config in POOL.configs) / len(POOL.configs)
    assert failed < 0.6 * share * len(guided)


@pytest.mark.parametrize("sampler", CONCRETE)
@pytest.mark.parametrize("time", [lambda _: None, lambda _: 10.0], ids=["all fail", "all alike"])
def test_a_flat_or_failing_surface_still_spends_the_budget(
    sampler: str, time: Callable[[Config], float | None]
) -> None:
    assert sum(len(trials) for trials in run(new(sampler), time)) == 40


def test_a_dropped_trial_counts_with_its_median() -> None:
    def finish(dropped: bool) -> list[Config]:
        search = new("gp", budget=60)
        search.tell([fake_trial(config, cost(config), dropped=dropped) for config in search.ask()])
        return search.ask()

    assert finish(dropped=True) == finish(dropped=False)


def test_auto_is_exhaustive_where_the_pool_fits_the_budget() -> None:
    assert resolve("auto", 100, 100) == "exhaustive"
    assert resolve("auto", 101, 100) == "gp"
    assert new("auto", SMALL, budget=len(SMALL.configs)).sampler == "exhaustive"
    assert new("auto").sampler == "gp"


def test_an_unknown_sampler_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"--sampler 'gpp': did you mean 'gp'\?"):
        new("gpp")


def test_exhaustive_goes_in_rounds_of_32() -> None:
    assert [len(trials) for trials in run(new("exhaustive", budget=70))] == [32, 19, 19]


def test_the_schedule_of_a_hundred_trials() -> None:
    sizes = [(part.phase, part.size) for part in rounds("gp", 100, 3)]
    assert sizes[0] == ("start", 25)
    assert sum(size for _, size in sizes) == 100
    assert max(size for _, size in sizes[1:]) == 8
    assert [size for phase, size in sizes if phase == "polish"] == [5, 5]
    assert next_round("gp", 100, 100, 3, 8) is None


def test_the_plan_of_rounds_is_what_a_search_does() -> None:
    for sampler in CONCRETE:
        sizes = [part.size for part in rounds(sampler, 60, 1)]
        assert [len(trials) for trials in run(new(sampler, budget=60))] == sizes


def test_an_integer_choice_survives_json() -> None:
    """Configs come back from optuna as the plain integers they went in as."""
    for config in new("tpe").ask():
        assert all(type(value) is int for value in config.values())


def test_gp_beats_random_by_far_on_made_up_surfaces() -> None:
    pool = make_pool()
    surfaces = [make_surface(pool, seed) for seed in (0, 3, 5)]
    gp, control = (
        [regrets(surface, sampler, (60,), seed)[0] for surface in surfaces for seed in (0, 1)]
        for sampler in ("gp", "random")
    )
    assert sum(gp) / len(gp) < 0.015
    assert sum(gp) < 0.4 * sum(control)


def test_the_package_imports_neither_optuna_nor_numpy_until_asked() -> None:
    code = "import sys, moetune.search; assert not {'optuna', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_shape_of_the_test_pool() -> None:
    """The fakes are what these tests assume: larger than any budget here, with exclusions."""
    assert SHAPE.model_dim == 1024
    assert len(POOL.configs) > 300
    assert POOL.exclusions
