"""Whether what a candidate writes is right, in full, repeatable, and all that it touches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from moetune.device.accuracy import compare, fault
from moetune.device.answers import Entrant, Rival
from moetune.device.loaded import Loaded, bits_of, same_bits
from moetune.kernel import LAYER
from moetune.model.config import Config
from moetune.model.routing import Routing
from moetune.model.trial import Accuracy, Outcome

VERIFY_SEED = 101
"""Added to the random seed for the draws of the last check, so that none repeats a calibration's."""


def check(loaded: Loaded, stage: int, config: Config) -> tuple[Outcome, str, Accuracy | None]:
    """Check one config of a stage on poisoned outputs, twice; return its outcome, the reason and its accuracy.

    What it writes beside its outputs is for the caller to ask (`Loaded.damage`), once it has also been timed. An
    output that is not finite is run once more with zeros in the guard zones: if that changes it, the config
    reads outside its operands.
    """
    seen = stage or LAYER
    loaded.restore(stage)
    loaded.code.sort(loaded.operands, config)
    first = _fresh_run(loaded, stage, seen, config)
    accuracy = compare(loaded.code.decode(seen, loaded.operands), loaded.references[seen], loaded.default_outputs[seen])
    wrong = fault(accuracy, loaded.limits[seen])
    if accuracy.nonfinite:
        loaded.arena.fill_guards(0)
        try:
            second = _fresh_run(loaded, stage, seen, config)
        finally:
            loaded.arena.fill_guards()
        if not same_bits(first, second):
            return Outcome.OUT_OF_BOUNDS, "reads outside its operands (the guard zones change its output)", accuracy
        return Outcome.INACCURATE, wrong or "", accuracy
    if not same_bits(first, _fresh_run(loaded, stage, seen, config)):
        return Outcome.NONDETERMINISTIC, "two runs on the same operands differ", accuracy
    return (Outcome.INACCURATE, wrong, accuracy) if wrong else (Outcome.OK, "", accuracy)


def _fresh_run(loaded: Loaded, stage: int, seen: int, config: Config) -> list[Tensor]:
    loaded.poison(seen)
    loaded.run(stage, config)
    return [bits.clone() for bits in bits_of(loaded.code.outputs(seen, loaded.operands))]


class Damage(Exception):
    """A finalist wrote beside its outputs: the operands can no longer be trusted."""


def check_layer(loaded: Loaded, entrant: Entrant) -> tuple[Accuracy, str]:
    """Run a whole layer twice on poisoned outputs; return its accuracy and why it is wrong, if it is.

    A rival rounds where the kernel does not: it is held to the caps alone. Raises Damage where one writes beside its
    outputs.
    """
    runs = []
    for _ in range(2):
        loaded.poison(*loaded.stages)
        loaded.layer(entrant)
        runs.append([bits.clone() for bits in bits_of(loaded.code.outputs(LAYER, loaded.operands))])
    output = loaded.code.decode(LAYER, loaded.operands)
    accuracy = compare(output, loaded.references[LAYER], loaded.default_outputs[LAYER])
    limits = loaded.kernel.limits.caps if isinstance(entrant, Rival) else loaded.limits[LAYER]
    wrong = fault(accuracy, limits) or ""
    if not wrong and not same_bits(*runs):
        wrong = "two runs of the layer differ"
    refuse_damage(loaded, LAYER)
    return accuracy, wrong


def refuse_damage(loaded: Loaded, stage: int) -> None:
    """Raise Damage where a stage has written beside its outputs."""
    damage = loaded.damage(stage)
    if damage:
        raise Damage(damage)


def verify(loaded: Loaded, pairs: Sequence[tuple[Config, ...]]) -> list[str]:
    """Check pairs on other draws: a second seed, both ends of the bucket, one hot expert among empty ones.

    Returns for each pair why it is wrong, or nothing. Raises Damage where one writes beside its outputs.
    """
    problem = loaded.problem
    counts = dict.fromkeys((problem.tokens, problem.tokens // 2 + 1, problem.tokens - 1))
    variants = [(dataclasses.replace(problem, tokens=n), f"{n} tokens") for n in counts if n > 0]
    variants.append((dataclasses.replace(problem, routing=Routing("hot", 0.5)), "hot routing"))
    reasons = [""] * len(pairs)
    for number, (variant, name) in enumerate(variants):
        other = loaded.variant(variant, loaded.seed + VERIFY_SEED + number)
        other.take_default()
        for index, pair in enumerate(pairs):
            wrong = check_layer(other, pair)[1]
            refuse_damage(loaded, LAYER)
            if wrong and not reasons[index]:
                reasons[index] = f"wrong on another draw ({name}): {wrong}"
    return reasons
