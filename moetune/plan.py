"""What a sweep would do, and how long it would take, before anything is compiled or written."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from moetune.kernel import BOTH, Kernel
from moetune.model.config import Config
from moetune.model.floor import Traffic, floor_us
from moetune.model.policy import Policy
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.search import Known, StageSearch, starting_configs
from moetune.search.schedule import Round, rounds
from moetune.space import enumerate_pool

FIRST = 5
"""How many of the first configs a plan shows."""


@dataclass(frozen=True)
class Cost:
    """What the parts of a sweep cost on a GPU; fitted to sweeps of 3 to 36 problems on an H200.

    A candidate takes `launch_us` and about `over_floor` times the stage's floor; the flush before each sample
    takes `flush_us`. Passes are reads or writes of all expert weights at the target's bandwidth. Where a target
    states no rates, each of its units or cores is taken to have the `unit_` rates, in bytes/s and operations/s.
    """

    worker_s: float = 8.0  # import torch, create the context, time the empty kernel
    compile_s: float = 0.8  # one binary on one core [bf16 0.6, a8w4 1.0: H200 host, Triton 3.6]
    compile_start_s: float = 15.0  # until the first round is compiled: the workers import torch and triton
    propose_s: float = 0.005  # one guided proposal
    launch_us: float = 5.0
    over_floor: float = 2.0  # the mean candidate, dropped early or not, over the floor [bf16 1.6, a8w4 3]
    flush_us: float = 70.0  # 256 MB at 4.7 TB/s and a launch
    check_s: float = 0.002  # copies of one accuracy check, besides its two launches and its passes
    check_passes: float = 2.5  # checksum of the operands, guard zones, comparison
    problem_s: float = 0.5  # drawing, quantising and checking the default over three seeds, besides its passes
    problem_passes: float = 150.0  # the same, and the winner's checks on other draws
    unit_bandwidth: float = 2e10
    unit_rate: float = 2e12


CPU_COST = Cost(
    worker_s=4.0, compile_s=0.0, launch_us=500.0, over_floor=7.0, flush_us=3000.0, problem_s=0.2,
    problem_passes=30.0, unit_bandwidth=5e9, unit_rate=5e10,
)  # fmt: skip
"""What they cost on a CPU [kernel cpu on two server cores: the demo, and layers of 0.1 to 0.4 GB]."""


@dataclass(frozen=True)
class StagePlan:
    """The search of one stage: its pool, and what it tries when.

    `exclusions` are (constraint, count, one reason), most first. `first` are the first configs, the default
    leading. `start_binaries` are needed by the first round, `binaries` by the whole pool. `traffic` is what a
    launch moves and computes, `weight_bytes` what all experts' weights take.
    """

    stage: int
    sampler: str
    feasible: int
    enumerated: int
    exclusions: tuple[tuple[str, int, str], ...]
    first: tuple[Config, ...]
    rounds: tuple[Round, ...]
    start_binaries: frozenset[Hashable]
    binaries: frozenset[Hashable]
    traffic: tuple[Traffic, ...]
    weight_bytes: int

    @property
    def trials(self) -> int:
        """Return how many configs would be tried."""
        return sum(part.size for part in self.rounds)


@dataclass(frozen=True)
class ProblemPlan:
    """The plan of one problem; `compiles_ahead` is its kernel's."""

    problem: Problem
    stages: tuple[StagePlan, ...]
    compiles_ahead: bool


@cache
def _rows_per_expert(problem: Problem, seed: int) -> tuple[int, ...]:
    ids = problem.draw_ids(seed).ravel().tolist()
    counts = Counter(ids)
    return tuple(counts[expert] for expert in range(problem.experts))


def plan_problem(
    kernel: Kernel, problem: Problem, target: Target, budget: int, sampler: str, seed: int, known: Sequence[Known] = ()
) -> ProblemPlan:
    """Plan one problem with `budget` trials a stage; `known` are configs of the user's files.

    What neighbouring problems will have found is not known yet: their best configs come in at the sweep. Raises
    KernelError where the kernel's default is not in its own pool, UsageError on an unknown sampler.
    """
    routed = dataclasses.replace(problem, tp=1, kernel="", format="")  # problems that differ in these are routed alike
    rows = _rows_per_expert(routed, seed)
    stages = tuple(
        _plan_stage(kernel, stage, problem, target, budget, sampler, seed, known, rows) for stage in kernel.stages
    )
    return ProblemPlan(problem, stages, kernel.compiles_ahead)


