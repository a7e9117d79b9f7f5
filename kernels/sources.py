"""A hash of what decides a kernel's results and speed."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from functools import cache
from pathlib import Path


@cache
def source_hash(names: tuple[str, ...]) -> str:
    """Return a hash of modules of this package that changes with their code, not with comments or docstrings.

    It is taken of the source text, so that every Python agrees on it.
    """
    digest = hashlib.sha256()
    for name in names:
        digest.update(_code((Path(__file__).parent / name).read_text("utf-8")).encode())
    return digest.hexdigest()[:16]


def _code(text: str) -> str:
    """Return a module's lines that are not blank, without comments and docstrings."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]
    return "\n".join(line.rstrip() for line in lines if line.strip())
