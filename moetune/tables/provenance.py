"""`NAME.provenance.jsonl`: one line a row, how its time came about and how to repeat it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moetune.tables import aiter
from moetune.tables.row import Row

SUFFIX = ".provenance.jsonl"
_VERSIONS = ("driver", "runtime", "torch", "triton", "python", "moetune")


def provenance_path(table: Path) -> Path:
    """Return where the provenance beside a CSV table is; no name that aiter loads as a table."""
    return table.with_name(table.stem + SUFFIX)


def record(row: Row, in_csv: bool) -> dict[str, Any]:
    """Return a row's line as plain JSON: its key, times in microseconds with spread, accuracy, versions, command.

    `drawn` is what the routing gave: a hash of the expert ids and the most rows of an expert.
    """
    v = row.verdict
    cells = aiter.cells(row)
    return {
        "key": dict(zip(aiter.HEADER, cells[: aiter.KEYS], strict=False)), "in_csv": in_csv,
        "shape": row.facts.get("shape"), "tp": row.facts.get("tp"), "ep": row.facts["ep"],
        "kernel": row.facts["kernel"], "format": row.facts["format"],
        "routing": row.facts["routing"], "drawn": v.routing,
        "active_experts": v.active_experts, "decision": v.decision.value,
        "config1": str(row.config1), "config2": str(row.config2),
        "us": v.us, "spread_us": v.spread_us, "samples": v.samples,
        "default_us": v.default_us, "default_spread_us": v.default_spread_us,
        "quantise_us": v.quantise_us, "floor_us": v.floor_us,
        "accuracy": asdict(v.accuracy) if v.accuracy else None, "limits": v.limits,
        "product": v.machine.get("product"), "arch": row.gfx, "cu_num": row.cu_num,
        "versions": {name: v.machine.get(name) for name in _VERSIONS},
        "kernel_hash": v.machine.get("kernel_hash"), "search": v.search, "identity": v.identity,
        "command": v.command, "finished": v.finished,
    }  # fmt: skip


def provenance_bytes(rows: Iterable[Row], in_csv: Iterable[tuple[str, ...]]) -> bytes:
    """Return the file of rows, sorted by their keys; `in_csv` are the cells of the CSV's rows."""
    shown = set(in_csv)
    lines = (
        json.dumps(record(row, aiter.cells(row) in shown and not aiter.unsaid(row)), separators=(",", ":"))
        for row in sorted(rows, key=lambda row: row.key)
    )
    return "".join(line + "\n" for line in lines).encode()