def _plan_stage(
    kernel: Kernel, stage: int, problem: Problem, target: Target, budget: int, sampler: str, seed: int,
    known: Sequence[Known], rows_per_expert: Sequence[int],
) -> StagePlan:  # fmt: skip
    pool = enumerate_pool(kernel, stage, problem, target)
    starting = starting_configs(problem, stage, pool, known)
    search = StageSearch(
        pool, kernel.default(stage, problem, target), starting,
        problem=problem.key, budget=budget, sampler=sampler, seed=seed,
    )  # fmt: skip
    first = search.ask()
    examples: dict[str, str] = {}
    for exclusion in pool.exclusions:
        examples.setdefault(exclusion.constraint, exclusion.reason)
    parts = (1, 2) if stage == BOTH else (stage,)
    return StagePlan(
        stage=stage,
        sampler=search.sampler,
        feasible=len(pool.configs),
        enumerated=len(pool.configs) + len(pool.exclusions),
        exclusions=tuple((name, count, examples[name]) for name, count in pool.census().items()),
        first=tuple(first[:FIRST]),
        rounds=tuple(rounds(search.sampler, min(budget, len(pool.configs)), len(first))),
        start_binaries=frozenset(kernel.binary(stage, config, problem) for config in first),
        binaries=frozenset(kernel.binary(stage, config, problem) for config in pool.configs),
        traffic=tuple(kernel.traffic(part, problem, rows_per_expert) for part in parts),
        weight_bytes=sum(kernel.traffic(part, problem, [1] * problem.experts).bytes for part in parts),
    )


def estimate_seconds(
    plans: Iterable[ProblemPlan], cores: int, target: Target, cost: Cost | None = None, policy: Policy | None = None
) -> float:
    """Return the seconds a sweep of these problems takes on one device, with `cores` compiling, in this order.

    A binary is compiled once. Where trials outnumber a stage's binaries, idle cores compile all of them ahead: then
    the sweep waits only where that takes longer than the rest. Elsewhere, which ones guided rounds will want is not
    known: they are taken to be drawn from the pool, so that the share compiled before is the chance to need
    nothing new.
    """
    plans = list(plans)
    cost = cost or (CPU_COST if target.arch == "cpu" else Cost())
    policy = policy or Policy()
    target = _with_rates(target, cost)
    compiled: set[Hashable] = set()
    guided: dict[tuple[str, int], float] = {}
    total = cost.worker_s
    ahead = _compiled_ahead(plans)
    if any(plan.compiles_ahead for plan in plans):
        total += cost.compile_start_s
    for plan in plans:
        layer_us = check_s = 0.0
        weights_s = sum(stage.weight_bytes for stage in plan.stages) / target.bandwidth
        total += cost.problem_s + cost.problem_passes * weights_s
        for stage in plan.stages:
            launch_us = cost.launch_us + cost.over_floor * _floor_us(stage.traffic, target)
            layer_us += launch_us
            check_s = cost.check_s + cost.check_passes * weights_s + 2e-6 * launch_us
            trial_s = check_s + _timing_s(launch_us, policy.screen_us, policy.screen_samples, cost)
            group = (plan.problem.kernel, stage.stage)
            for number, part in enumerate(stage.rounds):
                if group in ahead:
                    new = 0.0
                elif number == 0:
                    new = float(len(stage.start_binaries - compiled))
                    compiled |= stage.start_binaries
                else:
                    there = len(stage.binaries & compiled) + guided.get(group, 0.0)
                    new = part.size * max(0.0, 1.0 - there / len(stage.binaries))
                    guided[group] = guided.get(group, 0.0) + new
                total += _round_s(new, part.size * trial_s, cores if plan.compiles_ahead else 1, cost)
                total += cost.propose_s * part.size
            total += (policy.finalists + 1) * _timing_s(launch_us, policy.final_us, policy.final_rounds, cost)
        total += (policy.pairs + 2) * (2 * check_s + _timing_s(layer_us, policy.final_us, policy.final_rounds, cost))
    return max(total, sum(ahead.values()) * cost.compile_s / cores)


