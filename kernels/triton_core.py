"""What the grouped Triton kernels share: the order of programs, the activation, rounding to bf16."""

# Triton's language has no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import triton
import triton.language as tl


@triton.jit
def locate(tiles, tiles_m, tiles_n, group_m):
    """Return (expert, first row, end row, N tile) of this program; an unused tile has first row = end row.

    The N tiles of `group_m` consecutive M tiles run together, so that those share weights and activations in
    the L2 cache.
    """
    width = group_m * tiles_n
    program = tl.program_id(0)
    first = program // width * group_m
    height = tl.minimum(tiles_m - first, group_m)
    within = program % width
    entry = tiles + (first + within % height) * 4
    return tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), within // height


@triton.jit
def activate(gate, up, ACT: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr, LIMIT: tl.constexpr):
    """Return the gated activation in fp32: silu, swiglu or gelu_tanh of the gate, times up (swiglu: up + BETA).

    silu and swiglu clamp the gate from above and up from both sides where LIMIT is positive.
    """
    if ACT == "gelu_tanh":
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 sqrt(2 / pi)
        out = gate / (1.0 + tl.exp(-inner)) * up
    else:
        if LIMIT > 0:
            gate = tl.minimum(gate, LIMIT)
            up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        if ACT == "swiglu":
            out = gate / (1.0 + tl.exp(-ALPHA * gate)) * (up + BETA)
        else:
            out = gate / (1.0 + tl.exp(-gate)) * up
    return out


@triton.jit
def to_bf16(x, WIDEN: tl.constexpr):
    """Round fp32 to bf16, to nearest even: by hand in the interpreter (WIDEN), which would cut off."""
    if WIDEN:
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        rounded = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        rounded = x.to(tl.bfloat16)
    return rounded
