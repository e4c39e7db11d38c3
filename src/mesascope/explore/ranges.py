"""Sizes of the page, and conversion of slider positions to parameters of learners."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the page begins before torch is imported
    from mesascope.learners import Range

# Number of tasks per comparison, maximum number of pairs, and default of the second menu.
TASKS, MOST_PAIRS, CHOSEN = 1000, 40, "nearest-neighbours"


def at_share(span: Range, share: float) -> float:
    """Number at a share (0 to 1) of a range, measured on the range's scale.

    >>> from mesascope.learners import Range
    >>> at_share(Range(0.01, 1.0, "log"), 0.5)
    0.1
    """
    if span.scale == "log":
        return float(f"{span.low * (span.high / span.low) ** share:.6g}")
    number = span.low + share * (span.high - span.low)
    return round(number) if span.scale == "integer" else number


def within(span: Range, number: float) -> float:
    """The number, clipped to the range."""
    number = min(max(number, span.low), span.high)
    return int(number) if span.scale == "integer" else number
