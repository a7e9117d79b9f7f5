"""The 41 columns of aiter's `tuned_grouped_fmoe.csv`, and a row in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moetune.errors import UsageError
from moetune.kernel import LOOP
from moetune.model.config import Config
from moetune.model.format import FORMATS
from moetune.tables.row import Row

HEADER = (
    "gfx", "cu_num", "token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype", "q_dtype_a",
    "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1", "max_m", "tile_m", "tile_n", "tile_k", "tile_m2",
    "tile_n2", "tile_k2", "m_warp", "n_warp", "m_warp2", "n_warp2", "num_buffers", "num_buffer_stage2",
    "split_k1", "split_k2", "grouped_persistent_m", "persistent_workers", "wave_specialized_tdm",
    "tdm_as_in_prologue", "cluster_n", "waves_per_tensor_tdm", "next_stage_prefetch", "kernelName1",
    "kernelName2", "us", "tflops", "bw",
)  # fmt: skip
KEYS = 14
"""The first columns are the key."""

GROUPED_GFX = frozenset({"gfx1250"})
"""Where aiter's own grouped kernel reads this table (`grouped_moe_gfx1250.py`)."""

_ACTIVATIONS = {"silu": "Silu", "swiglu": "Swiglu", "gelu_tanh": "Gelu", "situ": "Situv2"}
_PLAIN = (1.0, 0.0, 0.0)
_CONSTANTS = {"swiglu": (1.702, 1.0, 7.0)}
"""The alpha, beta and limit that an activation's name stands for in aiter (`fused_moe.py`, `swiglu`)."""

_COUNTS = {
    "tokens": "token", "model_dim": "model_dim", "inter_dim": "inter_dim", "experts": "expert", "topk": "topk",
}  # fmt: skip
"""The key columns that count something, by what `Problem.facts` calls them."""

_NAME = re.compile(r"moetune_(?P<kernel>.+)_s(?P<stage>[012]):(?P<config>[^:]*)")


def kernel_name(kernel: str, stage: int, config: Config) -> str:
    """Return what stands in a kernelName cell: kernel, stage (0: a config of both) and the full config."""
    return f"moetune_{kernel}_s{stage}:{config}"


def parse_kernel_name(text: str) -> tuple[str, int, Config] | None:
    """Return kernel, stage and config of a kernelName cell that moetune wrote, else None."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    try:
        return found["kernel"], int(found["stage"]), Config.parse(found["config"])
    except UsageError:
        return None


def kernel_of(cells: tuple[str, ...]) -> str:
    """Return which kernel a row was measured on: `moetune_` and its name, or aiter's kernelName1."""
    name = cells[HEADER.index("kernelName1")]
    parsed = parse_kernel_name(name)
    return f"moetune_{parsed[0]}" if parsed else name


