"""The finals of a problem: finalists re-timed interleaved, pairs end to end, and the verdict."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from moetune.device.answers import Prepared, Run
from moetune.device.child import LOST
from moetune.kernel import BOTH, LAYER
from moetune.model.config import Config
from moetune.model.floor import floor_us
from moetune.model.problem import Problem
from moetune.model.progress import Current
from moetune.model.trial import Entry, Final, Timing, Trial
from moetune.model.verdict import Decision, Verdict
from moetune.workbench import Bench

Pair = tuple[Config, ...]
"""A config for each stage, or one for both."""

Item = TypeVar("Item", bound=Hashable)
Value = TypeVar("Value")


def decide_problem(
    verdict: Verdict, problem: Problem, defaults: Pair, fixed: Pair | None, best: Mapping[int, Sequence[Trial]],
    prepared: Prepared, bench: Bench,
) -> Verdict:  # fmt: skip
    """Return the verdict on a problem whose stages have been searched; `best` are the good trials, best first."""
    begun = time.monotonic()
    clock = bench.lane.clock_mhz()
    finals = {
        stage: _stage_final(problem, stage, default, best[stage], bench)
        for stage, default in zip(bench.kernel.stages, defaults, strict=True)
    }
    bench.watch(Current(problem.key, "end to end"))
    coupling = bench.kernel.coupling if bench.kernel.coupling != "none" else bench.effort.coupling
    pairs = choose_pairs(defaults, fixed, list(finals.values()), coupling, bench.policy.pairs)
    runs, rejected = isolated(bench.lane.layer_final, pairs)
    rejected |= {pair: run.rejected for pair, run in runs.items() if run.rejected}
    left = [pair for pair in runs if pair not in rejected]
    reasons, lost = isolated(bench.lane.verify, left) if left else ({}, {})
    rejected |= lost | {pair: reason for pair, reason in reasons.items() if reason}
    after = bench.lane.clock_mhz()
    bench.record.final(
        Final(
            problem.key, "pair", BOTH,
            tuple(_entry(pair, runs.get(pair), rejected.get(pair, "")) for pair in pairs),
            bench.identity(problem),
            (clock, after) if clock is not None and after is not None else None,
        )
    )  # fmt: skip
    bench.spend("finals", begun)
    if defaults in rejected:
        return dataclasses.replace(verdict, reason=f"the default's whole layer: {rejected[defaults]}")
    alone = {(stage, config): t.median_us for stage, final in finals.items() for config, t in final.items()}
    good = {p: run for p, run in runs.items() if p not in rejected and _timed(p, bench.kernel.stages, alone)}
    decision, kept = decide(defaults, good)
    return _told(verdict, problem, decision, kept, defaults, fixed, good, runs, alone, prepared, bench)


def _entry(pair: Pair, run: Run | None, rejected: str) -> Entry:
    second = pair[1] if len(pair) > 1 else None
    if run is None:
        return Entry(pair[0], second, Timing(0.0, 0.0, 0), None, rejected)
    return Entry(pair[0], second, run.timing, run.accuracy, rejected)


def _timed(pair: Pair, stages: Sequence[int], alone: Mapping[tuple[int, Config], float]) -> bool:
    """Return whether each config of a pair stood in its stage's final; the fixed default need not."""
    return all((stage, config) in alone for stage, config in zip(stages, pair, strict=True))


def isolated(
    call: Callable[[list[Item]], Sequence[Value]], items: Sequence[Item]
) -> tuple[dict[Item, Value], dict[Item, str]]:
    """Return what a call answers for each item; where it is lost, each is tried alone, and those that fail are told.

    Items that stand alone and are lost together are added one by one to the first, the default, and those that
    bring the others down are left out. Raises one of LOST where the first is lost alone.
    """
    try:
        return dict(zip(items, call(list(items)), strict=True)), {}
    except LOST:
        pass
    failed: dict[Item, str] = {}
    for item in items[1:]:
        try:
            call([item])
        except LOST as error:
            failed[item] = str(error)
    kept = [item for item in items if item not in failed]
    try:
        return dict(zip(kept, call(kept), strict=True)), failed
    except LOST:
        pass
    stands = list(items[:1])
    values = call(list(stands))
    for item in kept[1:]:
        try:
            values = call([*stands, item])
            stands.append(item)
        except LOST as error:
            failed[item] = f"lost in company: {error}"
    return dict(zip(stands, values, strict=True)), failed


