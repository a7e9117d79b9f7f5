"""How far an output may lie from the reference, and how far it does.

One number for a whole output cannot see a local fault: a wrong 16-wide tile in one row of 8192 changes rel_l2
by 7e-4, which passes a limit of 0.005, yet that row by 6e-2. So the worst row is judged as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from moetune.kernel import Limits
from moetune.model.trial import Accuracy

_CHUNK = 1 << 24
_MEDIAN_SHARE = 0.1
_TINY = 1e-38
_TIMES = 3.0


def compare(output: Tensor, reference: Tensor, default: Tensor | None) -> Accuracy:
    """Compare fp32 [rows, columns] with the reference's and the default's, of the same shape and device.

    Sums are in float64. An element that is not finite in output or reference counts as nonfinite, and as zero
    in both, so that every number here is finite. A norm of zero divides as 1e-38. Without a default,
    `rel_l2_default` is 0.
    """
    sums = [_sums(output, reference, default, rows) for rows in _chunks(output)]
    error, size, error_default, size_default, bad = (torch.cat(part) for part in zip(*sums, strict=True))
    norm = size.sqrt()
    floor = _MEDIAN_SHARE * norm.median()
    worst = (error.sqrt() / norm.maximum(floor).clamp(min=_TINY)).amax()
    rel_l2, rel_l2_default, worst_row, nonfinite = torch.stack([
        _ratio(error, size), _ratio(error_default, size_default), worst, bad.sum().double(),
    ]).tolist()  # fmt: skip
    return Accuracy(rel_l2, worst_row, rel_l2_default, output.numel(), int(nonfinite))


def fault(accuracy: Accuracy, limits: Mapping[str, float]) -> str | None:
    """Return why an output is inaccurate, or None; `limits` holds rel_l2, worst_row and, if at all, rel_l2_default."""
    if accuracy.nonfinite:
        return f"{accuracy.nonfinite} of {accuracy.elements} elements are not finite"
    if accuracy.rel_l2 > limits["rel_l2"]:
        return f"rel_l2 {accuracy.rel_l2:.2g} above {limits['rel_l2']:.2g}"
    if accuracy.worst_row > limits["worst_row"]:
        return f"worst row {accuracy.worst_row:.2g} above {limits['worst_row']:.2g}"
    limit = limits.get("rel_l2_default", math.inf)
    if accuracy.rel_l2_default > limit:
        return f"differs from the default's output by {accuracy.rel_l2_default:.2g}, above {limit:.2g}"
    return None


def calibrate(errors: Sequence[Accuracy], limits: Limits) -> dict[str, float]:
    """Return the limits of a problem from the default's errors over several random seeds.

    rel_l2 is min(cap, max(floor, 3 times the default's largest)); the worst row may be `limits.worst_row`
    times that or 3 times the default's, but not above `limits.worst_row` times the cap.
    """
    rel_l2 = min(limits.cap, max(limits.floor, _TIMES * max(e.rel_l2 for e in errors)))
    worst_row = max(limits.worst_row * rel_l2, _TIMES * max(e.worst_row for e in errors))
    return {
        "rel_l2": rel_l2,
        "worst_row": min(limits.worst_row * limits.cap, worst_row),
        "rel_l2_default": limits.versus_default,
    }


def default_fault(accuracy: Accuracy, limits: Limits) -> str | None:
    """Return why the default itself is wrong, judged by the caps alone, or None."""
    return fault(accuracy, {**limits.caps, "rel_l2_default": limits.versus_default})


def _chunks(output: Tensor) -> list[slice]:
    rows = max(1, _CHUNK // output.shape[1])
    return [slice(start, start + rows) for start in range(0, output.shape[0], rows)]


def _sums(output: Tensor, reference: Tensor, default: Tensor | None, rows: slice) -> tuple[Tensor, ...]:
    """Return per row, in float64, squared error and norm against reference and default, and the nonfinite."""
    out, ref = output[rows].double(), reference[rows].double()
    bad = ~(out.isfinite() & ref.isfinite())
    out, ref = out.masked_fill(bad, 0.0), ref.masked_fill(bad, 0.0)
    error, size = (out - ref).square().sum(1), ref.square().sum(1)
    if default is None:
        return error, size, torch.zeros_like(error), torch.zeros_like(error), bad.sum(1)
    base = default[rows].double()
    base = base.masked_fill(bad | ~base.isfinite(), 0.0)
    return error, size, (out - base).square().sum(1), base.square().sum(1), bad.sum(1)


def _ratio(error: Tensor, size: Tensor) -> Tensor:
    return error.sum().sqrt() / size.sum().sqrt().clamp(min=_TINY)
