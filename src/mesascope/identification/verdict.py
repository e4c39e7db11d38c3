"""Verdicts about candidates: equal to the learner, different from it, or not measured well enough."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor

# Upper bound of normalised squared differences from rounding in single precision: (0.1 % of the predictions' size)^2.
EXACT = 1e-6
# Maximum difference, also used if one of two learners has no answer.
FARTHEST = 4.0
# Minimum number of tasks per condition for an approximation: fewer tasks may miss those on which two learners differ.
ENOUGH = 24
# Senses of equality, strictest first.
RUNS, APPROXIMATES, OWN_TASKS = "runs", "approximates", "approximates on the family's own tasks"
# Verdicts that name no candidate.
UNDECIDED, NONE = "not measured well enough", "none of the candidates"

# Stakes s of the parallel bets in `_betting_bound`.
_STAKES = (0.02, 0.1, 0.5)
# Error rate and maximum slope of `_log_normal_bound`. All candidates share the tasks on which it may err.
_SKEWED, _STEEPEST = 0.01, 5.0


@dataclass(frozen=True)
class Difference:
    """Mean squared difference of two learners over the variance of predictions, minus noise, with confidence bounds.

    `difference` states the error rate of each bound.

    Args:
        skewed: upper bound for skewed differences, whose logarithm approaches that of the mean as 1 / sqrt(n).
    """

    mean: Measurement
    low: float
    high: float
    skewed: float = 0.0

    def upper(self, bound: float) -> float:
        """Upper bound for a comparison with ``bound``: ``high``, and the larger of both bounds above `EXACT`."""
        return max(self.high, self.skewed) if bound > EXACT else self.high

    def below(self, bound: float) -> bool:
        """True if the upper bound is below ``bound``, from at least `ENOUGH` tasks if ``bound`` is above `EXACT`."""
        return self.upper(bound) < bound and (bound <= EXACT or self.mean.n >= ENOUGH)

    def tasks_to_decide(self, bound: float) -> float:
        """Number of tasks at which an interval with this mean and spread excludes ``bound``; inf if no number does."""
        mean, end = self.mean.value, self.upper(bound) if self.mean.value < bound else self.low
        if mean == bound or not math.isfinite(end):
            return math.inf
        if 0 < mean < bound and end > self.high:
            mean, end, bound = map(math.log, (mean, end, bound))
        return max(self.mean.n * ((end - mean) / (bound - mean)) ** 2, ENOUGH)


@dataclass(frozen=True)
class Row:
    """A candidate with its best-fitting parameters and its differences from the learner.

    Args:
        family: family of algorithms of the candidate.
        parameters: parameters fitted to all conditions; ``own_parameters`` are fitted to the family's own tasks alone.
        differences: by condition, E |f - a|^2 of learner f and candidate a over the variance of predictions, minus the
            noise of both, on held-out tasks; ``own_difference`` uses ``own_parameters``. If `ruled_out_by_draws`
            decides, each is a draw's distance from the nearest deterministic candidate, minus the learner's.
        screened: True if the comparison ended before the fit to all tasks or the test under all conditions. The
            candidate is then ruled out, or costly and not shown to equal the learner on the family's own tasks.
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
        return (own or not self.screened) and all(one.below(bound) for one in self.judged(own).values())

    def beyond(self, bound: float, own: bool = False) -> str | None:
        """Evidence of a difference: the condition whose lower bound lies farthest above ``bound``, or None."""
        judged = self.judged(own)
        clearest = max(judged, key=lambda name: judged[name].low)
        return clearest if judged[clearest].low > bound else None

    def undecided_by(self, bound: float, own: bool = False) -> str:
        """Condition that needs the most tasks until its interval excludes ``bound``."""
        judged = self.judged(own)
        return max(judged, key=lambda name: 0.0 if judged[name].below(bound) else judged[name].tasks_to_decide(bound))

    def judged(self, own: bool) -> Mapping[str, Difference]:
        """Differences that decide: under all conditions, or on the family's own tasks alone."""
        return {"own": self.own_difference} if own else self.differences


@dataclass(frozen=True)
class Share:
    """Nearest member of a family of algorithms, on the task family's own tasks.

    Args:
        unexplained: unexplained share of the variance of predictions, minus noise.
        behind: ``unexplained`` minus that of the nearest family, on the same tasks; None for the nearest.
    """

    family: str
    candidate: str
    parameters: Mapping[str, Any]
    unexplained: Measurement
    behind: Measurement | None


@dataclass(frozen=True)
class Standing:
    """Verdicts on all candidates; names are in the order of the rows, the nearest first.

    Args:
        kind: sense in which the candidates in ``names`` equal the learner, or `UNDECIDED` or `NONE`.
        ruled_out: for each candidate that differs, the condition with the clearest difference.
        undecided: for each other candidate, the condition that is not measured well enough.
    """

    kind: str
    names: Sequence[str]
    ruled_out: Mapping[str, str]
    undecided: Mapping[str, str]


