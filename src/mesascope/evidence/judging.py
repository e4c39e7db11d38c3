"""Verdicts: the position of a 99.9 % confidence interval relative to the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mesascope.errors import MesascopeError, shown
from mesascope.evidence.claims import Bound, Claim, check_claims
from mesascope.evidence.numbers import unmasked
from mesascope.evidence.verdicts import Verdicts
from mesascope.text import counted

# Confidence level of each claim's interval. With 200 true claims, fewer than 20 % of ledgers contain a false verdict.
LEVEL = 0.999
RESAMPLES = 9_999
# Factor on the sample size from which on a larger sample would hardly decide a claim.
_MOST_TIMES = 100
# Minimum replicates for an interval at this level: with fewer, more than 1 in 2,000 bootstrap samples repeats a single
# replicate, and more than 1 in 1,000 samples lies on one side of the median.
_LEAST = {"mean": 2, "bootstrap": 6, "median": 11}


class _Undecided(Exception):
    """The claim cannot be judged, for the reason in the message."""


class _Interval(NamedTuple):
    value: float
    low: float
    high: float


class _Samples(NamedTuple):
    """Values, their standard errors, and both combined, each ``(replicates, cases)``."""

    values: np.ndarray
    errors: np.ndarray
    numbers: np.ndarray


def judge_all(claims: Iterable[Claim], preset: str, results: Mapping[str, Any]) -> Verdicts:
    """Judge all claims; premises are judged before the claims that need them."""
    claims = list(claims)
    check_claims(claims)
    known = {claim.id: claim for claim in claims}
    records: dict[str, dict[str, Any]] = {}

    def judged(name: str) -> dict[str, Any]:
        if name not in records:
            records[name] = judge(known[name], preset, results, {p: judged(p) for p in known[name].premises or ()})
        return records[name]

    return Verdicts(judged(name) for name in known)


def judge(
    claim: Claim, preset: str, results: Mapping[str, Any], premises: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Record of a claim: its interval, its verdict (holds, fails or undecided) and the reason.

    Args:
        results: stages of a run, by name.
        premises: records of the claim's premises, by id.
    """
    claim = claim.completed()
    bound, value, n = claim.bound(preset), _Interval(math.nan, math.nan, math.nan), 0
    try:
        read = _read(claim, results)
        n = min(len(sample.values) for sample in read)
        verdict, value, among = _decide(claim, preset, read)
        why = f"its interval crosses the bound, {_needed(claim, bound, value, n)}" if verdict == "undecided" else ""
        broken = [name for name, record in (premises or {}).items() if record["verdict"] != "holds"]
        if broken:
            verdict, why = "undecided", f"its premise {broken[0]} {_said(premises[broken[0]]['verdict'])}"  # type: ignore[index]
        reason = "; ".join(filter(None, (why, among)))
    except _Undecided as why:
        verdict, reason = "undecided", str(why)
    return {
        "id": claim.id,
        "sentence": claim.sentence,
        "measures": claim.measures,
        "source": str(claim.source),
        "about": claim.about,
        "quantifier": claim.quantifier,
        "over": claim.over,
        "n": n,
        "at_least": claim.at_least,
        "premises": list(claim.premises or ()),
        "value": _finite(value.value),
        "low": _finite(value.low),
        "high": _finite(value.high),
        "bound": str(bound),
        "bound_low": _finite(bound.low),
        "bound_high": _finite(bound.high),
        "bound_by": bound.by,
        "reported": None if claim.reported is None else str(claim.reported),
        "verdict": verdict,
        "reason": reason,
    }


def least_replicates(claim: Claim) -> int:
    """Minimum number of replicates for a verdict on the claim."""
    claim = claim.completed()
    return max(claim.at_least or 1, _LEAST.get(claim.quantifier or "", 1))


