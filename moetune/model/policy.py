"""How candidates are measured and finalists chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """The measuring policy, part of a measurement's identity.

    A screen first takes `probe_samples`; a candidate whose median lies above `give_up` times the best of earlier
    rounds (`give_up_default` times the default, in the first) is dropped. Else samples are taken, flushes included,
    for `screen_us`, at least and at most `screen_samples`. Finals run `final_rounds` likewise, for `final_us` a
    finalist: with 40 samples the median's standard error is a fifth of the samples' deviation. The best
    `finalists` of a stage are re-timed: with 1 % noise on a screen's sample the best of hundreds is among the
    first eight. `pairs` of them are timed end to end. The default's rule at `fixed_tokens` is the fixed default.
    """

    probe_samples: int = 3
    screen_samples: tuple[int, int] = (5, 16)
    screen_us: float = 12_000.0
    final_rounds: tuple[int, int] = (8, 40)
    final_us: float = 150_000.0
    give_up: float = 1.5
    give_up_default: float = 3.0
    finalists: int = 8
    pairs: int = 4
    fixed_tokens: int = 64
