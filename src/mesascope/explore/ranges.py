"""Sizes of the page, and parameters of learners from the positions of sliders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the page begins before torch is imported
    from mesascope.learners import Range

# Tasks of each comparison, the largest number of pairs, and the learner that is chosen at first.
TASKS, MOST_PAIRS, CHOSEN = 1000, 40, "nearest-neighbours"


def at_share(span: Range, share: float) -> float:
    """Number at a share of a range, evenly on its scale.

    >>> from mesascope.learners import Range
    >>> at_share(Range(0.01, 1.0, "log"), 0.5)
    0.1
    """
    if span.scale == "log":
        return float(f"{span.low * (span.high / span.low) ** share:.6g}")
    number = span.low + share * (span.high - span.low)
    return round(number) if span.scale == "integer" else number


def within(span: Range, number: float) -> float:
    """The number, or the end of the range that is nearer."""
    number = min(max(number, span.low), span.high)
    return int(number) if span.scale == "integer" else number
