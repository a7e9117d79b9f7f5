"""What contests found: rows against their default, the floor and rivals, the stages alone, and accuracy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import geometric_mean

from moetune.model.contest import DEFAULT, FIXED, ROW, Contest, Contestant
from moetune.model.trial import Timing
from moetune.report.accuracy import ERRORS, errors_of
from moetune.report.rows import WHERE, Row, ratio, shared, title_of
from moetune.report.sheet import Cell, Sheet, number

_KEYS = ("row", *WHERE, "tokens")
_NOTES = (
    "us: the whole layer (sort, stages, combine), median of runs interleaved with all others of its line; spread: "
    "half the interquartile range. A row holds that is right, and not slower than its default beyond both spreads.",
    "stages: both stages in one cold run, without sort and combine; share: the floor over that time; fixed default: "
    "the default's rule at 64 tokens, as a kernel without a table runs.",
)
_HIDDEN = (
    "default_spread_us", "fixed_speed_up", "default_stages_us", "padded_floor_us", "padded_floor_share", "quantise_us",
    "measured_alike", "config1", "config2", "command",
)  # fmt: skip


def bench_sheets(contests: Sequence[Contest]) -> list[Sheet]:
    """Return the sheets of a bench; those of stages and accuracy only where something was run."""
    sheets = [_rows(contests), _stages(contests), _accuracy(contests)]
    return [sheet for sheet in sheets if sheet.rows]


def _rows(contests: Sequence[Contest]) -> Sheet:
    lines = [_line(contest) for contest in contests]
    told = shared(lines, WHERE)
    columns = tuple(dict.fromkeys(column for line in lines for column in line))
    empty = [column for column in columns if all(line.get(column) in (None, "") for line in lines)]
    spreads = [column for column in columns if column.endswith("_spread_us")]
    return Sheet(
        title_of("Rows against the default", told),
        columns,
        tuple(tuple(line.get(column) for column in columns) for line in lines),
        (*_NOTES, *_means(lines), *_machine(contests)),
        hidden=(*told, *_HIDDEN, *spreads, *empty),
        keys=len(_KEYS),
    )


def _line(contest: Contest) -> Row:
    row, default, fixed = (contest.contestant(name) for name in (ROW, DEFAULT, FIXED))
    us, default_us, fixed_us = _us(row), _us(default), _us(fixed)
    stages_us = row.products.median_us if row and row.products else None
    times: Row = {
        "table_us": contest.claim.us,
        "us": us, "spread_us": _spread_us(row), "default_us": default_us, "default_spread_us": _spread_us(default),
        "speed_up": ratio(default_us, us), "fixed_default_us": fixed_us, "fixed_speed_up": ratio(fixed_us, us),
    }  # fmt: skip
    for rival in contest.contestants:
        if rival.name not in (ROW, DEFAULT, FIXED):
            times |= {f"{_snake(rival.name)}_us": _us(rival), f"{_snake(rival.name)}_spread_us": _spread_us(rival)}
    configs = {f"config{place}": str(config) for place, config in enumerate(contest.claim.configs, 1)}
    return {
        **_where(contest),
        "standing": str(contest.standing),
        **times,
        "stages_us": stages_us,
        "default_stages_us": default.products.median_us if default and default.products else None,
        "floor_us": contest.floor_us,
        "floor_share": ratio(contest.floor_us, stages_us),
        "padded_floor_us": contest.padded_floor_us,
        "padded_floor_share": ratio(contest.padded_floor_us, stages_us),
        "quantise_us": contest.quantise_us,
        "measured_alike": None if contest.claim.us is None else "yes" if contest.alike else "no",
        "reason": contest.reason,
        **configs,
        "command": contest.claim.command,
    }


def _where(contest: Contest) -> Row:
    facts = contest.claim.problem.facts()
    return {
        "row": contest.claim.number,
        "product": contest.machine.get("product"),
        **{column: facts[column] for column in (*WHERE[1:], "tokens")},
    }


def _us(contestant: Contestant | None) -> float | None:
    """Return the layer's time of what is right, or None."""
    right = contestant is not None and contestant.layer is not None and not contestant.reason
    return contestant.layer.median_us if right and contestant and contestant.layer else None


def _spread_us(contestant: Contestant | None) -> float | None:
    return contestant.layer.spread_us if contestant and contestant.layer and _us(contestant) is not None else None


