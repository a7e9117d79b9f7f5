"""Tuning one problem: the default first, then the search of each stage, then the finals."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence

from moetune.device.answers import Attempt, Prepared
from moetune.device.child import LOST
from moetune.errors import KernelError, OutputError
from moetune.finals import decide_problem
from moetune.kernel import BOTH
from moetune.model.config import Config
from moetune.model.floor import floor_us
from moetune.model.problem import Problem
from moetune.model.progress import Current
from moetune.model.trial import Outcome, Phase, Trial
from moetune.model.verdict import Decision, Verdict
from moetune.search import StageSearch
from moetune.space import Pool, enumerate_pool
from moetune.workbench import Bench, tile_rows

NAMES = {BOTH: "both stages", 1: "stage 1", 2: "stage 2"}


def tune(problem: Problem, bench: Bench) -> Verdict:
    """Tune a problem; whatever its candidates do, the answer is a verdict."""
    begun = time.monotonic()
    bench.seconds, bench.complete = {}, True
    verdict = Verdict(
        problem=problem.key,
        decision=Decision.FAILED,
        facts=problem.facts(),
        machine=bench.machine,
        identity=bench.identity(problem),
        command=bench.command,
        search=dataclasses.asdict(bench.effort),
    )
    try:
        verdict = _tune(verdict, problem, bench)
    except LOST as error:
        verdict = dataclasses.replace(verdict, reason=f"the device was lost again and again: {error}")
    except KernelError as error:
        verdict = dataclasses.replace(verdict, reason=str(error))
    bench.spend("total", begun)
    return dataclasses.replace(
        verdict,
        complete=bench.complete,
        seconds={name: round(value, 3) for name, value in bench.seconds.items()},
        finished=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _tune(verdict: Verdict, problem: Problem, bench: Bench) -> Verdict:
    """Return the verdict; the default must compile, run and be right before anything else is tried."""
    defaults = bench.defaults(problem)
    verdict = dataclasses.replace(verdict, default1=defaults[0], default2=defaults[-1])
    try:
        prepared = ready(problem, bench)
    except KernelError as error:
        return dataclasses.replace(verdict, reason=str(error))
    pools = {stage: enumerate_pool(bench.kernel, stage, problem, bench.target) for stage in bench.kernel.stages}
    best: dict[int, list[Trial]] = {}
    for stage, trials in _searched(problem, pools, prepared, bench).items():
        if not trials[0].ok:
            reason = f"{NAMES[stage]}: the default fails its check ({trials[0].outcome}: {trials[0].reason})"
            return dataclasses.replace(verdict, reason=reason)
        best[stage] = sorted((t for t in trials if t.ok), key=lambda t: t.timing.median_us if t.timing else 0.0)
    fixed = _fixed_default(problem, pools, prepared, bench)
    verdict = decide_problem(verdict, problem, defaults, fixed, best, prepared, bench)
    excluded: dict[str, int] = {}
    for pool in pools.values():
        for name, count in pool.census().items():
            excluded[name] = excluded.get(name, 0) + count
    return dataclasses.replace(
        verdict, pool={str(stage): len(pool.configs) for stage, pool in pools.items()}, excluded=excluded
    )


def ready(problem: Problem, bench: Bench) -> Prepared:
    """Load a problem; raise KernelError, saying why, where its default does not compile, run, or compute the right."""
    defaults = bench.defaults(problem)
    bench.watch(Current(problem.key, "compiling"))
    for stage, config in zip(bench.kernel.stages, defaults, strict=True):
        trial = _compiled(problem, stage, config, 0, bench)
        if trial.outcome is not Outcome.OK:
            raise KernelError(f"the default does not compile: {NAMES[stage]}: {trial.outcome}: {trial.reason}")
    bench.watch(Current(problem.key, "operands"))
    try:
        prepared = bench.lane.prepare(problem, bench.effort.seed, defaults, tile_rows(bench.kernel))
    except LOST as error:
        bench.lane.lose()
        raise KernelError(f"the default does not run: {error}") from error
    bench.seconds["operands"] = prepared.seconds
    if prepared.fault:
        raise KernelError(prepared.fault)
    return prepared


def try_config(
    problem: Problem, stage: int, config: Config, number: int, give_up_us: float | None, bench: Bench
) -> Trial:
    """Compile a config, check it and time it; what goes wrong is its outcome."""
    trial = _compiled(problem, stage, config, number, bench)
    if trial.outcome is not Outcome.OK:
        return trial
    compiles = bench.kernel.device == "gpu" and trial.resources is None
    return _tried(trial, bench.lane.attempt(stage, config, give_up_us, compiles=compiles), bench)


def _compiled(problem: Problem, stage: int, config: Config, number: int, bench: Bench) -> Trial:
    """Return the trial of a config as its compilation leaves it; ok, without resources, where none is needed."""
    trial = Trial(problem.key, stage, config, number, Phase.COMPILE, Outcome.OK, identity=bench.identity(problem))
    if bench.compilers is None or not bench.kernel.compiles_ahead:
        return trial
    begun = time.monotonic()
    (future,) = bench.compilers.want([bench.job(stage, config, problem)])
    result = bench.compilers.result(future)
    bench.spend("compile", begun)
    if result.disk:
        raise OutputError(f"the compiler's cache cannot be written ({result.reason})")
    return dataclasses.replace(
        trial,
        outcome=result.outcome,
        reason=result.reason,
        resources=result.resources,
        seconds={"compile": round(result.seconds, 3)},
    )


def _searched(problem: Problem, pools: Mapping[int, Pool], prepared: Prepared, bench: Bench) -> dict[int, list[Trial]]:
    """Return the trials of each stage, the default's first; all end where one's default fails.

    The stages take turns, a round each: one's next round compiles while the other's is measured.
    """
    trials: dict[int, list[Trial]] = {stage: [] for stage in pools}
    searches = {stage: _search(problem, pool, trials[stage], prepared, bench) for stage, pool in pools.items()}
    while searches:
        for stage, search in list(searches.items()):
            if next(search, None) is None:
                del searches[stage]
                if not trials[stage][0].ok:
                    return {stage: trials[stage]}
    return trials


def _search(
    problem: Problem, pool: Pool, trials: list[Trial], prepared: Prepared, bench: Bench
) -> Iterator[list[Config]]:
    """Add to the trials of a stage; yields each round's configs once they are being compiled."""
    effort, stage = bench.effort, pool.stage
    search = StageSearch(
        pool, bench.kernel.default(stage, problem, bench.target), bench.starting(problem, stage, pool),
        problem=problem.key, budget=effort.trials, sampler=effort.sampler, seed=effort.seed,
    )  # fmt: skip
    while configs := search.ask():
        _compile(problem, stage, _unknown(problem, stage, configs, bench), bench)
        yield configs
        made = _round(problem, stage, configs, search.round, trials, prepared, bench, bench.deadline)
        trials += made
        if not trials[0].ok:
            break
        if len(made) < len(configs):
            bench.complete = False
            break
        search.tell(made)


