"""Tuning one problem on one lane: search each stage, then the finals, then the verdict."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from moetune.device.answers import Attempt, Facts, Prepared, Run
from moetune.device.child import ChildDied, ChildError, ChildTimeout
from moetune.device.compiling import CompilePool, Job, compiled_result
from moetune.device.lane import Lane
from moetune.errors import OutputError
from moetune.kernel import BOTH, Kernel
from moetune.model.config import Config
from moetune.model.floor import floor_us, padded_rows
from moetune.model.problem import Problem
from moetune.model.target import Target
from moetune.model.trial import Decision, Entry, Final, Outcome, Phase, Timing, Trial, Verdict
from moetune.search import StageSearch
from moetune.space import Pool, enumerate_pool

FINALISTS = 8
PAIRS = 4
GIVE_UP = 1.5
"""A candidate whose first samples are this much slower than the best of earlier rounds is dropped."""

GIVE_UP_DEFAULT = 3.0
FIXED_TOKENS = 64
"""The bucket whose default stands for one fixed, untuned config."""


@dataclass(frozen=True)
class Effort:
    """How hard to search; what changes none of the measurements."""

    trials: int = 100
    sampler: str = "auto"
    seed: int = 0
    coupling: str = "none"


class Record(Protocol):
    """Where trials are remembered and written; safe to call from several lanes."""

    def known(self, problem: str, identity: str, stage: int, config: Config) -> Trial | None:
        """Return the trial already made, or None."""

    def trial(self, trial: Trial) -> None:
        """Keep a trial."""

    def final(self, final: Final) -> None:
        """Keep a final."""


@dataclass
class Bench:
    """Everything tuning a problem needs of its surroundings."""

    kernel: Kernel
    target: Target
    facts: Facts
    machine: dict[str, Any]
    lane: Lane
    pool: CompilePool | None
    record: Record
    effort: Effort
    command: str
    starting: Callable[[Problem, int, Pool], Sequence[Config]]
    watch: Callable[[str, str, float | None, float | None, float | None], None]
    deadline: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def identity(self, problem: Problem) -> str:
        """Return the hash of all that must agree for a measurement to be used again."""
        return identity_of(problem, self.machine, self.facts.policy)


def identity_of(problem: Problem, machine: Mapping[str, Any], policy: Mapping[str, Any]) -> str:
    """Hash product, versions, kernel sources, problem and timing policy, 16 hexadecimal digits."""
    text = json.dumps([problem.facts(), dict(machine), dict(policy)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def defaults_of(kernel: Kernel, problem: Problem, target: Target) -> tuple[Config, ...]:
    """Return the default config of each stage the kernel has."""
    return tuple(kernel.default(stage, problem, target) for stage in kernel.stages)


def tile_rows(kernel: Kernel) -> int:
    """Return the most rows or columns that one tile spans, for the guard zones."""
    return max(
        (max(values) for stage in kernel.stages for axis, values in kernel.axes(stage).items() if axis in _EXTENTS),
        default=256,
    )


_EXTENTS = ("tile_m", "tile_n", "tile_k")


def tune(problem: Problem, bench: Bench) -> Verdict:
    """Tune a problem; whatever its candidates do, the answer is a verdict."""
    begun = time.monotonic()
    bench.seconds = {}
    identity = bench.identity(problem)
    defaults = defaults_of(bench.kernel, problem, bench.target)
    base = Verdict(
        problem=problem.key,
        decision=Decision.FAILED,
        facts=problem.facts(),
        machine=bench.machine,
        identity=identity,
        command=bench.command,
        search=dataclasses.asdict(bench.effort),
    )
    bench.watch(problem.key, "operands", None, None, None)
    try:
        prepared = bench.lane.prepare(problem, bench.effort.seed, defaults, tile_rows(bench.kernel))
    except (ChildError, ChildDied, ChildTimeout) as error:
        return _failed(base, f"the default does not run: {error}", bench)
    bench.seconds["operands"] = prepared.seconds
    if prepared.fault:
        return _failed(base, prepared.fault, bench)
    best: dict[int, list[Trial]] = {}
    pools: dict[int, Pool] = {}
    for stage, default in zip(bench.kernel.stages, defaults, strict=True):
        pools[stage] = enumerate_pool(bench.kernel, stage, problem, bench.target)
        trials = _search(problem, stage, default, pools[stage], prepared, bench)
        first = trials[0]
        if not first.ok:
            return _failed(base, f"stage {stage}: the default fails its check ({first.outcome}: {first.reason})", bench)
        best[stage] = sorted((t for t in trials if t.ok), key=lambda t: t.timing.median_us if t.timing else 0.0)
    clock = bench.lane.clock_mhz()
    fixed = _fixed_default(problem, bench)
    stage_times = {
        stage: _stage_final(problem, stage, defaults[i], fixed[i] if fixed else defaults[i], best[stage], bench)
        for i, stage in enumerate(bench.kernel.stages)
    }
    verdict = _pair_final(base, problem, defaults, fixed or defaults, stage_times, prepared, bench, clock)
    bench.seconds["total"] = time.monotonic() - begun
    excluded: dict[str, int] = {}
    for pool in pools.values():
        for name, count in pool.census().items():
            excluded[name] = excluded.get(name, 0) + count
    return dataclasses.replace(
        verdict,
        pool={str(stage): len(pool.configs) for stage, pool in pools.items()},
        excluded=excluded,
        seconds=_rounded(bench.seconds),
        finished=_now(),
    )


def _failed(base: Verdict, reason: str, bench: Bench) -> Verdict:
    return dataclasses.replace(base, reason=reason, seconds=_rounded(bench.seconds), finished=_now())


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _search(problem: Problem, stage: int, default: Config, pool: Pool, prepared: Prepared, bench: Bench) -> list[Trial]:
    """Return the trials of a stage, the default's first."""
    effort = bench.effort
    search = StageSearch(
        pool, default, bench.starting(problem, stage, pool),
        problem=problem.key, budget=effort.trials, sampler=effort.sampler, seed=effort.seed,
    )  # fmt: skip
    active = sum(1 for rows in prepared.rows_per_expert if rows)
    stages = (1, 2) if stage == BOTH else (stage,)
    floor = floor_us([bench.kernel.traffic(s, problem, active) for s in stages], bench.target)
    trials: list[Trial] = []
    while configs := search.ask():
        made = _round(problem, stage, configs, search.round, trials, floor, bench)
        trials += made
        if not trials[0].ok:
            break
        search.tell(made)
        if bench.deadline is not None and time.monotonic() > bench.deadline:
            break
    return trials


