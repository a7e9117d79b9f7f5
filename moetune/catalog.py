"""Shape files: where they are, and how one is read and checked."""

from __future__ import annotations

import os
import reprlib
import tomllib
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_type_hints

from moetune.errors import ShapeError, nearest
from moetune.model.format import FORMATS
from moetune.model.shape import ACTIVATIONS, Shape

_LARGEST = 1 << 24  # above any layer or batch; bytes and operations stay finite as floats
_MAY_BE_ZERO = ("shared_experts", "alpha", "beta", "limit")
_WORDS = {"act": ACTIVATIONS, "formats": tuple(FORMATS)}
_EXAMPLES = {
    "model": 'model = "Qwen3.5-397B-A17B"',
    "model_dim": "model_dim = 4096",
    "inter_dim": "inter_dim = 1024",
    "experts": "experts = 512",
    "topk": "topk = 10",
    "act": 'act = "silu"',
    "gated": "gated = true",
    "formats": 'formats = ["bf16"]',
    "tp": "tp = [1, 2, 4]",
    "tokens": "tokens = [1, 16, 256]",
    "shared_experts": "shared_experts = 1",
    "moe_layers": "moe_layers = 60",
    "alpha": "alpha = 1.702",
    "beta": "beta = 1.0",
    "limit": "limit = 7.0",
    "interleaved": "interleaved = true",
    "biases": "biases = true",
    "router_on_input": "router_on_input = true",
}


@cache
def _bundled() -> dict[str, Traversable]:
    entries = files("moetune.shapes").iterdir()
    found = {e.name.removesuffix(".toml"): e for e in entries if e.name.endswith(".toml")}
    return dict(sorted(found.items()))


def shape_names() -> list[str]:
    """Return the names of the shapes that come with moetune, sorted."""
    return list(_bundled())


def load_shape(name_or_path: str | Path) -> Shape:
    """Return the shape of a name (any case) or of a path; `.toml` may be left out of both.

    A text with a folder or with `.toml` is a path first. Raise ShapeError, in one line with file, field and
    remedy, where there is no such shape or its file is wrong.
    """
    text = str(name_or_path)
    paths = [path for path in (text, f"{text}.toml") if os.path.exists(path)]
    if paths and (text.lower().endswith(".toml") or os.path.dirname(text)):
        return _read(paths[-1])
    bundled = _bundled().get(text.lower().removesuffix(".toml"))
    if bundled is not None:
        return _parse(bundled.name, bundled.read_bytes())
    if paths:
        return _read(paths[-1])
    near = nearest(os.path.basename(text).removesuffix(".toml"), shape_names())
    if near.startswith("known"):
        near = "`moetune shapes` lists them; or give the path of a .toml"
    raise ShapeError(f"no shape {_shown(text)}: {near}")


def _read(path: str) -> Shape:
    try:
        return _parse(path, Path(path).read_bytes())
    except IsADirectoryError:
        raise ShapeError(f"{path}: is a folder; name one .toml in it") from None
    except OSError as error:
        raise ShapeError(f"{path}: cannot be read ({error.strerror}); check the file") from None


def _parse(where: str, content: bytes) -> Shape:
    try:
        data = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ShapeError(f"{where}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"{where}: not TOML: {' '.join(str(error).split())}") from None
    kinds = get_type_hints(Shape) | {"model": str}
    del kinds["name"]  # the file's stem
    for key in data:
        if key not in kinds:
            raise ShapeError(f"{where}: unknown field {_shown(key)}: {nearest(key, kinds)}")
    for field in fields(Shape):
        if field.name in kinds and field.default is MISSING and field.name not in data:
            raise ShapeError(f"{where}: {field.name} is missing; add a line like {_EXAMPLES[field.name]}")
    values = {key: _value(where, key, value, kinds[key]) for key, value in data.items()}
    values.pop("model", None)
    return _consistent(where, Shape(name=Path(where).stem, **values))


def _consistent(where: str, shape: Shape) -> Shape:
    if shape.topk > shape.experts:
        raise ShapeError(f"{where}: topk {shape.topk} is above experts {shape.experts}; lower topk")
    if shape.router_on_input and shape.topk > 1:
        raise ShapeError(
            f"{where}: router_on_input with topk {shape.topk}: a token's experts share its input; set topk = 1"
        )
    for tp in shape.tp:
        if shape.inter_dim % tp:
            legal = ", ".join(str(t) for t in (1, 2, 4, 8, 16) if shape.inter_dim % t == 0)
            raise ShapeError(f"{where}: tp {tp} does not divide inter_dim {shape.inter_dim}; {legal} do")
    return shape


def _value(where: str, key: str, value: object, kind: Any) -> Any:
    """Return one value in the type of its field: a scalar, or a tuple of distinct ones."""
    scalars = getattr(kind, "__args__", None)
    if scalars is None:
        return _scalar(where, key, value, kind)
    if not isinstance(value, list) or not value:
        raise ShapeError(f"{where}: {key} {_shown(value)} is no filled list; write it as {_EXAMPLES[key]}")
    return tuple(dict.fromkeys(_scalar(where, key, item, scalars[0]) for item in value))


def _scalar(where: str, key: str, value: Any, kind: type) -> Any:
    if kind is float and type(value) is int and abs(value) <= _LARGEST:
        value = float(value)
    exact = type(value) is kind  # a bool is no integer here
    if not exact:
        raise ShapeError(f"{where}: {key} {_shown(value)} is of the wrong type; write it as {_EXAMPLES[key]}")
    if key in _WORDS and value not in _WORDS[key]:
        raise ShapeError(f"{where}: {key} {_shown(value)} is unknown: {nearest(value, _WORDS[key])}")
    if kind in (int, float):
        least = 0 if key in _MAY_BE_ZERO else 1
        if not least <= value <= _LARGEST:
            raise ShapeError(f"{where}: {key} {_shown(value)} is out of range; write {least} to {_LARGEST}")
    return value


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "(a huge number)"
