"""Targets: what is known of each GPU, one TOML a product."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from moetune.errors import TargetError, nearest
from moetune.model.target import Target


@cache
def all_targets() -> dict[str, Target]:
    """Return every target by name."""
    found = {}
    for entry in sorted(files(__name__).iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            data = tomllib.loads(entry.read_text("utf-8"))
            data["products"] = tuple(data.get("products", ()))
            name = entry.name.removesuffix(".toml")
            found[name] = Target(name=name, **data)
    return found


def load_target(name: str) -> Target:
    """Return the target of a name or of an architecture (then the first in order); raise TargetError."""
    targets = all_targets()
    if name.lower() in targets:
        return targets[name.lower()]
    for target in targets.values():
        if target.arch == name.lower():
            return target
    raise TargetError(f"no target {name!r}: {nearest(name, [*targets, *(t.arch for t in targets.values())])}")


def target_of(product: str) -> Target | None:
    """Return the target whose products name a device, or None."""
    for target in all_targets().values():
        if any(known.lower() == product.lower() for known in target.products):
            return target
    return None