def _round(
    problem: Problem, stage: int, configs: Sequence[Config], number: int, before: Sequence[Trial],
    floor: float | None, bench: Bench,
) -> list[Trial]:  # fmt: skip
    """Return the trials of one round; how patient it is depends on earlier rounds only."""
    identity = bench.identity(problem)
    known = {c: bench.record.known(problem.key, identity, stage, c) for c in configs}
    compiling = {}
    if bench.pool is not None and bench.kernel.compiles_ahead:
        wanted = [c for c in configs if known[c] is None]
        jobs = [job_of(bench, stage, c, problem) for c in wanted]
        compiling = dict(zip(wanted, bench.pool.want(jobs), strict=True))
    trials: list[Trial] = []
    best_us = _best_us(before)
    give_up_us = best_us * GIVE_UP if best_us is not None else None
    for config in configs:
        trial = known[config]
        if trial is None:
            trial = Trial(problem.key, stage, config, number, Phase.COMPILE, Outcome.OK, identity=identity)
            if config in compiling:
                begun = time.monotonic()
                compiled = compiled_result(compiling[config])
                _spend(bench, "compile", time.monotonic() - begun)
                if compiled.disk:
                    raise OutputError(f"the compiler's cache cannot be written ({compiled.reason})")
                trial = dataclasses.replace(
                    trial, outcome=compiled.outcome, reason=compiled.reason, resources=compiled.resources,
                    seconds={"compile": round(compiled.seconds, 3)},
                )  # fmt: skip
            if trial.outcome is Outcome.OK:
                compiles = bench.kernel.device == "gpu" and config not in compiling
                trial = _tried(trial, bench.lane.attempt(stage, config, give_up_us, compiles=compiles), bench)
            bench.record.trial(trial)
        trials.append(trial)
        if give_up_us is None and trial.ok and trial.timing:  # the default is the first of round 0
            give_up_us = trial.timing.median_us * GIVE_UP_DEFAULT
        made = [*before, *trials]
        bench.watch(problem.key, _NAMES[stage], _best_us(made), _best_us(made[:1]), floor)
    return trials


_NAMES = {BOTH: "both stages", 1: "stage 1", 2: "stage 2"}