def _unknown(problem: Problem, stage: int, configs: Sequence[Config], bench: Bench) -> list[Config]:
    identity = bench.identity(problem)
    return [c for c in configs if bench.record.known(problem.key, identity, stage, c) is None]


def _compile(problem: Problem, stage: int, configs: Sequence[Config], bench: Bench) -> None:
    """Have configs compiled, all at once; `_compiled` waits for one."""
    if bench.compilers is not None and bench.kernel.compiles_ahead:
        bench.compilers.want([bench.job(stage, c, problem) for c in configs])


def _round(
    problem: Problem, stage: int, configs: Sequence[Config], number: int, before: Sequence[Trial],
    prepared: Prepared, bench: Bench, until: float | None = None,
) -> list[Trial]:  # fmt: skip
    """Return the trials of one round; how patient it is depends on earlier rounds only.

    The round breaks off at `until` (monotonic seconds), but never before the default.
    """
    identity, policy = bench.identity(problem), bench.policy
    best_us = _best_us(before)
    give_up_us = best_us * policy.give_up if best_us is not None else None
    floor = _stage_floor(problem, stage, prepared, bench)
    trials: list[Trial] = []
    for config in configs:
        if until is not None and time.monotonic() > until and (before or trials):
            break
        trial = bench.record.known(problem.key, identity, stage, config)
        if trial is None:
            trial = try_config(problem, stage, config, number, give_up_us, bench)
            bench.record.trial(trial)
        trials.append(trial)
        if give_up_us is None and trial.ok and trial.timing:  # the default is the first of round 0
            give_up_us = trial.timing.median_us * policy.give_up_default
        made = [*before, *trials]
        bench.watch(Current(problem.key, NAMES[stage], _best_us(made), _best_us(made[:1]), floor))
    return trials


def _tried(trial: Trial, attempt: Attempt, bench: Bench) -> Trial:
    for part, seconds in attempt.seconds.items():
        bench.seconds[part] = bench.seconds.get(part, 0.0) + seconds
    return dataclasses.replace(
        trial,
        phase=attempt.phase,
        outcome=attempt.outcome,
        reason=attempt.reason,
        accuracy=attempt.accuracy,
        timing=attempt.timing,
        seconds={**trial.seconds, **{part: round(seconds, 4) for part, seconds in attempt.seconds.items()}},
    )


def _best_us(trials: Sequence[Trial]) -> float | None:
    return min((t.timing.median_us for t in trials if t.ok and t.timing), default=None)


def _stage_floor(problem: Problem, stage: int, prepared: Prepared, bench: Bench) -> float | None:
    stages = (1, 2) if stage == BOTH else (stage,)
    return floor_us([bench.kernel.traffic(s, problem, prepared.rows_per_expert) for s in stages], bench.target)


def _fixed_default(
    problem: Problem, pools: Mapping[int, Pool], prepared: Prepared, bench: Bench
) -> tuple[Config, ...] | None:
    """Return the default's rule at the policy's fixed tokens, checked like any candidate; None where it cannot run."""
    elsewhere = dataclasses.replace(problem, tokens=bench.policy.fixed_tokens)
    fixed = bench.defaults(elsewhere)
    for pool, config in zip(pools.values(), fixed, strict=True):
        (trial,) = _round(problem, pool.stage, [config], 0, (), prepared, bench)
        if not trial.ok:
            return None
    return fixed
