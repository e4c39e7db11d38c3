"""Identifications as runs: result, claim, figures and page."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mesascope.errors import refuse, require_instance
from mesascope.evidence import Verdicts
from mesascope.evidence.schema import ClaimRecord
from mesascope.identification.answer import Answer, Identification, in_percent
from mesascope.identification.behaviour import Behaviour
from mesascope.identification.conditions import HALF, OWN, QUARTER
from mesascope.identification.course import Course, figures_along
from mesascope.identification.verdict import EXACT, OWN_TASKS, RUNS
from mesascope.measurement import Measurement
from mesascope.reports import Figure, Grid, Line, Lines, draw_figures, write_report
from mesascope.runs import Run
from mesascope.runs.files import as_path
from mesascope.text import counted

# Number of nearest candidates in figures.
_SHOWN = 12
# Value at which a difference of zero is drawn on a log axis.
_NOTHING = 1e-16


def saved(found: Answer, folder: str | Path, settings: Mapping[str, Any]) -> Run:
    """Save a result as a finished run."""
    require_instance("settings", settings, Mapping)
    when = f" at each {found.over}" if isinstance(found, Course) else ""
    about = {
        "question": f"Which learning algorithm does {found.learner} run{when}?",
        "settings": dict(settings),
        "seed": found.seed,
    }
    run = Run.create(folder, "identification", about)
    with run.lock():
        run.save_identification(found.to_dict())
        concluded(run)
    return run


def read(run: Run) -> Identification | Course:
    """Read the result of a run."""
    record = run.identification
    return (Course if "steps" in record else Identification).from_dict(record)


def concluded(run: Run) -> Verdicts:
    """Rewrite the claims, figures and report of a run from its result. The caller must hold the run's lock."""
    found = read(run)
    records = claims(found)
    draw_figures(run, figures(found), {"answer": found})
    run.save_claims(records)
    write_report(run, found.tables(), found=found.sentences)
    return records


def figures(found: Identification | Course) -> list[Figure]:
    """Figures of a result, for the available measurements."""
    if isinstance(found, Course):
        return figures_along(found)
    behaviours = found.behaviour.values()
    missing = {
        "lengths": not _by_length({"answer": found}), "filter": not behaviours,
        "weights": not any(one.positions for one in behaviours),
    }  # fmt: skip
    return [figure for figure in FIGURES if not missing.get(figure.name)]


def page(found: Answer, path: str | Path) -> Path:
    """Write the report of a result to ``path``, as one HTML file, and keep no run."""
    path = as_path("path", path)
    with tempfile.TemporaryDirectory() as folder:
        run = saved(found, Path(folder) / "run", {})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run.path / "report.html", path)
        except OSError as error:
            refuse("path", f"be a file that can be written ({error.strerror})", str(path), "pass another")
    return path


def claims(found: Identification | Course) -> Verdicts:
    """Convert a result (the last of a course) to a claim about the difference of the nearest candidate."""
    figure = "families" if isinstance(found, Course) else "conditions"
    found = found.answers[-1] if isinstance(found, Course) else found
    standing = found.standing
    nearest = found.rows[0]
    differences = [nearest.own_difference] if standing.kind == OWN_TASKS else [*nearest.differences.values()]
    bound = EXACT if standing.kind == RUNS else found.tolerance
    farthest = max(differences, key=lambda one: one.upper(bound) if standing.names else one.low)
    high = farthest.upper(bound)
    equal = bool(standing.names) or bool(standing.undecided)
    record: ClaimRecord = {
        "id": "algorithm",
        "sentence": found.exactly.rstrip("."),
        "measures": f"squared difference from {nearest.candidate} over the variance of predictions, largest of "
        f"{counted(len(differences), 'condition')}",
        "source": "ours: identify",
        "about": "algorithms",
        "quantifier": "every",
        "over": "tasks",
        "n": nearest.own_difference.mean.n,
        "at_least": 1,
        "premises": [],
        "value": farthest.mean.value,
        "low": farthest.low,
        "high": high if math.isfinite(high) else None,
        "bound": f"{'<' if equal else '>'} {bound:g}",
        "bound_low": None if equal else bound,
        "bound_high": bound if equal else None,
        "bound_by": "us",
        "reported": None,
        "verdict": "undecided" if standing.undecided and not standing.names else "holds",
        "reason": "",
        "figure": figure,
    }
    return Verdicts([record])


