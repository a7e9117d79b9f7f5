"""The parameters of one stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from moetune.errors import UsageError


@dataclass(frozen=True, order=True)
class Config(Mapping[str, int]):
    """An ordered, hashable mapping from axis to integer value."""

    items_: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **values: int) -> Config:
        """Build a config from keyword arguments, keeping their order."""
        return cls(tuple(values.items()))

    @classmethod
    def parse(cls, text: str) -> Config:
        """Read ``tile_m=16;tile_n=128``; raise UsageError on anything else."""
        try:
            pairs = [part.split("=") for part in text.replace(",", ";").split(";") if part.strip()]
            return cls(tuple((name.strip(), int(value)) for name, value in pairs))
        except ValueError:
            raise UsageError(f"config {text!r}: write it as 'tile_m=16;tile_n=128;...'") from None

    @cached_property
    def _values(self) -> dict[str, int]:
        return dict(self.items_)

    @cached_property
    def _hash(self) -> int:
        return hash(self.items_)

    def __hash__(self) -> int:
        return self._hash

    def __getitem__(self, axis: str) -> int:
        return self._values[axis]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def replace(self, **changes: int) -> Config:
        """Return a copy with some axes changed, in the same order."""
        return Config(tuple((name, changes.get(name, value)) for name, value in self.items_))

    def __str__(self) -> str:
        return ";".join(f"{name}={value}" for name, value in self.items_)
