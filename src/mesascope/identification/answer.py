"""Result of `identify`, as sentences, tables and plain numbers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from mesascope.errors import ArgumentError
from mesascope.evidence.tables import Table, Tabular
from mesascope.identification.behaviour import Behaviour
from mesascope.identification.conditions import CONDITIONS, OWN
from mesascope.identification.description import described
from mesascope.identification.likeness import Apart, Likeness
from mesascope.identification.mixture import Mixture
from mesascope.identification.verdict import EXACT, FARTHEST, OWN_TASKS, RUNS, Row, Share, Standing, averaged, standing
from mesascope.measurement import Measurement
from mesascope.runs import Run
from mesascope.text import percent_text

One = TypeVar("One", bound="Answer")
# Maximum number of names in a sentence.
_SHOWN = 4
# Maximum number of tasks per condition that a verdict recommends.
_MOST = 10_000
# Unexplained share of the variance above which the learner is like no family.
_UNLIKE = 0.5
# Largest factor of the noise of answers in a measure of behaviour: of two to three answers, with its error.
_NOISES = 4.0


class Answer(Tabular):
    """Result with a verdict in sentences; it can be saved as a run."""

    _kind: ClassVar[str]
    learner: str
    seed: int

    @property
    @abstractmethod
    def sentences(self) -> list[str]:
        """Sentences of the verdict."""

    @abstractmethod
    def tables(self) -> dict[str, Table]:
        """All measurements, by title."""

    @property
    def verdict(self) -> str:
        """Verdict in sentences."""
        return " ".join(self.sentences)

    @classmethod
    def from_dict(cls: type[One], record: Mapping[str, Any]) -> One:
        """The inverse of `to_dict`."""
        try:
            return msgspec.convert(record, cls)
        except msgspec.ValidationError as error:
            raise ArgumentError(f"record must be that of {cls._kind}, but is not ({error}): restore it.") from None

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python numbers, strings, lists and dicts, with the verdict in words."""
        return super().to_dict() | {"verdict": self.verdict}

    def save(self, folder: str | Path, settings: Mapping[str, Any] | None = None) -> Run:
        """Save the result as a run, with figures and report.html, in a new folder.

        Args:
            settings: settings of the identification, to store in the run.
        """
        from mesascope.identification.reporting import saved

        return saved(self, folder, settings or {})

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page with tables and figures to ``path``."""
        from mesascope.identification.reporting import page

        return page(self, path)

    def plot(self, figure: str | None = None) -> Any:
        """Draw the first figure of the report, or the one named ``figure``; notebooks show the matplotlib figure."""
        from mesascope.identification.reporting import figures
        from mesascope.reports import plotted

        return plotted(figures(self), figure, {"answer": self})  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.table()!r}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.verdict)}</p>{self.table()._repr_html_()}"


@dataclass(frozen=True, repr=False)
class Identification(Answer):
    """Result of `identify`.

    Args:
        learner: name of the learner.
        seed: seed of the tasks.
        answers: for a language model, counts of prompts, parsed numbers, and failures by reason.
        rows: candidates with their best-fitting parameters: first named, then undecided, then ruled out; the nearest
            first in each group.
        shares: nearest member of each family of algorithms, the nearest family first.
        mixture: nearest mixture of these members, scikit-learn's excluded; None if no member answers all tasks.
        noise: variance of the learner's answers between calls and from rounding, over the variance of its predictions,
            by condition. It is subtracted from all differences.
        pairs: number of pairs in a context, by condition.
        level: error rate, both for ruling out the true algorithm and for naming a false one.
        tolerance: maximum difference of an approximation.
        asked: number of predictions made by the learner.
        behaviour: behaviour of the learner and of the nearest candidate on the same tasks, by name.
        controls: squared error relative to predicting zero: of the learner as it is, with shuffled labels, without
            pairs, and of an untrained copy.
        likenesses: likeness of the nearest candidates to the learner beyond predictions.
        apart: pairwise differences of the nearest candidates.
        unmeasured: reason for each measurement that was not made.
    """

    _kind = "an identification"

    learner: str
    seed: int
    answers: tuple[Mapping[str, Any], ...]
    rows: tuple[Row, ...]
    shares: tuple[Share, ...]
    mixture: Mixture | None
    noise: Mapping[str, Measurement]
    pairs: Mapping[str, int]
    level: float
    tolerance: float
    asked: int
    behaviour: Mapping[str, Behaviour]
    controls: Mapping[str, Measurement]
    likenesses: tuple[Likeness, ...]
    apart: Apart
    unmeasured: Mapping[str, str]

    @property
    def standing(self) -> Standing:
        """Verdict on every candidate: named, not measured well enough, or ruled out."""
        return standing(self.rows, self.tolerance)

    @property
    def names(self) -> tuple[str, ...]:
        """Candidates shown to equal the learner, the nearest first."""
        return tuple(self.standing.names)

    @property
    def sentences(self) -> list[str]:
        """Sentences about the nearest family, the match, deviations, noise, untested conditions and behaviour."""
        parts = self.like, self.exactly, self.departs, self.noisy, self.untested, self.description
        return [part for part in parts if part]

    @property
    def like(self) -> str:
        """Sentence about the two nearest families of algorithms."""
        return like(self.learner, self.shares)

    @property
    def exactly(self) -> str:
        """Sentence about the candidates that the learner equals or may equal, if any."""
        found = self.standing
        if found.names:
            first, *others = found.names
            near = [name for name in others if self._as_near(name, first)]
            far = [name for name in others if name not in near]
            also = [f"{word}: {_all(names)}" for word, names in (("equally", near), ("less closely", far)) if names]
            beside = f" ({'; '.join(also)})" if also else ""
            return f"{self.learner} {found.kind} {self._spelt(first)}{beside}."
        if found.undecided:
            tasks = max(self._tasks_to_decide(name) for name in found.undecided)
            would = f"about {tasks:,.0f} tasks per condition would" if tasks < _MOST else "more tasks would hardly"
            maybe = _all([*found.undecided])
            return f"{self.learner}: not measured well enough; it may equal {maybe}, and {would} decide."
        names = [row.candidate for row in self.rows]
        if len(names) == 1:
            return f"{self.learner} does not match {names[0]}, the only candidate."
        return f"{self.learner} matches none of the {len(names)} candidates."

    @property
    def departs(self) -> str:
        """Sentence about conditions under which the learner differs from a candidate; may be empty.

        The candidate is the first that the learner equals or may equal, else the nearest member of the nearest family.
        """
        equal = [*self.names, *self.standing.undecided]
        row = self._row(equal[0] if equal else self.shares[0].candidate)
        bound = EXACT if self.standing.kind == RUNS else self.tolerance
        own = self.standing.kind == OWN_TASKS  # the candidate with `own_parameters` equals the learner on these tasks
        differences = {name: one for name, one in row.differences.items() if not (own and name == OWN)}
        beyond = sorted((one.mean.value, name) for name, one in differences.items() if one.low > bound)
        ends = [*beyond[:1], *beyond[1:][-1:]]
        reach = " to ".join(f"{_far(value)} ({_under(name)})" for value, name in ends)
        fitted = row.parameters != row.own_parameters and (own or not equal)
        said = f"Fitted to all conditions, {row.candidate} departs" if fitted else f"It departs from {row.candidate}"
        found = f"{said} by {reach}." if beyond else ""
        open_ = [name for name, one in differences.items() if one.low <= bound <= one.upper(bound)]
        if own and open_:
            found += f" It is not measured well enough {_all([_under(name) for name in open_])}."
        return found.strip()

    @property
    def noisy(self) -> str:
        """Sentence about the noise of the learner's answers, if it exceeds the tolerance."""
        share = self.noise[OWN].value
        if share <= self.tolerance:
            return ""
        return f"Noise, between calls or from rounding, is {percent_text(share)} of the variance of its predictions."

    @property
    def untested(self) -> str:
        """Sentences about conditions that the learner hardly answered, and those it answered in part; may be empty."""
        names = [name for name in CONDITIONS if name in self.unmeasured and name not in self.noise]
        found = []
        if names:
            found.append(f"It was not tested {_all([_under(name) for name in names])}: it does not answer there.")
        partly = [f"{self.unmeasured[name].partition(' tasks')[0]} {_under(name)}" for name in (OWN, *CONDITIONS)
                  if name in self.unmeasured and name in self.noise]  # fmt: skip
        if partly:
            found.append(f"It was tested on the tasks that it answers: {_all(partly)}.")
        return " ".join(found)

    @property
    def description(self) -> str:
        """Sentences about behaviour; empty if the learner equals a candidate, or if behaviour was not measured.

        Properties hold within the tolerance, plus `_NOISES` times the noise of answers, which these measures contain.
        """
        own = self.behaviour.get(self.learner)
        noise = self.noise[OWN].value
        return described(own, self.tolerance + _NOISES * noise, noise > EXACT) if own and not self.names else ""

    def parameters(self, candidate: str) -> dict[str, Any]:
        """Best-fitting parameters of a candidate, on the family's own tasks alone if the verdict is about these."""
        return dict(_parameters(self._row(candidate), self.standing))

    def _as_near(self, one: str, first: str) -> bool:
        """True if a named candidate is as near as the first, up to three standard errors."""
        own = self.standing.kind == OWN_TASKS
        near, least = (averaged([each.mean for each in self._row(name).judged(own).values()]) for name in (one, first))
        return near.value - least.value <= EXACT + 3 * math.hypot(near.stderr, least.stderr)

    def _row(self, candidate: str) -> Row:
        for row in self.rows:
            if row.candidate == candidate:
                return row
        raise ArgumentError(f"candidate must be one of those compared, but is {candidate!r}: see .table().")

    def _spelt(self, candidate: str) -> str:
        listed = _listed(self.parameters(candidate))
        return f"{candidate} with {listed}" if listed else candidate

    def _tasks_to_decide(self, candidate: str) -> float:
        """Number of tasks per condition that would decide about an undecided candidate."""
        return self._row(candidate).differences[self.standing.undecided[candidate]].tasks_to_decide(self.tolerance)

    def table(self) -> Table:
        """One row per candidate, sorted by verdict and then by distance.

        Squared differences of predictions are in per cent of the predictions' variance, on the family's own tasks and
        under the condition with the largest difference.
        """
        found = self.standing
        verdicts = dict.fromkeys(found.names, found.kind)
        verdicts |= {name: f"undecided {_under(one)}" for name, one in found.undecided.items()}
        verdicts |= {name: f"differs {_under(one)}" for name, one in found.ruled_out.items()}
        return Table(
            {
                "candidate": row.candidate,
                "family": row.family,
                "parameters": _listed(_parameters(row, found)),
                "own tasks, %": in_percent(row.own_difference.mean),
                "largest, %": in_percent(row.differences[_clearest(row)].mean),
                "under": _clearest(row),
                "verdict": verdicts[row.candidate],
            }
            for row in self.rows
        )

    def tables(self) -> dict[str, Table]:
        """All measurements, by title."""
        own = self.behaviour.get(self.learner)
        tables = {
            "Families": Table(
                {"family": one.family, "nearest candidate": one.candidate, "parameters": _listed(one.parameters),
                 "variance unexplained, %": in_percent(one.unexplained),
                 "behind the nearest, %": in_percent(one.behind) if one.behind else None}
                for one in self.shares
            ),
            "Mixture": self._mixture(),
            "Candidates": self.table(),
            "Answers of the model": Table(self.answers),
            "Noise of the learner": Table({"condition": name, "noise": one} for name, one in self.noise.items()),
            "Beyond predictions": Table(
                {name.replace("_", " "): value for name, value in vars(one).items() if value is not None}
                for one in self.likenesses
            ),
            "Effects of changes of the task": Table(
                {"change": name, **{who: one.invariances.get(name) for who, one in self.behaviour.items()}}
                for name in (own.invariances if own else ())
            ),
            "Linearity": Table(
                {"learner": who, "not linear in labels": one.superposition, "linear in queries": one.linear,
                 "explained by a spectral filter": one.filtered, "labels repeated": one.copies}
                for who, one in self.behaviour.items()
            ),
            "Controls: error relative to predicting zero": Table([dict(self.controls)] if self.controls else []),
            "Not measured": Table({"measure": name, "because": why} for name, why in self.unmeasured.items()),
        }  # fmt: skip
        return {title: table for title, table in tables.items() if table}

    def _mixture(self) -> Table:
        """Weights of the mixture's parts, with the unexplained variance of each part alone and of the mixture."""
        if self.mixture is None:
            return Table()
        alone = {one.candidate: one.unexplained for one in self.shares}
        rows = [
            (one.candidate, _listed(one.parameters), one.weight, alone[one.candidate]) for one in self.mixture.parts
        ]
        return Table(
            {"candidate": name, "parameters": listed, "weight": weight, "variance unexplained, %": in_percent(left)}
            for name, listed, weight, left in (*rows, ("all together", "", None, self.mixture.unexplained))
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python numbers, strings, lists and dicts, with the verdict in words."""
        return super().to_dict() | {"names": list(self.names), "sense": self.standing.kind}


def like(learner: str, shares: Sequence[Share]) -> str:
    """Sentence about the two nearest families of algorithms."""
    first, *others = shares
    left = f"{percent_text(first.unexplained.value)} of the variance of its predictions unexplained"
    after = f"; next family, {others[0].family}, {percent_text(others[0].unexplained.value)}" if others else ""
    if first.unexplained.value > _UNLIKE:
        return f"{learner} is like no family: the nearest, {first.family}, leaves {left}{after}."
    return f"{learner} is most like {first.family}: {left}{after}."


def _clearest(row: Row) -> str:
    return max(row.differences, key=lambda name: row.differences[name].mean.value)


def _parameters(row: Row, found: Standing) -> Mapping[str, Any]:
    return row.own_parameters if found.kind == OWN_TASKS else row.parameters


def _all(names: Sequence[str]) -> str:
    """Join at most `_SHOWN` names, and add the number of the others."""
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _far(value: float) -> str:
    """A difference in per cent; differences have a maximum."""
    return f"{percent_text(value)} or more" if value >= FARTHEST else percent_text(value)


def _under(condition: str) -> str:
    return "on the family's own tasks" if condition == OWN else f"with {condition}"


def in_percent(one: Measurement) -> Measurement:
    return Measurement(100 * one.value, 100 * one.stderr, one.n)


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in parameters.items())


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} rows" if value and isinstance(value[0], list) else f"[{', '.join(map(_short, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
