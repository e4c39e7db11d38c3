"""Verdicts: the position of a 99 % confidence interval relative to the bound; docs/evidence.md has the coverage."""

from __future__ import annotations

import inspect
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mesascope.errors import ArgumentTypeError, MesascopeError, refuse, require_instance, shown
from mesascope.evidence.claims import Bound, Claim, check_claims
from mesascope.evidence.numbers import unmasked
from mesascope.evidence.verdicts import FLOOR, RESAMPLES, STRICTER, Verdicts, sample_text
from mesascope.text import counted

LEVEL = 0.99  # confidence level of each claim's interval
_MOST_TIMES = 100  # largest multiple of the sample size that is suggested to decide a claim
# Minimum numbers of replicates: with probability 1.6 %, all of seven lie on one side of the true median.
_LEAST = {"bootstrap": 20, "median": 8}


class _Undecided(Exception):
    """The claim cannot be judged, for the reason in the message."""


class _Interval(NamedTuple):
    value: float
    low: float
    high: float


class _Decision(NamedTuple):
    verdict: str
    interval: _Interval
    among: str  # phrase with the number of intervals
    p: float
    why: str = ""  # reason, if undecided


class _Samples(NamedTuple):
    """Values and their standard errors, each ``(replicates, cases)``."""

    values: np.ndarray
    errors: np.ndarray


def judge(claims: Iterable[Claim], results: Any, preset: str = "") -> Verdicts:
    """Judge all claims; premises are judged before the claims that need them.

    Args:
        results: stages of a run by name; or named arrays, with replicates along the first axis; or a data frame or a
            structured array, with replicates as rows.
        preset: the preset whose bounds apply; required if a claim has one bound per preset.

    >>> from mesascope.evidence import Claim, below, column, ours
    >>> claim = Claim("faster", "It takes less time", column("time"), below(2), ours("a test"), quantifier="median")
    >>> judge([claim], {"time": np.linspace(1.0, 1.5, 8)})
    claim   measured, with confidence intervals  bound  verdict
    faster  1.25 [1.00, 1.50]                    < 2    holds
    """
    require_instance("claims", claims, Iterable, "pass them in a list")
    claims, results = list(claims), _by_name(results)
    check_claims(claims)
    known = {claim.id: claim for claim in claims}
    records: dict[str, dict[str, Any]] = {}

    def judged(name: str) -> dict[str, Any]:
        if name not in records:
            records[name] = _record(known[name], preset, results, {p: judged(p) for p in known[name].premises or ()})
        return records[name]

    return Verdicts(judged(name) for name in known)


def _by_name(results: Any) -> Mapping[str, Any]:
    """Results as a mapping; the columns of a data frame or a structured array by name."""
    if isinstance(results, Mapping):
        return results
    names = getattr(getattr(results, "dtype", None), "names", None)
    names = getattr(results, "columns", None) if names is None else names
    if names is None:
        rule = "be a mapping of named arrays, a data frame or a structured array"
        refuse("results", rule, results, 'pass {"loss": losses}, say', ArgumentTypeError)
    return {str(name): results[name] for name in names}