def _decide(claim: Claim, preset: str, read: tuple[_Samples, ...]) -> tuple[str, _Interval, str]:
    """Verdict, the interval that is worst for it, and a phrase about its rank.

    A claim holds if the interval of each case, at the level by itself, lies inside the bound: if one case lies outside,
    its interval does so with the probability of the level. It fails if an interval at the level of all together, by
    Bonferroni, lies outside.
    """
    bound, count = claim.bound(preset), min(len(sample.values) for sample in read)
    if not all(sample.values.size for sample in read):
        raise _Undecided("its reading returns no numbers")
    if count < least_replicates(claim):
        raise _Undecided(f"it needs {least_replicates(claim)} {claim.over}, and has {count}")
    for sample in read:
        for what, numbers in (("numbers", sample.values), ("errors of measurement", sample.errors)):
            if wrong := int((~np.isfinite(numbers)).sum()):
                raise _Undecided(f"{wrong} of {numbers.size} {what} {'is' if wrong == 1 else 'are'} not finite")

    def intervals(outside: float) -> list[_Interval]:
        with np.errstate(all="ignore"):  # an overflow gives an infinite interval, which crosses any bound
            return _INTERVALS[claim.quantifier or ""](claim, read, outside)

    def room(one: _Interval) -> float:
        return min(one.low - bound.low, bound.high - one.high)

    alone = intervals(1 - LEVEL)
    cases = read[0].values.shape[1]
    of = [(count, claim.over.removesuffix("s"))] * (len(alone) > cases) + [(cases, "case")] * (cases > 1)
    among = f"worst of {' x '.join(counted(*one) for one in of)}" if of else ""
    if all(bound.side(one.low, one.high) == "inside" for one in alone):
        if claim.quantifier not in ("exact", "share") and any(map(_all_the_same, read)):
            raise _Undecided(f"all {claim.over} are the same")
        return "holds", min(alone, key=room), among
    together = alone if len(alone) == 1 else intervals((1 - LEVEL) / len(alone))
    sides = [bound.side(one.low, one.high) for one in together]
    wrong = [one for one, side in zip(together, sides, strict=True) if side == "outside"]
    if wrong:
        verdict, shown = "fails", max(wrong, key=lambda one: max(one.low - bound.high, bound.low - one.high))
    else:
        verdict, shown = "undecided", min(together, key=room)
    rest = "outside" if wrong else "across"
    return verdict, shown, among and f"{among}; {sides.count(rest)} of {len(sides)} {rest}"


def _needed(claim: Claim, bound: Bound, found: _Interval, count: int) -> str:
    """Sample size that would decide the claim if value and spread stayed as they are."""
    from scipy.stats import t

    value, low, high = found
    if bound.low < value < bound.high:  # both ends have to come inside
        gaps = [(value - low, value - bound.low), (high - value, bound.high - value)]
    else:
        gaps = [(high - value, bound.low - value)] if value <= bound.low else [(value - low, value - bound.high)]
    ratio = max(reach / gap if gap else math.inf for reach, gap in gaps)
    sizes = count * np.arange(1, _MOST_TIMES) if claim.quantifier == "every" else np.arange(count, _MOST_TIMES * count)
    reach = sizes**-0.5
    if claim.quantifier in ("mean", "bootstrap"):
        reach = reach * t.isf((1 - LEVEL) / 2, sizes - 1)
    enough = sizes[ratio * reach < reach[0]]
    what = "evaluation tasks" if claim.quantifier == "every" else claim.over
    if not len(enough):
        return f"and more {what} would hardly decide it"
    many = f"{enough[0] // count} times as many" if claim.quantifier == "every" else f"about {enough[0]}"
    return f"and {many} {what} would decide it"


def _all_the_same(samples: _Samples) -> bool:
    """True if all replicates are equal, as if one replicate were counted several times."""
    return len(samples.values) > 1 and bool((np.ptp(samples.values, axis=0) == 0).all())


def _every(claim: Claim, read: tuple[_Samples, ...], outside: float) -> list[_Interval]:
    """One normal interval per replicate and case."""
    from scipy.stats import norm

    (samples,) = read
    if not (samples.errors > 0).all():
        raise _Undecided("its numbers carry no error of measurement")
    reach = float(norm.isf(outside / 2))
    pairs = zip(samples.values.ravel(), samples.errors.ravel(), strict=True)
    return [_Interval(value, value - reach * error, value + reach * error) for value, error in pairs]


def _mean(claim: Claim, read: tuple[_Samples, ...], outside: float) -> list[_Interval]:
    """Student's t interval over replicates, with the measurement variance of the mean added."""
    from scipy.stats import t

    (samples,) = read
    count = len(samples.values)
    measured = np.array([_stderr(column.mean()) for column in samples.numbers.T])
    spread = samples.values.var(0, ddof=1) / count + measured**2
    reach = float(t.isf(outside / 2, count - 1)) * np.sqrt(spread)
    return [_Interval(m, m - r, m + r) for m, r in zip(samples.values.mean(0), reach, strict=True)]


def _median(claim: Claim, read: tuple[_Samples, ...], outside: float) -> list[_Interval]:
    """Interval from order statistics of the replicates, widened by the largest measurement error."""
    from scipy.stats import binom, norm

    (samples,) = read
    count, tail = len(samples.values), outside / 2
    rank = int(binom.ppf(tail, count, 0.5)) - 1
    while rank >= 0 and binom.cdf(rank, count, 0.5) > tail:
        rank -= 1
    if rank < 0:
        raise _Undecided(f"the median of {count} {claim.over} has no interval at {LEVEL:.1%}")
    ordered = np.sort(samples.values, axis=0)
    reach = float(norm.isf(tail)) * samples.errors.max(0)
    ends = zip(np.median(ordered, axis=0), ordered[rank] - reach, ordered[-1 - rank] + reach, strict=True)
    return [_Interval(*end) for end in ends]


