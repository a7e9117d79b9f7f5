"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from moetune.errors import UsageError, nearest

_LARGEST = 1 << 24
FORMS = ("text", "markdown", "csv", "json")

Form = Annotated[str, typer.Option("--format", help="text, markdown, csv or json.", metavar="FORMAT")]
Json = Annotated[bool, typer.Option("--json", help="Short for --format json.")]


def form_of(form: str, json: bool) -> str:
    """Return the output format asked for; raise UsageError on an unknown one."""
    if json:
        return "json"
    if form not in FORMS:
        raise UsageError(f"--format {form!r}: {nearest(form, FORMS)}")
    return form


def split(values: list[str] | None) -> list[str]:
    """Return the parts of an option that repeats or takes commas."""
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def integers(text: str, option: str) -> list[int]:
    """Read ``1,2,4`` or ``1-256,1024`` (A-B: the powers of two from A to B), sorted; raise UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        try:
            first, last = int(low), int(high if dash else low)
        except ValueError:
            raise UsageError(f"{option} {text!r}: write numbers as 1,2,4 or powers of two as 1-256") from None
        if not 1 <= first <= last <= _LARGEST:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is not from 1 to {_LARGEST}, low before high")
        powers = {1 << i for i in range(last.bit_length()) if 1 << i >= first} if dash else {first}
        if not powers:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} holds no power of two; write numbers as 5,6,7")
        found |= powers
    return sorted(found)
