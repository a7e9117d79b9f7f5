"""Which configs to try next: samplers over the enumerated pool, starting configs and the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moetune.search.stage import StageSearch as StageSearch
    from moetune.search.starts import Known as Known
    from moetune.search.starts import starting_configs as starting_configs

SAMPLERS = ("auto", "gp", "tpe", "random", "exhaustive")

_HOMES = {"StageSearch": "stage", "Known": "starts", "starting_configs": "starts"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: optuna and numpy load with it, not with the package."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