def _best_us(trials: Sequence[Trial]) -> float | None:
    return min((t.timing.median_us for t in trials if t.ok and t.timing), default=None)


def job_of(bench: Bench, stage: int, config: Config, problem: Problem) -> Job:
    """Return the compilation that a config of a problem needs."""
    kernel = bench.kernel
    binary = kernel.binary(stage, config, problem)
    return Job(kernel.implementation, stage, config, problem, bench.target, binary)


def _tried(trial: Trial, attempt: Attempt, bench: Bench) -> Trial:
    for name, value in attempt.seconds.items():
        _spend(bench, name, value)
    return dataclasses.replace(
        trial,
        phase=attempt.phase,
        outcome=attempt.outcome,
        reason=attempt.reason,
        accuracy=attempt.accuracy,
        timing=attempt.timing,
        seconds={**trial.seconds, **{k: round(v, 4) for k, v in attempt.seconds.items()}},
    )


def _spend(bench: Bench, part: str, seconds: float) -> None:
    bench.seconds[part] = bench.seconds.get(part, 0.0) + seconds


def _fixed_default(problem: Problem, bench: Bench) -> tuple[Config, ...] | None:
    """Return the default's rule at FIXED_TOKENS, compiled; None where it cannot be."""
    fixed = defaults_of(bench.kernel, dataclasses.replace(problem, tokens=FIXED_TOKENS), bench.target)
    if bench.pool is not None and bench.kernel.compiles_ahead:
        jobs = [job_of(bench, s, c, problem) for s, c in zip(bench.kernel.stages, fixed, strict=True)]
        if any(compiled_result(f).outcome is not Outcome.OK for f in bench.pool.want(jobs)):
            return None
    return fixed


def _stage_final(
    problem: Problem, stage: int, default: Config, fixed: Config, best: Sequence[Trial], bench: Bench
) -> list[tuple[Config, Timing]]:
    """Return finalists of a stage with their interleaved timing, fastest first."""
    bench.watch(problem.key, f"{_NAMES[stage]}, finals", _best_us(best), None, None)
    begun = time.monotonic()
    configs = list(dict.fromkeys([default, fixed, *(t.config for t in best[:FINALISTS])]))
    try:
        timings = bench.lane.stage_final(stage, configs)
    except (ChildError, ChildDied, ChildTimeout):  # a finalist that faults only now: the default remains
        configs = [default]
        timings = bench.lane.stage_final(stage, configs)
    entries = tuple(Entry(c, None, t) for c, t in zip(configs, timings, strict=True))
    bench.record.final(Final(problem.key, "stage", stage, entries, bench.identity(problem)))
    _spend(bench, "finals", time.monotonic() - begun)
    return sorted(((e.config, e.timing) for e in entries), key=lambda e: e[1].median_us)


def choose_pairs(
    defaults: tuple[Config, ...],
    fixed: tuple[Config, ...],
    finals: Sequence[Sequence[tuple[Config, Timing]]],
    coupling: str,
) -> list[tuple[Config, ...]]:
    """Return the pairs to time end to end: the default, the fixed default, then the best by their sum."""
    found: list[tuple[float, tuple[Config, ...]]] = [(0.0, ())]
    for entries in finals:
        found = [(t + e.median_us, (*pair, c)) for t, pair in found for c, e in entries]
    if coupling == "tile_m":
        found = [(t, pair) for t, pair in found if len({c.get("tile_m") for c in pair}) == 1]
    ranked = [pair for _, pair in sorted(found, key=lambda f: f[0])]
    pairs = list(dict.fromkeys([defaults, fixed]))
    return pairs + [pair for pair in ranked if pair not in pairs][:PAIRS]


