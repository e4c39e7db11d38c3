"""The ranges over which free parameters of learners are sought."""

from __future__ import annotations

from typing import Literal

from mesascope.errors import refuse, require_choice, require_count, require_number
from mesascope.validate import frozen

__all__ = ["Range"]


@frozen
class Range:
    """The values from ``low`` to ``high`` of a free parameter, even on a scale; ends of an integer range belong to it.

    Each registered learner says with ``free=`` what is free in it, so that the registry is a catalogue.

    >>> from mesascope.records import facts
    >>> facts("learner", "least-squares")["free"]
    {'ridge': Range(low=0.0001, high=100.0, scale='log')}
    """

    low: float
    high: float
    scale: Literal["log", "linear", "integer"]

    def __post_init__(self) -> None:
        require_choice("scale", self.scale, ("log", "linear", "integer"))
        for name in ("low", "high"):
            require_number(name, getattr(self, name))
            if self.scale == "integer":
                require_count(name, getattr(self, name), least=0)
        if not self.low < self.high:
            refuse("low", f"be less than high = {self.high:g}", self.low, "pass the ends in order")
        if self.scale == "log" and self.low <= 0:
            refuse("low", "be greater than 0 on a log scale", self.low, "pass a larger number")
