"""Which candidates cannot be told apart from a learner, at a stated level of error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor

__all__ = ["EXACT", "FARTHEST", "Difference", "Row", "Standing", "difference", "standing"]

# A normalised squared difference that rounding in single precision stays below: 0.1 % of the size of predictions.
EXACT = 1e-6
# The difference of those of whom one has no answer: none is larger.
FARTHEST = 4.0

# Stakes of the bets of `_betting_bound`, which are made side by side.
_STAKES = (0.02, 0.1, 0.5)


@dataclass(frozen=True)
class Difference:
    """A normalised squared difference less noise, and what it exceeds but for the share of error that it has."""

    mean: Measurement
    low: float


@dataclass(frozen=True)
class Row:
    """A candidate at its nearest to the learner.

    Args:
        parameters: those fitted to all conditions, and ``own_parameters`` those to the family's own tasks alone.
        differences: by condition, that of |f - a|^2 over the size of labels and predictions, less the noise of both,
            on tasks that nothing was fitted to. ``own_difference`` is that of ``own_parameters``.
        screened: whether it was ruled out by a few tasks, before it was fitted to all; there is one difference alone
            where these were the family's own.
    """

    candidate: str
    parameters: Mapping[str, Any]
    differences: Mapping[str, Difference]
    own_parameters: Mapping[str, Any]
    own_difference: Difference
    screened: bool = False

    def rank(self, bound: float = EXACT, own: bool = False) -> tuple[float, int, float]:
        """By difference where it is beyond ``bound`` by its error, then by the number of sizes, then by difference."""
        differences = [self.own_difference] if own else list(self.differences.values())
        beyond = max(one.mean.value - one.mean.stderr for one in differences)
        real = sum(np.size(value) for value in self.parameters.values() if not isinstance(value, int))
        return max(beyond, bound), real, max(one.mean.value for one in differences)


@dataclass(frozen=True)
class Standing:
    """What is ruled out, and by what: the names of candidates, nearest first.

    Args:
        kind: in words, how the candidates in ``names`` stand to the learner.
        ruled_out: for each other candidate, the condition that rules it out most clearly.
    """

    kind: str
    names: Sequence[str]
    ruled_out: Mapping[str, str]


def standing(rows: Sequence[Row], tolerance: float) -> Standing:
    """The strictest sense in which a candidate is left.

    That a candidate is not ruled out says only that these tasks cannot tell. Of those whose differences are no larger
    than the bound, or no larger than the least of all by their error, the ones with fewer sizes come first, and of
    these the nearest.
    """
    for kind, bound, own in (
        ("runs", EXACT, False),
        ("approximates", tolerance, False),
        ("approximates on the family's own tasks", tolerance, True),
    ):
        reasons = {row.candidate: _reason(row, bound, own) for row in rows}
        left = [row for row in rows if reasons[row.candidate] is None]
        if left:
            bound = max(bound, min(row.rank(bound, own)[-1] for row in left))
            nearest = sorted(left, key=lambda row: row.rank(bound, own))
            out = {name: reason for name, reason in reasons.items() if reason is not None}
            return Standing(kind, tuple(row.candidate for row in nearest), out)
    return Standing("none of the candidates", (), {name: reason for name, reason in reasons.items() if reason})


def _reason(row: Row, bound: float, own: bool) -> str | None:
    """The condition under which the candidate is farthest beyond ``bound``, if it is beyond it under any."""
    lows = {"own": row.own_difference.low} if own else {name: one.low for name, one in row.differences.items()}
    clearest = max(lows, key=lambda name: lows[name])
    return clearest if lows[clearest] > bound else None


def difference(raw: Float[Tensor, " tasks"], noise: Float[Tensor, " tasks"], level: float) -> Difference:
    """A number a task; what the mean exceeds but with probability ``level``, half of it by each of two bounds.

    Student's t has a bound for what noise is taken away from, which is good where that is most of the difference. Where
    there is none, the difference of a few tasks alone shows that learners are not the same: see `_betting_bound`, which
    is given twice the noise, as that is measured, too.
    """
    mean = Measurement.of(raw - noise)
    by_t = mean.value
    if mean.stderr > 0:
        by_t -= float(stats.t.isf(level / 2, mean.n - 1)) * mean.stderr
    by_bets = _betting_bound(raw.double().numpy(), level / 2) - 2 * float(noise.mean())
    return Difference(mean, max(by_t, by_bets))


def _betting_bound(draws: np.ndarray, level: float) -> float:
    """The mean of what is never negative exceeds this but with probability ``level``, whatever its distribution.

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