def _stage_final(
    problem: Problem, stage: int, default: Config, best: Sequence[Trial], bench: Bench
) -> dict[Config, Timing]:
    """Return the default and the finalists of a stage with their interleaved timing, fastest first."""
    bench.watch(Current(problem.key, "finals"))
    configs = list(dict.fromkeys([default, *(t.config for t in best[: bench.policy.finalists])]))
    timings, rejected = isolated(lambda some: bench.lane.stage_final(stage, some), configs)
    entries = [Entry(config, None, timing) for config, timing in timings.items()]
    entries += [Entry(config, None, Timing(0.0, 0.0, 0), None, reason) for config, reason in rejected.items()]
    bench.record.final(Final(problem.key, "stage", stage, tuple(entries), bench.identity(problem)))
    return dict(sorted(timings.items(), key=lambda item: item[1].median_us))


def choose_pairs(
    defaults: Pair, fixed: Pair | None, finals: Sequence[Mapping[Config, Timing]], coupling: str, count: int
) -> list[Pair]:
    """Return the pairs to time end to end: the default, the fixed default, then the best `count` by their sum."""
    found: list[tuple[float, Pair]] = [(0.0, ())]
    for final in finals:
        found = [(us + timing.median_us, (*pair, config)) for us, pair in found for config, timing in final.items()]
    if coupling == "tile_m":
        found = [(us, pair) for us, pair in found if len({config.get("tile_m") for config in pair}) == 1]
    first = list(dict.fromkeys([defaults, fixed or defaults]))
    ranked = [pair for _, pair in sorted(found, key=lambda item: item[0]) if pair not in first]
    return first + ranked[:count]


def decide(defaults: Pair, good: Mapping[Pair, Run]) -> tuple[Decision, Pair]:
    """Return the verdict and the configs that the table gets: a gain inside the spread is a tie."""
    winner = min(good, key=lambda pair: good[pair].timing.median_us)
    if winner == defaults:
        return Decision.DEFAULT, defaults
    if ties(good[winner].timing, good[defaults].timing):
        return Decision.TIE, defaults
    return Decision.TUNED, winner


def ties(one: Timing, other: Timing) -> bool:
    """Return whether two medians lie within the sum of their spreads."""
    return abs(one.median_us - other.median_us) <= one.spread_us + other.spread_us


def _told(
    verdict: Verdict, problem: Problem, decision: Decision, kept: Pair, defaults: Pair, fixed: Pair | None,
    good: Mapping[Pair, Run], runs: Mapping[Pair, Run], alone: Mapping[tuple[int, Config], float],
    prepared: Prepared, bench: Bench,
) -> Verdict:  # fmt: skip
    stages, rows = bench.kernel.stages, prepared.rows_per_expert
    traffic = [bench.kernel.traffic(stage, problem, rows) for stage in (1, 2)]
    run, default = good[kept], good[defaults]
    return dataclasses.replace(
        verdict,
        decision=decision,
        config1=kept[0],
        config2=kept[-1],
        us=run.timing.median_us,
        spread_us=run.timing.spread_us,
        samples=run.timing.samples,
        default_us=default.timing.median_us,
        default_spread_us=default.timing.spread_us,
        fixed_default_us=_right_us(runs.get(fixed)) if fixed else None,
        stage_us=tuple(alone[s, c] for s, c in zip(stages, kept, strict=True)),
        default_stage_us=tuple(alone[s, c] for s, c in zip(stages, defaults, strict=True)),
        quantise_us=prepared.quantise_us,
        floor_us=floor_us(traffic, bench.target),
        padded_floor_us=padded_floor_us(kept, problem, rows, bench),
        operations=sum(t.operations for t in traffic),
        bytes=sum(t.bytes for t in traffic),
        active_experts=sum(1 for count in rows if count),
        routing={"ids": prepared.ids_digest, "most_rows": max(rows)},
        accuracy=run.accuracy,
        limits=prepared.limits[LAYER],
        tied=sum(1 for other in good.values() if ties(other.timing, run.timing)) - 1,
    )


def _right_us(run: Run | None) -> float | None:
    return run.timing.median_us if run is not None and not run.rejected else None


def padded_floor_us(pair: Pair, problem: Problem, rows: Sequence[int], bench: Bench) -> float | None:
    """Return the floor of the rows that the tiles compute; None where the target states no rate."""
    parts = [
        floor_us(
            [bench.kernel.traffic(stage, problem, rows)],
            bench.target,
            padding=bench.kernel.computed_rows(stage, config, rows) / sum(rows),
        )
        for stage, config in ((1, pair[0]), (2, pair[-1]))
    ]
    return sum(part for part in parts if part) if all(parts) else None
