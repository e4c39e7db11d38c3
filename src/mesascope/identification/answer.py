"""The answer of `identify`, as a sentence, tables and plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from mesascope.errors import ArgumentError
from mesascope.evidence.tables import Table, Tabular
from mesascope.identification.behaviour import Behaviour
from mesascope.identification.likeness import Apart, Likeness
from mesascope.identification.verdict import Row, Standing, standing
from mesascope.measurement import Measurement
from mesascope.runs import Run

__all__ = ["Identification"]


@dataclass(frozen=True, repr=False)
class Identification(Tabular):
    """The answer of `identify`.

    Args:
        learner: its name.
        rows: every candidate at its nearest, the nearest first.
        noise: by condition, how far answers of the learner differ from call to call and by rounding, squared, over the
            size of labels and predictions: differences are less this.
        pairs: by condition, the number of pairs in a context.
        level: the probability that the learner's own algorithm, were it among the candidates, is ruled out.
        tolerance: the largest difference of an approximation.
        asked: predictions that the learner was asked for.
        behaviour: what the learner does, and what the nearest candidate does on the same tasks, by name.
        controls: the learner's squared error over that of predicting zero: as it is, with shuffled labels, without
            pairs, and of an untrained copy.
        likenesses: of the nearest candidates, beyond predictions.
        apart: the nearest candidates, each with each.
        unmeasured: what was not measured, and why.
    """

    learner: str
    rows: tuple[Row, ...]
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

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Identification:
        """The inverse of `to_dict`."""
        try:
            return msgspec.convert(record, cls)
        except msgspec.ValidationError as error:
            raise ArgumentError(
                f"record must be that of an identification, but is not ({error}): restore it."
            ) from None

    @property
    def standing(self) -> Standing:
        """Which candidates are left, in which sense, and what rules out each other."""
        return standing(self.rows, self.tolerance)

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates that cannot be told apart from the learner, nearest first."""
        return tuple(self.standing.names)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        left = self.standing
        if not left.names:
            one, *others = self.rows
            of = f"none of the {len(self.rows)} candidates" if others else f"not {one.candidate}, the only candidate"
            return f"{self.learner}: {of}."
        first, *others = left.names
        also = f"; not told apart from it: {', '.join(others)}" if others else ""
        return f"{self.learner} {left.kind} {_spelt(self._row(first), left)}{also}."

    def parameters(self, candidate: str) -> dict[str, Any]:
        """The parameters at which a candidate is nearest: on the family's own tasks, if the verdict is about those."""
        return dict(_parameters(self._row(candidate), self.standing))

    def _row(self, candidate: str) -> Row:
        for row in self.rows:
            if row.candidate == candidate:
                return row
        raise ArgumentError(f"candidate must be one of those compared, but is {candidate!r}: see .table().")

    def table(self) -> Table:
        """A row for each candidate: the largest difference, that on the family's own tasks, and what rules it out."""
        left = self.standing
        return Table(
            {
                "candidate": row.candidate,
                "parameters": _listed(_parameters(row, left)),
                "own tasks": row.own_difference.mean,
                "largest": row.differences[_clearest(row)].mean,
                "under": _clearest(row),
                "ruled out by": left.ruled_out.get(row.candidate, ""),
            }
            for row in self.rows
        )

    def tables(self) -> dict[str, Table]:
        """All that was measured, by what it tells."""
        own = self.behaviour.get(self.learner)
        told = {
            "Candidates": self.table(),
            "Noise of the learner": Table({"condition": name, "noise": one} for name, one in self.noise.items()),
            "Beyond predictions": Table(_filled(vars(one)) for one in self.likenesses),
            "What changes do to predictions": Table(
                {"change": name, **{who: one.invariances.get(name) for who, one in self.behaviour.items()}}
                for name in (own.invariances if own else ())
            ),
            "Linearity": Table(
                {"learner": who, "not linear in labels": one.superposition, "linear in queries": one.linear,
                 "explained by a spectral filter": one.filtered}
                for who, one in self.behaviour.items()
            ),
            "Controls: error over that of predicting zero": Table([dict(self.controls)] if self.controls else []),
            "Not measured": Table({"measure": name, "because": why} for name, why in self.unmeasured.items()),
        }  # fmt: skip
        return {title: table for title, table in told.items() if table}

    def to_dict(self) -> dict[str, Any]:
        """All that it holds as plain Python numbers, texts, lists and dicts, with the verdict in words."""
        return super().to_dict() | {"verdict": self.verdict, "names": list(self.names), "sense": self.standing.kind}

    def save(self, folder: str | Path, settings: Mapping[str, Any] | None = None, seed: int = 0) -> Run:
        """Keep the answer as a run, with its figures and report.html, in a new folder.

        Args:
            settings: what is kept with it of how it was asked for.
        """
        from mesascope.identification.reporting import saved

        return saved(self, folder, settings or {}, seed)

    def report(self, path: str | Path) -> Path:
        """Write a page with tables and figures to ``path``, which opens offline."""
        from mesascope.identification.reporting import page

        return page(self, path)

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.table()!r}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.verdict)}</p>{self.table()._repr_html_()}"


def _filled(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", " "): value for name, value in row.items() if value is not None}


def _clearest(row: Row) -> str:
    return max(row.differences, key=lambda name: row.differences[name].mean.value)


def _parameters(row: Row, left: Standing) -> Mapping[str, Any]:
    return row.own_parameters if left.kind.endswith("own tasks") else row.parameters


def _spelt(row: Row, left: Standing) -> str:
    listed = _listed(_parameters(row, left))
    return f"{row.candidate} with {listed}" if listed else row.candidate


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in parameters.items())


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} rows" if value and isinstance(value[0], list) else f"[{', '.join(map(_short, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