def _snake(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_").lower()


def _means(lines: Sequence[Row]) -> list[str]:
    """Return one note with the geomeans over the rows of what was measured."""
    parts = []
    for column, what in (
        ("speed_up", "over the default"), ("fixed_speed_up", "over the fixed default"), ("floor_share", "of the floor"),
    ):  # fmt: skip
        values = [value for line in lines if isinstance(value := line[column], float)]
        parts += [f"{number(geometric_mean(values))} {what}"] if values else []
    return [f"geomean over {len(lines)} rows: {', '.join(parts)}."] if parts and len(lines) > 1 else []


def _machine(contests: Sequence[Contest]) -> list[str]:
    machine = next((contest.machine for contest in contests if contest.machine), {})
    words = [f"{name} {machine[name]}" for name in ("torch", "triton", "driver") if machine.get(name)]
    claimed = [contest for contest in contests if contest.claim.us is not None]
    unlike = [str(contest.claim.number) for contest in claimed if not contest.alike]
    notes = [f"timed with {', '.join(words)}."] if words else []
    if unlike:
        which = "no row's" if len(unlike) == len(claimed) else f"all but those of rows {', '.join(unlike)}"
        notes.append(
            f"table us: what the table says; measured alike (machine, versions, kernel source, policy): {which}."
        )
    return notes


def _stages(contests: Sequence[Contest]) -> Sheet:
    lines = [line for contest in contests for line in _alone(contest)]
    told = shared(lines, WHERE)
    columns = tuple(lines[0]) if lines else ()
    return Sheet(
        title_of("Stages alone", told),
        columns,
        tuple(tuple(line.values()) for line in lines),
        ("each stage in a cold run of its own; stage 2 finds its input in the cache, as after stage 1.",),
        hidden=(*told, "default_spread_us"),
        keys=len(_KEYS) + 1,
    )


def _alone(contest: Contest) -> list[Row]:
    """Return a line for each stage; one for both where they share a config."""
    row, default, fixed = (contest.contestant(name) for name in (ROW, DEFAULT, FIXED))
    if row is None or default is None or fixed is None:
        return []
    floors: Sequence[float | None] = contest.floors_us if len(row.configs) > 1 else (contest.floor_us,)
    names: tuple[Cell, ...] = (1, 2) if len(row.configs) > 1 else ("both",)
    lines: list[Row] = []
    for place, (name, floor) in enumerate(zip(names, floors, strict=True)):
        us, default_us, fixed_us = (_median_us(c.alone[place]) for c in (row, default, fixed))
        spreads = [None if (timing := c.alone[place]) is None else timing.spread_us for c in (row, default)]
        lines.append({
            **_where(contest), "stage": name, "us": us, "spread_us": spreads[0],
            "default_us": default_us, "default_spread_us": spreads[1], "speed_up": ratio(default_us, us),
            "fixed_default_us": fixed_us, "floor_us": floor, "floor_share": ratio(floor, us),
            "config": str(row.configs[place]), "default_config": str(default.configs[place]),
        })  # fmt: skip
    return lines


def _median_us(timing: Timing | None) -> float | None:
    return None if timing is None else timing.median_us


def _accuracy(contests: Sequence[Contest]) -> Sheet:
    found = [(contest, c) for contest in contests for c in _distinct(contest)]
    told = shared([_where(contest) for contest, _ in found], WHERE)
    rows = tuple((*_where(contest).values(), c.name, *_errors(c), c.reason) for contest, c in found)
    reasons = () if any(c.reason for _, c in found) else ("reason",)
    return Sheet(
        title_of("Accuracy against the fp32 reference", told),
        (*_KEYS, "contestant", *ERRORS, "reason"),
        rows,
        (
            "limit: that of rel_l2; the worst row, the distance from the default's output and non-finite elements "
            "count too. A rival rounds where the kernel does not: it is held to the kernel's caps alone.",
        ),
        hidden=(*told, "elements", "non_finite", *reasons),
        keys=len(_KEYS) + 1,
    )


def _distinct(contest: Contest) -> list[Contestant]:
    """Return the contestants, configs that are another's left out."""
    seen: dict[object, Contestant] = {}
    for contestant in contest.contestants:
        seen.setdefault(contestant.configs or contestant.name, contestant)
    return list(seen.values())


def _errors(contestant: Contestant) -> tuple[Cell, ...]:
    if contestant.accuracy is None:
        return (*(None for _ in ERRORS[:-1]), "no")
    *errors, passed = errors_of(contestant.accuracy, contestant.limits)
    return (*errors, "no" if contestant.reason else passed)
