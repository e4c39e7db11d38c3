"""Search ranges of the free parameters of learners."""

from __future__ import annotations

from typing import Literal

from mesascope.errors import refuse, require_count
from mesascope.validate import frozen

__all__ = ["Range"]


@frozen
class Range:
    """The range of a free parameter, from ``low`` to ``high``, both ends included, even on a scale.

    Learners are registered with the ranges of their free parameters, ``free=``: the registry is a catalogue.

    >>> from mesascope.records import facts
    >>> facts("learner", "least-squares")["free"]
    {'ridge': Range(low=0.0001, high=100.0, scale='log')}
    """

    low: float
    high: float
    scale: Literal["log", "linear", "integer"]

    def __post_init__(self) -> None:
        if self.scale == "integer":
            for name in ("low", "high"):
                require_count(name, getattr(self, name), least=0)
        if not self.low < self.high:
            refuse("low", f"be less than high = {self.high:g}", self.low, "pass the ends in order")
        if self.scale == "log" and self.low <= 0:
            refuse("low", "be greater than 0 on a log scale", self.low, "pass a larger number")
