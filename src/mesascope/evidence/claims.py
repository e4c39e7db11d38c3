"""Claims: falsifiable sentences with a source, a reading of samples and a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

from mesascope.errors import ArgumentError, require_callable, require_choice, require_instance, require_number
from mesascope.evidence.readings import Reading
from mesascope.validate import Count, frozen

Over = Literal["seeds", "pools", "contexts", "draws", "sizes", "algorithms", "learners"]
Quantifier = Literal["every", "median", "share", "bootstrap", "exact"]


@dataclass(frozen=True)
class Source:
    """Origin of a claim: ``printed`` in a paper, ``derived`` from it, or ``ours``."""

    kind: Literal["printed", "derived", "ours"]
    where: str

    def __str__(self) -> str:
        return self.where if self.kind == "printed" else f"{self.kind}: {self.where}"


def printed(where: str) -> Source:
    """Source of a claim that the paper prints, with the place in the paper."""
    return Source("printed", where)


def derived(where: str) -> Source:
    """Source of a claim that follows from the paper, with the argument."""
    return Source("derived", where)


def ours(where: str) -> Source:
    """Source of a claim of our own, with the reason."""
    return Source("ours", where)


@dataclass(frozen=True)
class Reported:
    """Value from a paper or from its authors' code; one number, or one per case or run.

    >>> print(Reported(0.716, "authors' code, 1 run"), Reported((0.179, 0.099)), sep="; ")
    0.716 (authors' code, 1 run); 0.179, 0.099 (printed)
    """

    value: float | tuple[float, ...]
    origin: str = "printed"

    def __str__(self) -> str:
        numbers = self.value if isinstance(self.value, tuple) else (self.value,)
        return f"{', '.join(f'{number:.8g}' for number in numbers)} ({self.origin})"


@dataclass(frozen=True)
class Bound:
    """Allowed range of a claim's value, from ``low`` to ``high``; ``by`` states who set it.

    >>> print(two_sided(0.05), below(3, by="paper"), above(0.99))
    in [0.95, 1.05] < 3 > 0.99
    """

    low: float = -math.inf
    high: float = math.inf
    by: Literal["us", "paper"] = "us"

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            require_instance("a bound", end, float | int, "pass a number")
        if not self.low < self.high or (math.isinf(self.low) and math.isinf(self.high)):
            raise ArgumentError(
                f"a bound must have low < high and a finite end, but is [{self.low}, {self.high}]: change low or high."
            )

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"< {self.high:.8g}"
        if math.isinf(self.high):
            return f"> {self.low:.8g}"
        return f"in [{self.low:.8g}, {self.high:.8g}]"

    def side(self, low: float, high: float) -> Literal["inside", "outside", "across"]:
        """Position of an interval relative to the bound; both ends of a two-sided bound are allowed values."""
        if math.isfinite(self.high - self.low):
            inside, outside = self.low <= low and high <= self.high, high < self.low or low > self.high
        else:
            inside, outside = self.low < low and high < self.high, high <= self.low or low >= self.high
        return "inside" if inside else "outside" if outside else "across"


def two_sided(margin: float, around: float = 1.0, by: Literal["us", "paper"] = "us") -> Bound:
    """Bound from ``around - margin`` to ``around + margin``."""
    require_number("margin", margin, above=0)
    return Bound(around - margin, around + margin, by)


def below(high: float, by: Literal["us", "paper"] = "us") -> Bound:
    """Upper bound ``high``."""
    return Bound(high=high, by=by)


def above(low: float, by: Literal["us", "paper"] = "us") -> Bound:
    """Lower bound ``low``."""
    return Bound(low=low, by=by)


@frozen
class Claim:
    """A falsifiable sentence about the results of a run.

    Args:
        id: name, unique within the study.
        sentence: the claim in words: the quantity, its object and the bound.
        reading: function from the results of a run, or from named arrays (see `column`), to samples ``(replicates,)``
            or ``(replicates, cases)``, with standard errors (from `Estimates`) or without. For ``bootstrap``, it may
            return a tuple of independent samples; paired data must be one sample.
        bounds: one bound for all presets, or a mapping from preset to bound.
        source: origin of the sentence.
        measures: description of the number; if empty, the words of the `Reading`.
        over: type of the replicates: seeds, pools, contexts, draws, sizes, algorithms or learners.
        quantifier: the quantity that must lie within the bound, in every case. ``every``: each replicate, with its
            standard error. ``median``: the median over at least 8 replicates. ``share``: the fraction of replicates
            whose reading is true. ``bootstrap``: ``statistic``, a function of medians or quartiles of at least 20
            replicates. ``exact``: each number, without error. If None, the default of the study, or ``every``.
        at_least: minimum number of replicates for a verdict; if None, the default of the study, or 5.
        premises: ids of claims that must hold; otherwise this claim is undecided. If None, the premises of the study; a
            claim about algorithms then has none.
        reported: the paper's value.
        about: ``algorithms`` for claims that involve no trained network, otherwise ``training``. A claim about
            training must not hold after hardly any training: give it a premise.
        statistic: function of the samples, for ``bootstrap``. If it has an argument ``axis``, `scipy.stats.bootstrap`
            calls it once for all resamples, which is faster.
        exact_because: the reason why ``exact`` numbers have no error.
        former: bound, label or verdict before a change that was made after the result was known; for the ledger.
        unlike: settings of the source from which the study departs, or a mapping from preset to such settings. If the
            claim fails, its reason states the departure: the failure does not refute the source.
    """

    id: str
    sentence: str
    reading: Callable[[Mapping[str, Any]], Any]
    bounds: Bound | Mapping[str, Bound]
    source: Source
    measures: str = ""
    over: Over = "seeds"
    quantifier: Quantifier | None = None
    at_least: Count | None = None
    premises: tuple[str, ...] | None = None
    reported: Reported | None = None
    about: Literal["training", "algorithms"] = "training"
    statistic: Callable[..., Any] | None = None
    exact_because: str = ""
    former: str = ""
    unlike: str | Mapping[Any, str] = ""

    def __post_init__(self) -> None:
        require_callable("reading", self.reading)
        require_instance("bounds", self.bounds, Bound | Mapping, "pass below(number), say")
        require_instance("unlike", self.unlike, str | Mapping, "pass what the source has, in words")
        if not self.measures:
            if not isinstance(self.reading, Reading):
                raise ArgumentError(f"claim {self.id} must describe what its reading measures: set measures.")
            object.__setattr__(self, "measures", str(self.reading))
        if (self.quantifier == "bootstrap") != (self.statistic is not None):
            raise ArgumentError(f"claim {self.id} must have a statistic if and only if it is bootstrapped: correct it.")
        if (self.quantifier == "exact") != bool(self.exact_because):
            raise ArgumentError(f"claim {self.id} must set exact_because if and only if it is exact: correct it.")

    def completed(
        self, quantifier: Quantifier = "every", at_least: int = 5, premises: tuple[str, ...] = (),
        unlike: str | Mapping[Any, str] = "",
    ) -> Claim:  # fmt: skip
        """Return a copy with these defaults for fields that are not set.

        Premises themselves and claims about algorithms get no premises; only printed claims get ``unlike``.
        """
        about = "algorithms" if self.over == "algorithms" else self.about
        own = () if about == "algorithms" or self.id in premises else premises
        at_least = 1 if self.over == "algorithms" else at_least
        return replace(
            self, about=about, quantifier=self.quantifier or quantifier, at_least=self.at_least or at_least,
            premises=own if self.premises is None else self.premises,
            unlike=self.unlike or (unlike if self.source.kind == "printed" else ""),
        )  # fmt: skip

    def departs(self, preset: str) -> str:
        """Settings of the source from which a preset departs; empty if it does not."""
        return self.unlike if isinstance(self.unlike, str) else self.unlike.get(preset, "")

    def bound(self, preset: str) -> Bound:
        """Bound for a preset."""
        if isinstance(self.bounds, Bound):
            return self.bounds
        require_choice(f"a preset with a bound of {self.id}", preset, self.bounds)
        return self.bounds[preset]


def check_claims(claims: Sequence[Claim]) -> None:
    """Raise for duplicate ids, unknown premises and circular premises."""
    for claim in claims:
        require_instance("each of claims", claim, Claim)
    ids = [claim.id for claim in claims]
    if len(set(ids)) != len(ids):
        raise ArgumentError(f"claims must have different ids, but have {ids}: rename one.")
    for claim in claims:
        for premise in claim.premises or ():
            require_choice(f"a premise of {claim.id}", premise, ids)
    try:
        TopologicalSorter({claim.id: claim.premises or () for claim in claims}).prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise ArgumentError(f"premises must not lead back to their claim, but do ({circle}): leave one out.") from None
