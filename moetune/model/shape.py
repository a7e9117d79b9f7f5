"""A model's MoE layer, as serving shards it."""

from __future__ import annotations

from dataclasses import dataclass

from moetune.model.format import Format

ACTIVATIONS = ("silu", "swiglu", "gelu_tanh", "relu2", "situ")


@dataclass(frozen=True)
class Shape:
    """One MoE layer: sizes at tensor parallel 1, and what serving does with it.

    `inter_dim` is the width of one expert's intermediate at TP1 (after gate and up are combined).
    `limit` clamps gate and up before silu and swiglu (0: no clamp), `alpha` and `beta` are constants of swiglu.
    `router_on_input` weights a token's input by its router weight, in place of its output (topk 1 only).
    """

    name: str
    model_dim: int
    inter_dim: int
    experts: int
    topk: int
    act: str
    gated: bool
    formats: tuple[str, ...]
    tp: tuple[int, ...]
    tokens: tuple[int, ...]
    shared_experts: int = 0
    moe_layers: int = 1
    alpha: float = 1.0
    beta: float = 0.0
    limit: float = 0.0
    interleaved: bool = False
    biases: bool = False
    router_on_input: bool = False

    def inter_at(self, tp: int) -> int:
        """Return inter_dim per rank at a tensor parallel degree."""
        return self.inter_dim // tp

    def illegal(self, tp: int, form: Format) -> str | None:
        """Return why a format cannot be used at a tensor parallel degree, or None."""
        inter = self.inter_at(tp)
        for what, k in (("model_dim", self.model_dim), ("inter_dim", inter)):
            if k % form.k_multiple:
                return f"{what} {k} is no multiple of {form.k_multiple}"
        if inter % form.tile:
            return f"inter_dim {inter} is no multiple of the {form.tile}-row weight block"
        return None