def _conditions(r: Any) -> list[Grid]:
    """Differences in per cent; nan under conditions where a candidate was not compared."""
    found = r["answer"]
    names, rows = list(found.noise), found.rows[:_SHOWN]
    values = [
        [100 * row.differences[one].mean.value if one in row.differences else np.nan for one in names] for row in rows
    ]
    return [Grid(np.round(np.maximum(values, 0), 2), [row.candidate for row in rows], names)]


def _apart(r: Any) -> list[Grid]:
    apart = r["answer"].apart
    return [Grid(np.round(100 * np.maximum(apart.lows, 0), 2), apart.names, apart.names)]


def _by_length(r: Any) -> list[Line]:
    found = r["answer"]
    lengths = [one for one in (QUARTER, HALF, OWN) if one in found.pairs]
    if len(lengths) < 2:
        return []
    rows = [row for row in found.rows if all(one in row.differences for one in lengths)][:5]
    return [
        Line(
            [found.pairs[one] for one in lengths], [max(row.differences[one].mean.value, _NOTHING) for one in lengths],
            index / max(len(rows) - 1, 1), row.candidate, marks="o-",
        )
        for index, row in enumerate(rows)
    ]  # fmt: skip


def _of_both(r: Any, drawn: Callable[[Behaviour], tuple[Sequence[float], Sequence[Measurement]]]) -> list[Line]:
    """Lines for the behaviour of the learner, with standard errors, and of the nearest candidate."""
    lines = []
    for (name, seen), role, marks in zip(r["answer"].behaviour.items(), ("trained", "gd"), ("o", "-"), strict=False):
        x, y = drawn(seen)
        if y:
            error = [one.stderr for one in y] if role == "trained" else None
            lines.append(Line(x, [one.value for one in y], role, name, marks=marks, error=error))
    return lines


def _filters(r: Any) -> list[Line]:
    return _of_both(r, lambda seen: ([one.eigenvalue for one in seen.spectrum], [one.filter for one in seen.spectrum]))


def _weights(kind: str) -> Callable[[Any], list[Line]]:
    """Lines for the weights of pairs, sorted by ``kind`` (``positions`` or ``ranks``)."""

    def drawn(seen: Behaviour) -> tuple[Sequence[float], Sequence[Measurement]]:
        shares = getattr(seen, kind)
        return range(1, len(shares) + 1), [*map(in_percent, shares)]

    return lambda r: _of_both(r, drawn)


FIGURES = (
    Figure(
        "conditions", "Squared differences of predictions from the nearest candidates under each condition, less the "
        "learner's noise, in per cent of the variance of predictions. Candidates that the family's own tasks ruled out "
        "were compared under no other condition.",
        (Lines("", "", "", _conditions),), size=(9, 5),
    ),
    Figure(
        "lengths", "Squared differences by number of pairs in a context, of the nearest candidates, as shares of the "
        f"variance of predictions; 0 is drawn at {_NOTHING:g}.",
        (Lines("", "pairs", "squared difference", _by_length, log="y"),), size=(7, 3.2),
    ),
    Figure(
        "filter", "Spectral filter by eigenvalue of X^T X / n: of the learner, with standard errors, and of the "
        "nearest candidate.", (Lines("", "eigenvalue", "filter", _filters),), size=(6, 3.2),
    ),
    Figure(
        "weights", "Share of the absolute weight on labels that goes to each pair of the context, by its place and by "
        "its distance from the query: of the learner, with standard errors, and of the nearest candidate.",
        (Lines("", "place", "weight, %", _weights("positions")), Lines("", "rank of distance", "", _weights("ranks"))),
        size=(9, 3.2),
    ),
    Figure(
        "confusion", "Lower bounds of the pairwise differences of the nearest candidates, at the learner's noise, in "
        "per cent of the variance of predictions. These tasks do not distinguish candidates with bound 0.",
        (Lines("", "", "", _apart),), size=(8, 6),
    ),
)  # fmt: skip
