"""Readings: functions of a run's results that return numbers, with a printed description.

>>> main = stage("comparison", trained="two layers")
>>> print(main.ratio("trained", "gd"))
loss of two layers / of gradient descent
>>> print((main["cosine", "trained", "gd++"] - 0.5).log2())
log2(cosine of sensitivities of two layers and GD++ - 0.5)
>>> print(column("ours") / column("baseline"))
ours / baseline
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mesascope.errors import ArgumentError, require_choice
from mesascope.evidence.numbers import unmasked

Results = Mapping[str, Any]

# Default words for groups of learners and for quantities; arguments of `stage` override them.
_WORDS = {
    "gd": "gradient descent", "gd++": "GD++", "middle": "the midpoint", "own": "GD++ with the network's step sizes",
    "other": "the other end", "mse": "loss", "median": "median loss", "cosine": "cosine of sensitivities",
    "prediction-difference": "|difference of predictions|", "sensitivity-difference": "|difference of sensitivities|",
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """A function of a run's results that returns numbers, with a description; arithmetic on readings gives readings.

    Args:
        words: description of the numbers.
        read: function from the results to the numbers.
        joined: True if the words need parentheses in a longer expression.
    """

    words: str
    read: Callable[[Results], Any]
    joined: bool = False

    def __call__(self, results: Results) -> Any:
        return self.read(results)

    def __str__(self) -> str:
        return self.words

    def __add__(self, other: Any) -> Reading:
        return self._with("+", operator.add, other)

    def __sub__(self, other: Any) -> Reading:
        return self._with("-", operator.sub, other)

    def __mul__(self, other: Any) -> Reading:
        return self._with("*", operator.mul, other)

    def __truediv__(self, other: Any) -> Reading:
        return self._with("/", operator.truediv, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> Reading:
        return _reading(other) - self

    def __rtruediv__(self, other: float) -> Reading:
        return _reading(other) / self

    def __abs__(self) -> Reading:
        return self.map(np.abs, f"|{self}|")

    def log2(self) -> Reading:
        """Logarithm to base 2."""
        return self.map(_log2, f"log2({self})")

    def at(self, index: Any, words: str) -> Reading:
        """Index the numbers, as in NumPy: ``.at((slice(None), -1), "at the last step")``."""
        return Reading(f"{self}, {words}", lambda results: self.read(results)[index], self.joined)

    def map(self, function: Callable[[Any], Any], words: str) -> Reading:
        """Apply a function to the numbers; ``words`` describe the result."""
        return Reading(words, lambda results: function(self.read(results)))

    def _with(self, sign: str, operate: Callable[[Any, Any], Any], other: Any) -> Reading:
        one = _reading(other)
        right = f"({one})" if one.joined else str(one)
        left = f"({self})" if self.joined and sign in "*/" else str(self)
        return Reading(
            f"{left} {sign} {right}", lambda results: operate(*_aligned(self.read(results), one.read(results))), True
        )


def _reading(other: Any) -> Reading:
    """A reading as it is, or a number as a reading."""
    return other if isinstance(other, Reading) else Reading(str(other), lambda results: other)


@dataclass(frozen=True)
class StageReading:
    """A stage of a run, from which readings are made: see `stage`."""

    name: str
    groups: Mapping[str, str] = field(hash=False)
    chosen: tuple[Callable[[Any], Any], ...] = ()
    words: str = ""

    def __call__(self, results: Results) -> Any:
        """Return the stage, reduced to the selected cases."""
        if self.name not in (known := [*results]) and known:
            raise ArgumentError(
                f"results must contain the stage {self.name}, but do not: run the study again, with settings that "
                "measure it."
            )
        found = results[self.name]
        for choose in self.chosen:
            found = found.where(choose(found.cases))
        return found

    def __getitem__(self, key: str | tuple[str, ...]) -> Reading:
        """Reading of an array or of a learner's quantity: ``["mse", "trained"]``, ``["cosine", "trained", "gd"]``."""
        quantity, *groups = key if isinstance(key, tuple) else (key,)
        of = " and ".join(map(self._named, groups))
        words = self._named(quantity) + (f" of {of}" if of else "") + self.words
        return Reading(words, lambda results: self(results)[key])

    def ratio(self, above: str, below: str, quantity: str = "mse") -> Reading:
        """Ratio of a quantity between two groups."""
        words = f"{self._named(quantity)} of {self._named(above)} / of {self._named(below)}{self.words}"
        return Reading(words, lambda results: self(results).ratio(above, below, quantity), True)

    def difference(self, one: str, other: str, quantity: str = "mse") -> Reading:
        """Difference of a quantity between two groups."""
        words = f"{self._named(quantity)} of {self._named(one)} - of {self._named(other)}{self.words}"
        return Reading(words, lambda results: self(results).difference(one, other, quantity), True)

    def case(self, name: str) -> Reading:
        """Reading of a variable that distinguishes the cases, such as the scales of a sweep."""
        return Reading(self._named(name), lambda results: self(results).cases[name])

    def where(self, choose: Callable[[Any], Any], words: str) -> StageReading:
        """Select the cases for which ``choose(cases)`` is true, such as ``lambda cases: cases["x_scale"] < 1``."""
        return StageReading(self.name, self.groups, (*self.chosen, choose), f"{self.words}, {words}")

    def map(self, function: Callable[[Any], Any], words: str) -> Reading:
        """Reading of any function of the stage, described by ``words``."""
        return Reading(words + self.words, lambda results: function(self(results)))

    def _named(self, name: str) -> str:
        return self.groups.get(name, _WORDS.get(name, name))


def stage(name: str, **groups: str) -> StageReading:
    """Stage ``name`` in the results of a run; ``groups`` are words for its learners and quantities."""
    return StageReading(name, groups)


def column(name: str, words: str = "") -> Reading:
    """Reading of a named array, or of a column of a data frame, described by ``words`` (by its name if empty)."""

    def read(results: Results) -> np.ndarray:
        require_choice("the column", name, results)
        return unmasked(results[name])

    return Reading(words or name, read)


def beside(readings: Iterable[Reading], words: str) -> Reading:
    """Put readings ``(replicates,)`` or ``(replicates, cases)`` side by side as cases, described by ``words``."""
    all_ = tuple(readings)
    return Reading(words, lambda results: np.column_stack([one(results) for one in all_]))


def _aligned(one: Any, other: Any) -> tuple[Any, Any]:
    """Two operands; of arrays with as many rows, the one with fewer axes gets further last axes.

    Whole numbers and truth values become floats, which do not wrap around.
    """
    one, other = (
        numbers.astype(float) if isinstance(numbers, np.ndarray) and numbers.dtype.kind in "biu" else numbers
        for numbers in (one, other)
    )
    axes = np.ndim(one), np.ndim(other)
    if 0 in axes or axes[0] == axes[1] or len(one) != len(other):
        return one, other
    wanted = max(axes)
    return tuple(np.expand_dims(numbers, tuple(range(np.ndim(numbers), wanted))) for numbers in (one, other))  # type: ignore[return-value]


def _log2(numbers: Any) -> Any:
    if np.asarray(numbers).dtype.kind != "O":
        return np.log2(numbers)
    from uncertainties import umath

    return np.vectorize(umath.log, otypes=[object])(numbers).view(type(numbers)) / np.log(2.0)  # type: ignore[attr-defined]
