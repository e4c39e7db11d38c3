"""Verdicts about candidates: equal to the learner, different from it, or not measured well enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor

# A normalised squared difference that rounding in single precision stays below: 0.1 % of the size of predictions.
EXACT = 1e-6
# The largest difference, and that of two learners of which one has no answer.
FARTHEST = 4.0
# Tasks a condition of which fewer show only equality to rounding: those on which two learners differ may be missing.
ENOUGH = 24
# Senses of equality, strictest first.
RUNS, APPROXIMATES, OWN_TASKS = "runs", "approximates", "approximates on the family's own tasks"
# Answers that name no candidate.
UNDECIDED, NONE = "not measured well enough", "none of the candidates"

# Stakes of the bets of `_betting_bound`, which are made side by side.
_STAKES = (0.02, 0.1, 0.5)


@dataclass(frozen=True)
class Difference:
    """A normalised squared difference, less noise, with its lower and upper confidence bounds.

    `difference` states the error rate of each bound.
    """

    mean: Measurement
    low: float
    high: float

    def below(self, bound: float) -> bool:
        """True if the upper bound lies below ``bound``, from `ENOUGH` tasks or more unless ``bound`` is of rounding."""
        return self.high < bound and (bound <= EXACT or self.mean.n >= ENOUGH)

    def tasks_to_decide(self, bound: float) -> float:
        """Number of tasks at which an interval of this mean and spread would exclude ``bound``; inf if none would."""
        gap = abs(self.mean.value - bound)
        reach = self.high - self.mean.value if self.mean.value < bound else self.mean.value - self.low
        return max(self.mean.n * (reach / gap) ** 2, ENOUGH) if gap > 0 and math.isfinite(reach) else math.inf


@dataclass(frozen=True)
class Row:
    """A candidate with the parameters at which it is nearest to the learner.

    Args:
        family: the family of algorithms that the candidate belongs to.
        parameters: those fitted to all conditions; ``own_parameters`` those fitted to the family's own tasks alone.
        differences: by condition, E |f - a|^2 over the size of labels and predictions, less the noise of both,
            on held-out tasks. ``own_difference`` is that of ``own_parameters``.
        screened: True if the comparison ended before the candidate was fitted to all tasks and tested under all
            conditions: it is ruled out, or costly and not shown to be equal on the family's own tasks.
    """

    candidate: str
    family: str
    parameters: Mapping[str, Any]
    differences: Mapping[str, Difference]
    own_parameters: Mapping[str, Any]
    own_difference: Difference
    screened: bool = False

    @property
    def numbers(self) -> int:
        """Number of fitted real parameters."""
        return sum(np.size(value) for value in self.parameters.values() if not isinstance(value, int))

    def within(self, bound: float, own: bool = False) -> bool:
        """True if the upper bounds of all differences lie below ``bound``: evidence of equality."""
        return (own or not self.screened) and all(one.below(bound) for one in self._differences(own))

    def beyond(self, bound: float, own: bool = False) -> str | None:
        """Condition whose lower bound lies farthest above ``bound``, if any does: evidence of a difference."""
        lows = {"own": self.own_difference.low} if own else {name: one.low for name, one in self.differences.items()}
        clearest = max(lows, key=lambda name: lows[name])
        return clearest if lows[clearest] > bound else None

    def undecided_by(self, bound: float, own: bool = False) -> str:
        """Condition whose interval contains ``bound`` and needs the most tasks to exclude it."""
        named = {"own": self.own_difference} if own else self.differences
        return max(named, key=lambda name: 0.0 if named[name].below(bound) else named[name].tasks_to_decide(bound))

    def _differences(self, own: bool) -> list[Difference]:
        return [self.own_difference] if own else list(self.differences.values())


@dataclass(frozen=True)
class Share:
    """Nearest member of a family of algorithms to the learner, on tasks of the learner's own family.

    Args:
        unexplained: share of the size of predictions that the member leaves unexplained, less noise.
        behind: the same less that of the nearest family, on the same tasks; None for the nearest.
    """

    family: str
    candidate: str
    parameters: Mapping[str, Any]
    unexplained: Measurement
    behind: Measurement | None


@dataclass(frozen=True)
class Standing:
    """Verdicts about all candidates; names are in the order of the rows, nearest first.

    Args:
        kind: the sense in which the candidates in ``names`` equal the learner, or `UNDECIDED` or `NONE`.
        ruled_out: for each candidate that differs, the condition that shows it most clearly.
        undecided: for each candidate that is neither, the condition that is not measured well enough.
    """

    kind: str
    names: Sequence[str]
    ruled_out: Mapping[str, str]
    undecided: Mapping[str, str]


def standing(rows: Sequence[Row], tolerance: float) -> Standing:
    """Judge candidates in the strictest sense in which the differences of any lie below the bound.

    A candidate *runs* or *approximates* only by evidence of equality: the upper bounds of its differences, under all
    conditions, lie below the bound, and those of an approximation are of at least `ENOUGH` tasks. It is ruled out if
    the lower bound of any lies above it. Any other candidate is undecided.
    """
    for kind, bound, own in ((RUNS, EXACT, False), (APPROXIMATES, tolerance, False), (OWN_TASKS, tolerance, True)):
        named = [row.candidate for row in rows if row.within(bound, own)]
        if named:
            return Standing(kind, named, *_others(rows, named, bound, own))
    ruled_out, undecided = _others(rows, (), tolerance, False)
    return Standing(UNDECIDED if undecided else NONE, (), ruled_out, undecided)


def _others(
    rows: Sequence[Row], named: Sequence[str], bound: float, own: bool
) -> tuple[dict[str, str], dict[str, str]]:
    ruled_out, undecided = {}, {}
    for row in rows:
        if row.candidate in named:
            continue
        condition = row.beyond(bound, own)
        if condition is not None:
            ruled_out[row.candidate] = condition
        else:
            undecided[row.candidate] = row.undecided_by(bound, own)
    return ruled_out, undecided


def difference(
    raw: Float[Tensor, " tasks"],
    noise: Float[Tensor, " tasks"],
    level: float,
    naming: float | None = None,
    *,
    by_bets: bool = True,
) -> Difference:
    """Mean of ``raw - noise`` over tasks, with confidence bounds.

    The lower bound exceeds the true mean with probability ``level`` at most, half of it by each of two bounds.
    Student's t is good where noise is most of the difference. Where there is no noise, the difference of a few tasks
    alone shows that learners are not the same: see `_betting_bound`, from which twice the noise is taken, as noise is
    measured, too.

    The upper bound, by Student's t, is below the true mean with probability ``naming`` (``level`` if None), and
    infinite where there is no standard error.

    Args:
        by_bets: False for ``raw`` that may be negative.
    """
    mean = Measurement.of(raw - noise)
    by_t, high = mean.value, math.inf
    if math.isfinite(mean.stderr):
        by_t -= float(stats.t.isf(level / 2, mean.n - 1)) * mean.stderr
        high = mean.value + float(stats.t.isf(naming or level, mean.n - 1)) * mean.stderr
    bets = _betting_bound(raw.double().numpy(), level / 2) - 2 * float(noise.mean()) if by_bets else -math.inf
    return Difference(mean, max(by_t, bets), high)


def _betting_bound(draws: np.ndarray, level: float) -> float:
    """Lower bound of a mean of non-negative draws, exceeded with probability ``level`` whatever their distribution.

    Were the mean b, a bet that multiplies a stake by 1 + s (draw / b - 1) for each draw would be fair, and would exceed
    1 / level with probability ``level`` at most. The bound is the largest b at which it does.

    Source: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting (2024).
    """
    if not draws.max() > 0:
        return 0.0
    stakes = np.array(_STAKES)[:, None]

    def won(log_bound: float) -> float:
        gains = np.log1p(stakes * (draws / np.exp(log_bound) - 1)).sum(1)
        return float(np.logaddexp.reduce(gains) - np.log(len(_STAKES)) + np.log(level))

    high = float(np.log(draws.mean()))
    low = high - 60
    return math.exp(optimize.brentq(won, low, high)) if won(low) > 0 else 0.0  # type: ignore[arg-type]