def _pair_final(
    base: Verdict, problem: Problem, defaults: tuple[Config, ...], fixed: tuple[Config, ...],
    stage_times: dict[int, list[tuple[Config, Timing]]], prepared: Prepared, bench: Bench, clock: int | None,
) -> Verdict:  # fmt: skip
    bench.watch(problem.key, "end to end", None, None, None)
    begun = time.monotonic()
    coupling = bench.kernel.coupling if bench.kernel.coupling != "none" else bench.effort.coupling
    pairs = choose_pairs(defaults, fixed, list(stage_times.values()), coupling)
    try:
        runs = bench.lane.pair_final(pairs)
    except (ChildError, ChildDied, ChildTimeout):
        pairs = [defaults]
        runs = bench.lane.pair_final(pairs)
    results = dict(zip(pairs, runs, strict=True))
    default = results[defaults]
    if default.rejected:
        return _failed(base, f"the default's whole layer is wrong: {default.rejected}", bench)
    winner, verified, rejected = _choose(defaults, results, bench)
    _spend(bench, "finals", time.monotonic() - begun)
    after = bench.lane.clock_mhz()
    entries = tuple(
        Entry(p[0], p[1] if len(p) > 1 else None, r.timing, r.accuracy, rejected.get(p, r.rejected))
        for p, r in results.items()
    )
    clocks = (clock, after) if clock is not None and after is not None else None
    bench.record.final(Final(problem.key, "pair", BOTH, entries, bench.identity(problem), clocks))
    if verified is None:
        return _failed(base, f"the default is {rejected[defaults]}", bench)
    decision, kept = decide(defaults, winner, results)
    active = sum(1 for rows in prepared.rows_per_expert if rows)
    traffic = [bench.kernel.traffic(stage, problem, active) for stage in (1, 2)]
    alone = {(stage, c): t.median_us for stage, entries_ in stage_times.items() for c, t in entries_}
    run = results[kept]
    return dataclasses.replace(
        base,
        decision=decision,
        config1=kept[0],
        config2=kept[-1],
        default1=defaults[0],
        default2=defaults[-1],
        us=run.timing.median_us,
        spread_us=run.timing.spread_us,
        samples=run.timing.samples,
        default_us=default.timing.median_us,
        default_spread_us=default.timing.spread_us,
        fixed_default_us=results[fixed].timing.median_us if fixed in results and not results[fixed].rejected else None,
        stage_us=tuple(alone[s, c] for s, c in zip(bench.kernel.stages, kept, strict=True)),
        default_stage_us=tuple(alone[s, c] for s, c in zip(bench.kernel.stages, defaults, strict=True)),
        quantise_us=prepared.quantise_us,
        floor_us=floor_us(traffic, bench.target),
        padded_floor_us=_padded_floor(kept, problem, prepared, bench),
        operations=sum(t.operations for t in traffic),
        bytes=sum(t.bytes for t in traffic),
        active_experts=active,
        accuracy=verified,
        limits=prepared.limits[3],
        tied=sum(1 for r in results.values() if not r.rejected and _ties(r, run)) - 1,
    )


def _choose(
    defaults: tuple[Config, ...], results: dict[tuple[Config, ...], Run], bench: Bench
) -> tuple[tuple[Config, ...], Any, dict[tuple[Config, ...], str]]:
    """Return the fastest pair that also holds on other draws; the default, with None, where not even it does."""
    rejected: dict[tuple[Config, ...], str] = {}
    ranked = sorted((p for p in results if not results[p].rejected), key=lambda p: results[p].timing.median_us)
    for pair in [*ranked, defaults]:
        kept = decide(defaults, pair, results)[1]
        accuracy, wrong = bench.lane.verify(kept)
        if not wrong:
            return pair, accuracy, rejected
        rejected[kept] = wrong
        if kept == defaults:
            break
    return defaults, None, rejected


def _ties(one: Run, other: Run) -> bool:
    a, b = one.timing, other.timing
    return abs(a.median_us - b.median_us) <= a.spread_us + b.spread_us


def decide(
    defaults: tuple[Config, ...], winner: tuple[Config, ...], results: Mapping[tuple[Config, ...], Run]
) -> tuple[Decision, tuple[Config, ...]]:
    """Return the verdict and the configs that the table gets: a gain inside the spread is a tie."""
    if winner == defaults:
        return Decision.DEFAULT, defaults
    if _ties(results[winner], results[defaults]):
        return Decision.TIE, defaults
    return Decision.TUNED, winner


def _padded_floor(pair: tuple[Config, ...], problem: Problem, prepared: Prepared, bench: Bench) -> float | None:
    total = 0.0
    rows = sum(prepared.rows_per_expert)
    active = sum(1 for r in prepared.rows_per_expert if r)
    for stage in (1, 2):
        tile_m = pair[0 if stage == 1 else -1].get("tile_m")
        if not tile_m:
            return None
        padding = padded_rows(list(prepared.rows_per_expert), tile_m) / rows
        part = floor_us([bench.kernel.traffic(stage, problem, active)], bench.target, padding=padding)
        if part is None:
            return None
        total += part
    return total