def _share(claim: Claim, read: tuple[_Samples, ...], outside: float) -> list[_Interval]:
    """Clopper-Pearson interval for the share of replicates with a true reading."""
    from scipy.stats import binomtest

    (samples,) = read
    if not np.isin(samples.values, (0, 1)).all():
        raise _Undecided("its reading returns other numbers than true and false")
    intervals = []
    for column in samples.values.T:
        found = binomtest(int(column.sum()), len(column))
        interval = found.proportion_ci(confidence_level=1 - outside, method="exact")
        intervals.append(_Interval(float(found.statistic), float(interval.low), float(interval.high)))
    return intervals


def _bootstrap(claim: Claim, read: tuple[_Samples, ...], outside: float) -> list[_Interval]:
    """Percentile bootstrap interval of the statistic, widened for coverage with few replicates.

    The distance of each end from the statistic is multiplied by the ratio of Student's interval to the normal interval
    at this sample size. If all percentiles are positive, the interval also contains the symmetric interval of the
    logarithm, for statistics such as ratios and standard deviations.
    """
    from scipy.stats import bootstrap, norm, t

    assert claim.statistic is not None
    if any(sample.values.shape[1] > 1 for sample in read):
        raise _Undecided("its reading returns several cases, and bootstrap takes one")
    rows, count = tuple(sample.values[:, 0] for sample in read), min(len(sample.values) for sample in read)
    value = _result("statistic", lambda: float(claim.statistic(*rows)))  # type: ignore[misc]
    found = _result("statistic", lambda: bootstrap(
        rows, claim.statistic, vectorized=False, n_resamples=RESAMPLES, confidence_level=1 - outside,
        method="percentile", rng=np.random.default_rng(0),
    )).confidence_interval  # fmt: skip
    if not all(map(math.isfinite, (value, *found))):
        raise _Undecided("its statistic is not finite on some samples drawn anew")
    if not found.low <= value <= found.high:
        raise _Undecided("its statistic is of other values on samples drawn anew, as if it paired independent samples")
    tail = outside / 2
    wider = float(t.isf(tail, count - 1) / norm.isf(tail)) * math.sqrt(count / (count - 1))
    low, high = (value + wider * (float(end) - value) for end in found)
    if found.low >= 0 < value:
        reach = wider * max(np.log(found.high / value), np.log(value / found.low))
        low, high = min(low, value * np.exp(-reach)), max(high, value * np.exp(reach))
    return [_Interval(value, float(low), float(high))]


def _exact(claim: Claim, read: tuple[_Samples, ...], outside: float) -> list[_Interval]:
    if read[0].errors.any():
        raise _Undecided("its numbers carry errors of measurement, and exact takes none")
    return [_Interval(value, value, value) for value in read[0].values.ravel()]


_INTERVALS = {
    "every": _every, "mean": _mean, "median": _median, "share": _share, "bootstrap": _bootstrap, "exact": _exact,
}  # fmt: skip


def _read(claim: Claim, results: Mapping[str, Any]) -> tuple[_Samples, ...]:
    read = _result("reading", claim.reading, results)
    samples = read if isinstance(read, tuple) and read else (read,)
    if claim.quantifier != "bootstrap" and len(samples) != 1:
        raise _Undecided(f"its reading returns {len(samples)} samples, and {claim.quantifier} takes one")
    return tuple(_result("reading", _samples, one) for one in samples)


def _result(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a claim's function; an error in it makes this claim alone undecided."""
    try:
        return function(*arguments)
    except Exception as error:
        said = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split()).rstrip(".")
        known = isinstance(error, MesascopeError | KeyError)
        raise _Undecided(said if known else f"its {what} raises {type(error).__name__}: {said}") from None


def _samples(read: Any) -> _Samples:
    numbers = unmasked(read)
    numbers = numbers.reshape(len(numbers), math.prod(numbers.shape[1:])) if numbers.ndim else numbers.reshape(1, 1)
    if numbers.dtype.kind not in "biufO" or any(number is None for number in numbers.ravel()):
        raise TypeError(f"must return numbers, but returns {shown(read)}")
    if numbers.dtype != object:
        return _Samples(numbers.astype(float), np.zeros(numbers.shape), numbers.astype(float))
    values, errors = (
        np.array([part(one) for one in numbers.ravel()], dtype=float).reshape(numbers.shape)
        for part in (lambda one: getattr(one, "nominal_value", one), _stderr)
    )
    return _Samples(values, errors, numbers)


def _stderr(number: Any) -> float:
    return float(getattr(number, "std_dev", 0.0))


def _said(verdict: str) -> str:
    return "is undecided" if verdict == "undecided" else verdict


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
