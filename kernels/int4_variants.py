"""The kernels of one int4 family: a description for each group size, with and without zero points."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from moetune.model.format import FORMATS

from .grouped import Grouped


def variants(plain: Grouped) -> SimpleNamespace:
    """Return the descriptions as attributes of their names; a family whose K step is a group takes that for tile_k."""
    found = SimpleNamespace()
    for suffix in ("", "_g64", "_g32", "_zp", "_g64_zp", "_g32_zp"):
        form = FORMATS[plain.format.name + suffix]
        tile_k = (form.weights.group,) if plain.groups else plain.tile_k
        setattr(found, form.name, replace(plain, name=form.name, format=form, tile_k=tile_k))
    return found