def decimal(value: float) -> str:
    """Return a number with at most 4 decimals, an integer as an integer."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def cells(row: Row) -> tuple[str, ...]:
    """Return a row's 41 cells; an axis that the kernel does not have is 1, `us` is end to end.

    `expert` counts those of one rank, `topk` and `max_m` the routing over all ranks. tflops are useful operations over
    `us`, bw GB/s of the bytes that a problem must move over `us`. No kernel of moetune is persistent or uses a tensor
    data mover: those columns say so, and `persistent_workers` is blank as in every row aiter ships.
    """
    f, v, one, two = row.facts, row.verdict, row.config1, row.config2
    form = FORMATS.get(f["format"])
    act = _ACTIVATIONS.get(f["act"])
    stages = (0, 0) if v.config2 is None else (1, 2)
    values: dict[str, Any] = {
        "gfx": row.gfx, "cu_num": row.cu_num, "token": f["tokens"], "model_dim": f["model_dim"],
        "inter_dim": f["inter_dim"], "expert": f["experts"] // f["ep"], "topk": f["topk"],
        "act_type": f"ActivationType.{act}" if act else "", "dtype": "torch.bfloat16",
        "q_dtype_a": form.aiter_a if form else "", "q_dtype_w": form.aiter_w if form else "",
        "q_type": form.aiter_q if form else "", "use_g1u1": int(f["gated"]),
        "doweight_stage1": int(f["router_on_input"]), "max_m": f["tokens"] * f["topk"],
        "tile_m": one.get("tile_m", 1), "tile_n": one.get("tile_n", 1), "tile_k": one.get("tile_k", 1),
        "tile_m2": two.get("tile_m", 1), "tile_n2": two.get("tile_n", 1), "tile_k2": two.get("tile_k", 1),
        "m_warp": 1, "n_warp": one.get("num_warps", 1), "m_warp2": 1, "n_warp2": two.get("num_warps", 1),
        "num_buffers": one.get("num_buffers", 1), "num_buffer_stage2": two.get("num_buffers", 1),
        "split_k1": one.get("split_k", 1), "split_k2": two.get("split_k", 1),
        "grouped_persistent_m": 0, "persistent_workers": "", "wave_specialized_tdm": 0, "tdm_as_in_prologue": 0,
        "cluster_n": -1, "waves_per_tensor_tdm": -1, "next_stage_prefetch": one.get("prefetch", 1),
        "kernelName1": kernel_name(f["kernel"], stages[0], one),
        "kernelName2": kernel_name(f["kernel"], stages[1], two),
        "us": decimal(v.us), "tflops": decimal(v.operations / v.us / 1e6), "bw": decimal(v.bytes / v.us / 1e3),
    }  # fmt: skip
    return tuple(str(values[column]) for column in HEADER)


def unsaid(row: Row) -> str:
    """Return what of a row's problem the key columns cannot tell apart, or an empty string.

    Under expert parallelism a rank's experts get a part of the rows that `token` and `topk` say.
    """
    f = row.facts
    form = FORMATS.get(f["format"])
    constants = tuple(float(f[name]) for name in ("alpha", "beta", "limit"))
    reasons = {
        f"format {f['format']}": form is None,
        "groups of 64": form is not None and form.weights.group == 64,
        "zero points": form is not None and form.weights.zero_bits > 0,
        f"activation {f['act']}": f["act"] not in _ACTIVATIONS,
        f"{f['act']}'s alpha, beta or limit": constants != _CONSTANTS.get(f["act"], _PLAIN),
        "interleaved gate and up": f["interleaved"],
        "biases": f["biases"],
        "expert parallelism": f["ep"] > 1,
        "launches expert by expert": f["kernel"].endswith(LOOP),
        f"routing {f['routing']}": f["routing"] != "uniform",
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def facts(cell: Mapping[str, str]) -> dict[str, Any]:
    """Return what a row's key columns tell of its problem, as `Problem.facts` has it; raise ValueError on a bad cell.

    The shape's name, the TP, the kernel and the format are not told; what `unsaid` lists is as it must be.
    """
    act = next((name for name, word in _ACTIVATIONS.items() if cell["act_type"] == f"ActivationType.{word}"), None)
    if act is None:
        raise ValueError(f"act_type {cell['act_type']!r}")
    counts = {name: int(cell[column]) for name, column in _COUNTS.items()}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{_COUNTS[name]} {count} is below 1")
    if counts["topk"] > counts["experts"]:
        raise ValueError(f"topk {counts['topk']} is above expert {counts['experts']}")
    alpha, beta, limit = _CONSTANTS.get(act, _PLAIN)
    return {
        **counts, "act": act, "gated": cell["use_g1u1"] == "1",
        "alpha": alpha, "beta": beta, "limit": limit, "interleaved": False, "biases": False, "routing": "uniform",
        "router_on_input": cell["doweight_stage1"] == "1", "ep": 1,
    }  # fmt: skip


def by_cells(rows: Iterable[Row]) -> dict[tuple[str, ...], Row]:
    """Return the rows that a CSV can hold, by their cells."""
    return {cells(row): row for row in rows if not unsaid(row)}


def order(row: tuple[str, ...]) -> tuple[Any, ...]:
    """Return what new rows are sorted by: the key with its numbers as numbers, the token last."""
    *first, token = (*row[:2], *row[3:KEYS], row[2])
    return tuple((int(c), "") if re.fullmatch(r"-?\d+", c) else (0, c) for c in (*first, token))