def _compiled_ahead(plans: Sequence[ProblemPlan]) -> dict[tuple[str, int], int]:
    """Return the number of binaries of each kernel and stage all of which will be compiled ahead."""
    binaries: dict[tuple[str, int], set[Hashable]] = {}
    trials: dict[tuple[str, int], int] = {}
    for plan in plans:
        for stage in plan.stages:
            group = (plan.problem.kernel, stage.stage)
            binaries.setdefault(group, set()).update(stage.binaries)
            trials[group] = trials.get(group, 0) + stage.trials
    ahead = {plan.problem.kernel for plan in plans if plan.compiles_ahead}
    return {g: len(found) for g, found in binaries.items() if g[0] in ahead and trials[g] >= len(found)}


def _round_s(new: float, timing_s: float, cores: int, cost: Cost) -> float:
    """Return the seconds of a round: its first batch of binaries, then timing beside what is left to compile."""
    batches = max(new / cores, min(new, 1.0))
    first = min(batches, 1.0)
    return cost.compile_s * first + max(cost.compile_s * (batches - first), timing_s)


def _timing_s(launch_us: float, limit_us: float, samples: tuple[int, int], cost: Cost) -> float:
    least, most = samples
    count = max(least, min(most, limit_us / max(launch_us, 1.0)))
    return count * (launch_us + cost.flush_us) * 1e-6


def _with_rates(target: Target, cost: Cost) -> Target:
    """Return the target with a guess where it states no bandwidth or no peaks."""
    units = max(1, target.cu_num)
    bandwidth = target.bandwidth or units * cost.unit_bandwidth
    peaks = target.peaks or {"": units * cost.unit_rate}
    return dataclasses.replace(target, bandwidth=bandwidth, peaks=peaks)


def _floor_us(traffic: Sequence[Traffic], target: Target) -> float:
    """Return the floor; a rate that the target does not state is taken to be its slowest."""
    slowest = min(target.peaks, key=lambda rate: target.peaks[rate])
    stated = [t if t.rate in target.peaks else dataclasses.replace(t, rate=slowest) for t in traffic]
    return floor_us(stated, target) or 0.0


def pool_rows(plans: Sequence[ProblemPlan]) -> list[dict[str, str | int]]:
    """Return one row a problem and stage: its pool, the exclusions by constraint, sampler and trials."""
    return [
        {
            "problem": plan.problem.key, "stage": s.stage, "feasible": s.feasible, "enumerated": s.enumerated,
            "excluded": ", ".join(f"{name} {count}" for name, count, _ in s.exclusions), "sampler": s.sampler,
            "trials": s.trials,
        }
        for plan in plans for s in plan.stages
    ]  # fmt: skip


def exclusion_rows(plans: Sequence[ProblemPlan]) -> list[dict[str, str | int]]:
    """Return one row a kernel, stage and constraint over all problems, with one reason as an example."""
    counts: dict[tuple[str, int, str], int] = {}
    examples: dict[tuple[str, int, str], str] = {}
    for plan in plans:
        for s in plan.stages:
            for name, count, reason in s.exclusions:
                key = (plan.problem.kernel, s.stage, name)
                counts[key] = counts.get(key, 0) + count
                examples.setdefault(key, reason)
    return [
        {"kernel": key[0], "stage": key[1], "constraint": key[2], "excluded": count, "example": examples[key]}
        for key, count in counts.items()
    ]  # fmt: skip


def first_rows(plans: Sequence[ProblemPlan]) -> list[dict[str, str | int]]:
    """Return one row a config to be tried first: problem, stage, order (from 1), default (yes or empty), config."""
    return [
        {
            "problem": plan.problem.key, "stage": s.stage, "order": number,
            "default": "yes" if number == 1 else "", "config": str(config),
        }
        for plan in plans for s in plan.stages for number, config in enumerate(s.first, 1)
    ]  # fmt: skip