def standing(rows: Sequence[Row], tolerance: float) -> Standing:
    """Judge candidates in the strictest sense of equality that holds for at least one.

    Equality needs evidence: the upper bounds of the candidate's differences lie below the threshold under all
    conditions, with at least `ENOUGH` tasks each for an approximation. A candidate is ruled out if the lower bound of
    any difference lies above the threshold. All others are undecided.
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
    others = [row for row in rows if row.candidate not in named]
    ruled_out = {row.candidate: condition for row in others if (condition := row.beyond(bound, own))}
    undecided = {row.candidate: row.undecided_by(bound, own) for row in others if row.candidate not in ruled_out}
    return ruled_out, undecided


def difference(
    raw: Float[Tensor, " tasks"],
    noise: Float[Tensor, " tasks"],
    level: float,
    naming: float | None = None,
    *,
    squares: bool = True,
) -> Difference:
    """Mean of ``raw - noise`` over tasks, with confidence bounds.

    The lower bound exceeds the true mean with probability at most ``level``. It is the larger of two bounds, each with
    half this rate. Student's t bound is tight if most of the difference is noise. `_betting_bound` is tight without
    noise: differences on a few tasks then prove that two learners differ. Twice the noise is subtracted from this
    bound, as the noise is itself an estimate.

    The upper bound is below the true mean with probability about ``naming`` (``level`` if None). It is Student's t
    bound, plus the most that tasks not drawn can add if their differences are as large as the largest without noise
    (the largest excess of the sorted differences over the sorted noise): with this probability, n draws miss a share 1
    - naming^(1/n) of all tasks. Differences on few tasks are skewed, for which Student's t alone is too low. ``skewed``
    is the `_log_normal_bound` of ``raw``, minus that of ``noise``. Without a standard error, the upper bound is
    infinite. A mean below 0, which shows that the noise was not subtracted rightly, counts with its size.

    Args:
        squares: False if ``raw`` may be negative: only the bounds from Student's t are used.
    """
    mean = Measurement.of(raw - noise)
    low, high = mean.value, math.inf
    if math.isfinite(mean.stderr):
        low -= quantile(level / 2, mean.n - 1) * mean.stderr
        rate = naming or level
        largest = max(float((raw.sort().values - noise.sort().values).max()), 0.0)
        reach = quantile(rate, mean.n - 1) * mean.stderr + largest * (1 - rate ** (1 / mean.n))
        high = abs(mean.value) + reach
    if not squares:
        return Difference(mean, low, high)
    draws, twice = raw.double().numpy(), 2 * float(noise.mean())
    low = _betting_bound(draws, level / 2, low + twice) - twice
    skewed = min(_log_normal_bound(draws) - _log_normal_bound(noise.double().numpy()), FARTHEST)
    return Difference(mean, low, high, skewed)


def averaged(parts: Sequence[Measurement]) -> Measurement:
    """Mean over conditions. They distort the same tasks, so errors are correlated: the error is the average too."""
    value, error = (sum(getattr(part, field) for part in parts) / len(parts) for field in ("value", "stderr"))
    return Measurement(value, error, min(part.n for part in parts))


@functools.lru_cache(maxsize=1024)
def quantile(tail: float, freedom: int) -> float:
    """Quantile of Student's t with probability ``tail`` above it."""
    from scipy import stats

    return float(stats.t.isf(tail, freedom))


def _log_normal_bound(draws: np.ndarray) -> float:
    """Upper confidence bound of the mean of skewed positive draws, with error rate `_SKEWED`; 0 below four draws.

    The line through the larger half of the sorted logarithms over normal quantiles has intercept m and slope s. The
    mean of a log-normal distribution is exp(m + s^2 / 2); the variance of the exponent is about (pi / 2 s^2 + s^4) / n.
    """
    n, quantiles = len(draws), _normal_scores(len(draws))
    half = len(quantiles)
    if half < 2:
        return 0.0
    logs = np.log(np.maximum(np.sort(draws)[-half:], np.finfo(float).tiny))
    slope = min(np.polyfit(quantiles, logs, 1)[0], _STEEPEST)
    middle = logs.mean() - slope * quantiles.mean()
    error = math.sqrt((math.pi / 2 * slope**2 + slope**4) / n)
    return math.exp(middle + slope**2 / 2 + quantile(_SKEWED, half - 1) * error)


@functools.lru_cache(maxsize=1024)
def _normal_scores(n: int) -> np.ndarray:
    """Normal quantiles of the larger half of ``n`` sorted draws."""
    from scipy import stats

    return stats.norm.ppf((np.arange(n // 2, n) + 0.625) / (n + 0.25))


def _betting_bound(draws: np.ndarray, level: float, least: float = 0.0) -> float:
    """Lower confidence bound of the mean of non-negative draws, with error rate ``level`` for any distribution.

    If the mean is b, bets that multiply capitals by 1 + s (draw / b - 1) at each draw are fair. Their mean over stakes
    s, initially 1, exceeds 1 / level with probability at most ``level``. The bound is the largest b at which it does.

    Args:
        least: another bound, which is returned if it is larger.

    Source: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting (2024).
    """
    from scipy import optimize

    if not draws.max() > 0:
        return max(0.0, least)
    staked, kept = np.multiply.outer(_STAKES, draws), 1 - np.array(_STAKES)[:, None]
    needed = math.log(len(_STAKES) / level)

    def won(log_bound: float) -> float:
        return float(np.logaddexp.reduce(np.log(staked * math.exp(-log_bound) + kept).sum(1))) - needed

    high = math.log(draws.mean())
    low = max(high - 60, math.log(least)) if least > 0 else high - 60
    if low >= high or won(low) <= 0:
        return max(0.0, least)
    return math.exp(optimize.brentq(won, low, high))  # type: ignore[arg-type]