def _record(
    claim: Claim, preset: str, results: Mapping[str, Any], premises: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Record of a claim: its interval, its verdict (holds, fails or undecided), the reason and the p-value.

    The p-value is the smallest error rate at which the claim is still decided, or 1 if the interval crosses the bound.
    It is None if nothing is tested: the claim is exact, a premise does not hold, or the samples cannot be judged.

    Args:
        premises: records of the claim's premises, by id.
    """
    claim = claim.completed()
    bound, value, n, error = claim.bound(preset), _Interval(math.nan, math.nan, math.nan), 0, None
    departs = claim.departs(preset)
    try:
        read = _read(claim, results)
        n = min(len(sample.values) for sample in read)
        verdict, value, among, error, why = _decide(claim, bound, read)
        broken = [name for name, record in premises.items() if record["verdict"] != "holds"]
        if broken:
            said = premises[broken[0]]["verdict"].replace("undecided", "is undecided")
            verdict, why, error = "undecided", f"its premise {broken[0]} {said}", None
        unlike = f"not as its source ran it (with {departs})" if departs and verdict == "fails" else ""
        reason = "; ".join(filter(None, (why, unlike, among)))
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
        "at_least": least_replicates(claim),
        "premises": list(claim.premises or ()),
        "value": _finite(value.value),
        "low": _finite(value.low),
        "high": _finite(value.high),
        "bound": str(bound),
        "bound_low": _finite(bound.low),
        "bound_high": _finite(bound.high),
        "bound_by": bound.by,
        "reported": None if claim.reported is None else str(claim.reported),
        "former": claim.former,
        "unlike": departs,
        "p": None if claim.quantifier == "exact" else error,
        "verdict": verdict,
        "reason": reason,
    }


def least_replicates(claim: Claim) -> int:
    """Minimum number of replicates for a verdict on the claim."""
    claim = claim.completed()
    return max(claim.at_least or 1, _LEAST.get(claim.quantifier or "", 1))


def _decide(claim: Claim, bound: Bound, read: tuple[_Samples, ...]) -> _Decision:
    """Verdict with its worst interval.

    The claim holds if every interval lies inside the bound. If a case is truly outside, its own interval lies inside
    with a probability of at most 1 %, however many other cases there are. The claim fails by Simes' rule: of m
    intervals, at least k lie outside, each at the error rate k / m x 1 %, for k = m or a power of two.
    """
    _require_judgeable(claim, read)
    count, (_, cases) = min(len(sample.values) for sample in read), read[0].values.shape
    with np.errstate(all="ignore"):  # an overflow gives an infinite interval, which crosses any bound
        intervals = _INTERVALS[claim.quantifier or ""](claim, read)

    def sides(outside: float, size: int = count) -> tuple[list[_Interval], list[str]]:
        with np.errstate(all="ignore"):
            found = intervals(outside * STRICTER.get(claim.quantifier or "", 1), size)
        return found, [bound.side(one.low, one.high) for one in found]

    def all_inside(error: float, size: int = count) -> bool:
        return {*sides(error, size)[1]} == {"inside"}

    def outside_at(error: float, size: int = count) -> list[int]:
        """Places of the intervals outside the bound at the least rank that suffices; empty if none does."""
        for rank in ranks:
            ends = sides(error * rank / len(alone), size)[1]
            if ends.count("outside") >= rank:
                return [place for place, side in enumerate(ends) if side == "outside"]
        return []

    least = FLOOR if claim.quantifier == "bootstrap" else 0.0
    alone, where = sides(1 - LEVEL)
    ranks = sorted({*(2**power for power in range(len(alone).bit_length())), len(alone)})
    of = [(count, claim.over.removesuffix("s"))] * (len(alone) > cases) + [(cases, "case")] * (cases > 1)
    among = f"worst of {' x '.join(counted(*one) for one in of)}" if of else ""
    if wrong := outside_at(1 - LEVEL):
        shown = max((alone[place] for place in wrong), key=lambda one: max(one.low - bound.high, bound.low - one.high))
        among = among and f"{among}; {len(wrong)} of {len(alone)} outside"
        return _Decision("fails", shown, among, max(_least_error(outside_at), least))
    _require_finite("standard errors", read[0].errors)
    nearest = min(alone, key=lambda one: min(one.low - bound.low, bound.high - one.high))
    if {*where} == {"inside"}:
        if claim.quantifier not in ("exact", "share") and any(map(_all_the_same, read)):
            raise _Undecided(f"all {claim.over} are the same")
        return _Decision("holds", nearest, among, max(_least_error(all_inside), least))
    needed = _needed(claim, count, lambda size: all_inside(1 - LEVEL, size) or bool(outside_at(1 - LEVEL, size)))
    among = among and f"{among}; {where.count('inside')} of {len(alone)} inside"
    return _Decision("undecided", nearest, among, 1.0, f"its interval crosses the bound, {needed}")


def _require_judgeable(claim: Claim, read: tuple[_Samples, ...]) -> None:
    count = min(len(sample.values) for sample in read)
    if not all(sample.values.size for sample in read):
        raise _Undecided("its reading returns no numbers")
    if count < least_replicates(claim):
        raise _Undecided(f"it needs {least_replicates(claim)} {claim.over}, and has {count}")
    for sample in read:
        _require_finite("numbers", sample.values)
        if claim.quantifier != "every":  # it fails if enough of the known intervals lie outside
            _require_finite("standard errors", sample.errors)


def _require_finite(what: str, numbers: np.ndarray) -> None:
    if wrong := int((~np.isfinite(numbers)).sum()):
        why = ", as of ratios whose divisor is within five standard errors of 0" if what != "numbers" else ""
        raise _Undecided(f"{wrong} of {numbers.size} {what} {'is' if wrong == 1 else 'are'} not finite{why}")


def _least_error(decided: Callable[[float], Any]) -> float:
    """Smallest error rate at which the claim is still decided: its p-value, to within 1 %."""
    low, high = math.log(1e-9), math.log(1 - LEVEL)
    if decided(math.exp(low)):
        return math.exp(low)
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if decided(math.exp(middle)) else (middle, high)
    return math.exp(high)


def _needed(claim: Claim, count: int, decided: Callable[[int], bool]) -> str:
    """Phrase with the sample size that would decide the claim if values were distributed as they are."""
    sizes = range(count + 1, _MOST_TIMES * count)
    place = bisect_left(sizes, True, key=decided)
    if place == len(sizes):
        what = "evaluation tasks" if claim.quantifier == "every" else claim.over
        return f"and more {what} would hardly decide it"
    record = {"quantifier": claim.quantifier, "over": claim.over, "n": count}
    return f"and {sample_text(record, sizes[place])} would decide it"


def _all_the_same(samples: _Samples) -> bool:
    """True if all replicates are equal, as if one replicate were counted several times."""
    return len(samples.values) > 1 and bool((np.ptp(samples.values, axis=0) == 0).all())


# Intervals that miss the true value with a given probability, at the own sample size or at another.
_Intervals = Callable[[float, int], list[_Interval]]


def _every(claim: Claim, read: tuple[_Samples, ...]) -> _Intervals:
    """One normal interval per replicate and case, infinite if its standard error is unknown."""
    from scipy.stats import norm

    (samples,) = read
    if (samples.errors == 0).any():
        raise _Undecided("its numbers have no standard errors, and 'every' needs them: set quantifier='median', say")
    errors = np.where(np.isfinite(samples.errors), samples.errors, math.inf)
    pairs = list(zip(samples.values.ravel(), errors.ravel(), strict=True))

    def at(outside: float, size: int) -> list[_Interval]:
        reach = float(norm.isf(outside / 2)) * math.sqrt(len(samples.values) / size)
        return [_Interval(value, value - reach * error, value + reach * error) for value, error in pairs]

    return at


def _median(claim: Claim, read: tuple[_Samples, ...]) -> _Intervals:
    """Interval from order statistics of the ends of the replicates' own intervals."""
    from scipy.stats import norm

    (samples,) = read

    def at(outside: float, size: int) -> list[_Interval]:
        reach = float(norm.isf(outside / 2)) * samples.errors
        return [_Interval(*map(float, one)) for one in median_interval(samples.values, outside, size, reach).T]

    return at


def median_interval(
    values: np.ndarray, outside: float = 1 - LEVEL, size: int | None = None, reach: np.ndarray | float = 0.0
) -> np.ndarray:
    """Median over replicates, and both ends (order statistics) of its interval, infinite for few; ``(3, ...)``.

    Args:
        values: ``(replicates, ...)``.
        outside: largest allowed probability that the true median lies outside.
        size: number of replicates, if other than in ``values``; the expected order statistics are then interpolated.
        reach: half the width of each replicate's own interval.
    """
    from scipy.stats import binom

    count, tail = size or len(values), outside / 2
    rank = int(binom.ppf(tail, count, 0.5)) - 1
    while rank >= 0 and binom.cdf(rank, count, 0.5) > tail:
        rank -= 1
    middle = np.median(values, axis=0)
    if rank < 0:
        return np.stack([middle, middle - np.inf, middle + np.inf])
    ends = ((values - reach, rank + 1), (values + reach, count - rank))
    return np.stack([middle, *(np.quantile(one, k / (count + 1), axis=0, method="weibull") for one, k in ends)])


def _share(claim: Claim, read: tuple[_Samples, ...]) -> _Intervals:
    """Clopper-Pearson interval for the share of replicates with a true reading."""
    from scipy.stats import binomtest

    (samples,) = read
    if not np.isin(samples.values, (0, 1)).all():
        raise _Undecided("its reading returns other numbers than true and false")
    shares = samples.values.mean(0).tolist()

    def at(outside: float, size: int) -> list[_Interval]:
        found = (binomtest(round(share * size), size) for share in shares)
        ends = (one.proportion_ci(confidence_level=1 - outside, method="exact") for one in found)
        return [_Interval(share, float(end.low), float(end.high)) for share, end in zip(shares, ends, strict=True)]

    return at


def _applied(statistic: Callable[..., Any], rows: tuple[np.ndarray, ...]) -> Any:
    """Statistic of samples; an argument ``axis`` is the last one, as scipy's bootstrap passes it."""
    axis = {"axis": -1} if "axis" in inspect.signature(statistic).parameters else {}
    return statistic(*rows, **axis)


def _bootstrap(claim: Claim, read: tuple[_Samples, ...]) -> _Intervals:
    """Percentile bootstrap interval of the statistic, widened for coverage with few replicates.

    The distance of each end from the statistic is multiplied by the ratio of Student's interval to the normal interval
    at this sample size. If the statistic and its percentiles are positive, as for ratios, the interval also contains
    the interval that is symmetric on a logarithmic scale.
    """
    from scipy.stats import bootstrap, norm, t

    assert claim.statistic is not None
    if any(sample.values.shape[1] > 1 for sample in read):
        raise _Undecided("its reading returns several cases, and bootstrap takes one")
    rows, count = tuple(sample.values[:, 0] for sample in read), min(len(sample.values) for sample in read)
    value = _result("statistic", lambda: float(_applied(claim.statistic, rows)))  # type: ignore[arg-type]
    drawn = _result("statistic", lambda: bootstrap(
        rows, claim.statistic, n_resamples=RESAMPLES, method="percentile",
        rng=np.random.default_rng(0),
    )).bootstrap_distribution  # fmt: skip
    if not (math.isfinite(value) and np.isfinite(drawn).all()):
        raise _Undecided("its statistic is not finite on some resamples")

    def at(outside: float, size: int) -> list[_Interval]:
        tail = outside / 2
        least, most = map(float, np.quantile(drawn, [tail, 1 - tail]))
        if not least <= value <= most:
            raise _Undecided(
                "its statistic lies outside the interval of its resamples, as if it paired independent samples"
            )
        wider = float(t.isf(tail, size - 1) / norm.isf(tail)) * math.sqrt(count / (size - 1))
        low, high = value + wider * (least - value), value + wider * (most - value)
        if least > 0:
            reach = wider * max(np.log(most / value), np.log(value / least))
            low, high = min(low, value * np.exp(-reach)), max(high, value * np.exp(reach))
        return [_Interval(value, float(low), float(high))]

    return at


def _exact(claim: Claim, read: tuple[_Samples, ...]) -> _Intervals:
    if read[0].errors.any():
        raise _Undecided("its numbers have standard errors, and 'exact' takes none")
    return lambda outside, size: [_Interval(value, value, value) for value in read[0].values.ravel()]


_INTERVALS = {"every": _every, "median": _median, "share": _share, "bootstrap": _bootstrap, "exact": _exact}


def _read(claim: Claim, results: Mapping[str, Any]) -> tuple[_Samples, ...]:
    read = _result("reading", claim.reading, results)
    samples = read if isinstance(read, tuple) and read else (read,)
    if claim.quantifier != "bootstrap" and len(samples) != 1:
        raise _Undecided(f"its reading returns {len(samples)} samples, and {claim.quantifier} takes one")
    return tuple(_result("reading", _samples, one) for one in samples)


def _result(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a claim's function; if it raises an error, only this claim is undecided."""
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
        return _Samples(numbers.astype(float), np.zeros(numbers.shape))
    parts = [[getattr(one, "nominal_value", one), getattr(one, "std_dev", 0.0)] for one in numbers.ravel()]
    return _Samples(*(part.reshape(numbers.shape) for part in np.array(parts, dtype=float).reshape(-1, 2).T))


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
