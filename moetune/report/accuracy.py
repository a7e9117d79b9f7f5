"""The accuracy of each row, as a CI can post it, and the problems that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moetune.model.trial import Accuracy
from moetune.model.verdict import Decision, Verdict
from moetune.report.rows import WHERE, order, row_of, shared, title_of
from moetune.report.sheet import Cell, Sheet

_KEYS = (*WHERE, "tokens")


def accuracy_sheet(verdicts: Sequence[Verdict]) -> Sheet:
    """Return the errors of each winner beside the limits applied; `pass` is yes or no.

    The parts of a problem's name stand in columns of their own, or in the title where all share them.
    """
    measured = sorted(((row_of(v), v) for v in verdicts if v.accuracy is not None), key=lambda pair: order(pair[0]))
    told = shared((row for row, _ in measured), [column for column in WHERE if column != "kernel"])
    rows = tuple((*(row[column] for column in _KEYS), *_line(verdict)) for row, verdict in measured)
    wrong = sum(row[-1] != "yes" for row in rows)
    return Sheet(
        title_of("Accuracy against the fp32 reference", told),
        (*_KEYS, "problem", *ERRORS),
        rows,
        (
            f"{len(rows) - wrong} of {len(rows)} rows pass. limit: that of rel_l2; the worst row, the "
            "distance from the default's output and non-finite elements count too.",
        ),
        hidden=(*told, "problem", "rel_l2_default", "default_limit"),
        keys=len(_KEYS),
    )  # fmt: skip


def _line(verdict: Verdict) -> tuple[Cell, ...]:
    assert verdict.accuracy is not None
    return verdict.problem, *errors_of(verdict.accuracy, verdict.limits)


ERRORS = (
    "rel_l2", "limit", "worst_row", "worst_row_limit", "rel_l2_default", "default_limit", "elements", "non_finite",
    "pass",
)  # fmt: skip
"""The columns of `errors_of`."""


def errors_of(found: Accuracy, limits: Mapping[str, float]) -> tuple[Cell, ...]:
    """Return errors beside the limits applied; a limit that is not there was not."""
    pairs = [(getattr(found, name), limits.get(name)) for name in ("rel_l2", "worst_row", "rel_l2_default")]
    passed = found.nonfinite == 0 and all(limit is None or value <= limit for value, limit in pairs)
    errors = [cell for pair in pairs for cell in pair]
    return (*errors, found.elements, found.nonfinite, "yes" if passed else "no")


ADVICE = (
    ("memory", "lower --tokens, or sweep it on a device with more memory"),
    ("deadline", "look at the child's log in the output folder for what hangs"),
    ("rel_l2", "compare the kernel with its reference on this problem; its limits stand in its description"),
)
"""What to do about a failed problem whose reason has the word."""
_OTHERWISE = "look at the child's log in the output folder"


def failure_sheet(verdicts: Sequence[Verdict]) -> Sheet:
    """Return the problems whose default is itself wrong, why, and what to do."""
    failed = [v for v in verdicts if v.decision is Decision.FAILED]
    rows = tuple((v.problem, v.reason or "no reason stated", _advice(v)) for v in failed)
    return Sheet("Failed problems", ("problem", "reason", "what_to_do"), rows)


def _advice(verdict: Verdict) -> str:
    advice = next((text for word, text in ADVICE if word in verdict.reason), _OTHERWISE)
    return f"{advice}; then run again: {verdict.command}" if verdict.command else advice
