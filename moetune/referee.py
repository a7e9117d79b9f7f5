"""A contest: a row re-timed beside its default, the fixed default and the kernel's rivals, interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from moetune.device.answers import Entrant, Prepared, Rival
from moetune.device.child import LOST
from moetune.device.lane import Lane
from moetune.errors import KernelError
from moetune.finals import Pair, isolated, padded_floor_us, ties
from moetune.kernel import LAYER
from moetune.model.config import Config
from moetune.model.contest import DEFAULT, FIXED, ROW, Claim, Contest, Contestant, Standing
from moetune.model.floor import floor_us
from moetune.model.problem import Problem
from moetune.model.trial import Timing, Trial
from moetune.tuning import NAMES, ready, try_config
from moetune.workbench import Bench


def judge(claim: Claim, bench: Bench) -> Contest:
    """Re-time one claim; whatever its configs do, the answer is a contest."""
    bench.effort = replace(bench.effort, seed=claim.seed)
    blank = Contest(claim, machine=bench.machine, alike=claim.identity == bench.identity(claim.problem))
    if claim.fault:
        return replace(blank, standing=Standing.WRONG, reason=claim.fault)
    try:
        return _contest(blank, ready(claim.problem, bench), bench)
    except KernelError as error:
        return replace(blank, reason=str(error))
    except LOST as error:
        bench.lane.lose()
        return replace(blank, reason=f"the default does not survive the contest: {error}")


def pairs_of(claim: Claim, bench: Bench) -> dict[str, Pair]:
    """Return the configs that a claim's contest times: the row's, the default's, the fixed default's."""
    fixed = bench.defaults(replace(claim.problem, tokens=bench.policy.fixed_tokens))
    return {ROW: claim.configs, DEFAULT: bench.defaults(claim.problem), FIXED: fixed}


def _contest(blank: Contest, prepared: Prepared, bench: Bench) -> Contest:
    """Check each pair's stages, time them alone and together, then whole layers beside the rivals'."""
    problem, lane, stages = blank.claim.problem, bench.lane, bench.kernel.stages
    pairs = pairs_of(blank.claim, bench)
    default, row = pairs[DEFAULT], pairs[ROW]
    wrong = _faults(problem, [default, row, pairs[FIXED]], bench)
    if default in wrong:
        return replace(blank, reason=f"the default: {wrong[default]}")
    sound = [pair for pair in dict.fromkeys((default, row, pairs[FIXED])) if pair not in wrong]
    alone: dict[tuple[int, Config], Timing] = {}
    for place, stage in enumerate(stages):
        timed, lost = isolated(partial(lane.stage_final, stage), list(dict.fromkeys(pair[place] for pair in sound)))
        alone |= {(stage, config): timing for config, timing in timed.items()}
        wrong |= {pair: f"{NAMES[stage]} alone: {lost[pair[place]]}" for pair in sound if pair[place] in lost}
    products, lost_pairs = isolated(lane.products_final, [pair for pair in sound if pair not in wrong])
    wrong |= lost_pairs
    entrants: list[Entrant] = [pair for pair in sound if pair not in wrong]
    rivals, unmade = _rivals(row if row not in wrong else default, lane)
    runs, rejected = isolated(lane.layer_final, [*entrants, *rivals])
    rejected |= {entrant: run.rejected for entrant, run in runs.items() if run.rejected}
    if default in rejected:
        return replace(blank, reason=f"the default's whole layer: {rejected[default]}")
    if row in runs and row not in rejected:
        reasons, lost_pairs = isolated(lane.verify, list(dict.fromkeys((default, row))))
        wrong |= lost_pairs | {pair: reason for pair, reason in reasons.items() if reason}

    def contestant(name: str, entrant: Entrant) -> Contestant:
        run, reason = runs.get(entrant), rejected.get(entrant, "")
        layer, accuracy = (run.timing, run.accuracy) if run else (None, None)
        if isinstance(entrant, Rival):
            return Contestant(name, (), layer, accuracy=accuracy, limits=bench.kernel.limits.caps, reason=reason)
        times = tuple(alone.get(key) for key in zip(stages, entrant, strict=True))
        return Contestant(
            name, entrant, layer, products.get(entrant), times, accuracy, prepared.limits[LAYER],
            wrong.get(entrant, reason),
        )  # fmt: skip

    found = [contestant(name, pair) for name, pair in pairs.items()]
    found += [contestant(rival.name, rival) for rival in rivals]
    rows = prepared.rows_per_expert
    contest = replace(
        blank,
        contestants=(*found, *unmade),
        floors_us=tuple(floor_us([bench.kernel.traffic(s, problem, rows)], bench.target) for s in (1, 2)),
        padded_floor_us=padded_floor_us(row, problem, rows, bench),
        quantise_us=prepared.quantise_us,
    )
    standing, reason = stand(found[0], found[1])
    return replace(contest, standing=standing, reason=reason)


def _faults(problem: Problem, pairs: Sequence[Pair], bench: Bench) -> dict[Pair, str]:
    """Check each config of the pairs alone, once; return why a pair is wrong."""
    tried: dict[tuple[int, Config], Trial] = {}
    wrong: dict[Pair, str] = {}
    for pair in pairs:
        for stage, config in zip(bench.kernel.stages, pair, strict=True):
            trial = tried.get((stage, config)) or try_config(problem, stage, config, 0, None, bench)
            tried[stage, config] = trial
            if not trial.ok:
                wrong.setdefault(pair, f"{NAMES[stage]}: {trial.outcome}: {trial.reason}")
    return wrong


def _rivals(pair: Pair, lane: Lane) -> tuple[list[Rival], list[Contestant]]:
    """Return the kernel's rivals under a pair's configs; a contestant that says why where they cannot be made."""
    try:
        return [Rival(name, pair) for name in lane.rivals(pair)], []
    except LOST as error:
        return [], [Contestant("rivals", reason=f"cannot be made: {error}")]


def stand(row: Contestant, default: Contestant) -> tuple[Standing, str]:
    """Return how a row stands against its default, and why it does not hold, if it does not.

    A default that is wrong, if only on another draw, is nothing to stand against, however the row does.
    """
    if default.reason:
        return Standing.FAILED, f"the default: {default.reason}"
    if row.reason or row.layer is None or default.layer is None:
        return Standing.WRONG, row.reason or "it has no time"
    if row.configs == default.configs:
        return Standing.DEFAULT, ""
    if ties(row.layer, default.layer):
        return Standing.TIE, ""
    if row.layer.median_us < default.layer.median_us:
        return Standing.FASTER, ""
    times = [f"{t.median_us:.1f} ± {t.spread_us:.1f} us" for t in (row.layer, default.layer)]
    return Standing.SLOWER, f"{times[0]}, the default {times[1]}"
