"""Placeholders for missing results, so that a part of a study can be computed alone."""

from __future__ import annotations

from typing import NoReturn


class MissingError(Exception):
    """A study uses a missing result."""


class Missing:
    """Placeholder for a result; attributes, indexing, iteration, calls and arithmetic raise `MissingError`."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds

    def members(self) -> list[Missing]:
        return [self] * self._seeds

    def __getattr__(self, name: str) -> NoReturn:
        raise MissingError

    def _used(self, *arguments: object) -> NoReturn:
        raise MissingError

    __getitem__ = __iter__ = __len__ = __call__ = __float__ = __bool__ = __contains__ = _used
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __array__ = _used
