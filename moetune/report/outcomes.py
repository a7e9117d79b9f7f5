"""What became of the configs, and where the time went."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

from moetune.model.trial import Outcome, Trial
from moetune.model.verdict import Verdict
from moetune.report.rows import WHERE, order, row_of, shared, title_of
from moetune.report.sheet import Cell, Sheet

PARTS = ("operands", "compile", "check", "screen", "finals", "other")
"""The parts of a sweep's time, in the order of the work; others follow by name."""


def outcome_sheet(verdicts: Sequence[Verdict], trials: Sequence[Trial]) -> Sheet:
    """Return how many configs ended how, per kernel and stage, with the commonest reason.

    Exclusions are counted from verdicts (a table has no trials), by constraint.
    """
    counts: Counter[tuple[str, str, int, str]] = Counter()
    reasons: defaultdict[tuple[str, str, int, str], Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        for name, configs in verdict.excluded.items():
            counts[verdict.facts["kernel"], "-", _LAST, f"excluded: {name}"] += configs
    for trial in trials:
        dropped = trial.timing is not None and trial.timing.dropped
        outcome = "ok, dropped early" if dropped else str(trial.outcome)
        key = (kernel_of(trial.problem), str(trial.stage), _RANK[trial.outcome] + dropped, outcome)
        counts[key] += 1
        if trial.reason:
            reasons[key][trial.reason] += 1
    rows = tuple(
        (key[0], key[1], key[3], counts[key], reasons[key].most_common(1)[0][0] if reasons[key] else None)
        for key in sorted(counts)
        if counts[key]
    )
    return Sheet(
        "Outcomes of configs",
        ("kernel", "stage", "outcome", "configs", "commonest_reason"),
        rows,
        ("a config is counted once a problem; excluded: by the named constraint, before anything ran.",),
        keys=3,
    )


_RANK = {outcome: 2 * i for i, outcome in enumerate(Outcome)}  # even: `ok, dropped early` follows `ok`
_LAST = 2 * len(_RANK)


def kernel_of(problem: str) -> str:
    """Return the kernel that a problem's key names."""
    return problem.split("/")[-3]


def seconds_sheet(verdicts: Sequence[Verdict], trials: Sequence[Trial]) -> Sheet:
    """Return the seconds that each part of the sweep took, per kernel, shape and TP, and in all."""
    sums: defaultdict[tuple[Cell, ...], Counter[str]] = defaultdict(Counter)
    keys = [key for key in WHERE if key != "routing"]
    rows = sorted((({**row_of(v)}, v) for v in verdicts), key=lambda pair: order(pair[0]))
    for row, verdict in rows:
        sums[tuple(row[key] for key in keys)].update(_parts(verdict.seconds))
    told = shared((row for row, _ in rows), ("product", "shape", "ep"))
    if len(sums) > 1:
        total: Counter[str] = Counter()
        for found in sums.values():
            total.update(found)
        sums[tuple(told.get(key, "all") for key in keys)] = total
    parts = _ordered({name for found in sums.values() for name in found})
    return Sheet(
        title_of("Where the time went, in seconds", told),
        (*keys, *parts, "total"),
        tuple((*where, *(found.get(p) for p in parts), sum(found.values(), 0.0)) for where, found in sums.items()),
        (f"{len(trials)} trials; compile: the wait for the compilers, which work beside the device.",),
        hidden=tuple(told),
        keys=len(keys),
    )


def _parts(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of a problem's time, with what its total has beyond them as `other`."""
    parts = {name: value for name, value in seconds.items() if name != "total"}
    rest = seconds.get("total", 0.0) - sum(parts.values())
    return parts | ({"other": parts.get("other", 0.0) + rest} if rest > 0 else {})


def _ordered(names: Set[str]) -> list[str]:
    return [*(part for part in PARTS if part in names), *sorted(names - set(PARTS))]
