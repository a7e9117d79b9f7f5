"""Which kernel is fastest at each token bucket, where several multiply the same weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from moetune.kernel import LOOP
from moetune.model.format import FORMATS
from moetune.tables.row import Row

_SAID = ("model_dim", "inter_dim", "experts", "topk", "ep", "act", "routing", "tokens")


def winners(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return, for each problem that several kernels have a row of, the fastest kernel and the microseconds of all.

    Kernels are rivals if their weights are stored alike (number format, group, zero points); their rows are compared
    where they were measured on one machine with the same versions. Launches expert by expert do not compete: a server
    does not know the rows of each. The order is that of the rows' keys.
    """
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.key):
        form = FORMATS.get(row.facts["format"])
        if form is not None and not row.facts["kernel"].endswith(LOOP):
            machine = tuple(sorted((k, v) for k, v in row.verdict.machine.items() if k != "kernel_hash"))
            problem = tuple(
                sorted((k, v) for k, v in row.facts.items() if k not in ("shape", "tp", "kernel", "format"))
            )
            found[problem, form.weights, machine].append(row)
    told = []
    for (_, weights, _), rivals in found.items():
        us = {row.facts["kernel"]: row.verdict.us for row in rivals}
        if len(us) > 1:
            said = {name: rivals[0].facts[name] for name in _SAID}
            told.append(
                {
                    "gfx": rivals[0].gfx,
                    **said,
                    "weights": weights.dtype,
                    "kernel": min(us, key=us.__getitem__),
                    "us": us,
                }
            )
    return told
