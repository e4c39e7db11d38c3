"""Which learning algorithm a learner runs: the one call, and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import ArgumentError, refuse, require_count, require_number
from mesascope.evidence.tables import Table, Tabular
from mesascope.identification.catalogue import Candidate, candidates as catalogue, require_candidates
from mesascope.identification.conditions import OWN, battery
from mesascope.identification.fitting import Answers, Fit, answers, fits, sizes, squared_differences
from mesascope.identification.verdict import EXACT, Difference, Row, Standing, difference, standing
from mesascope.lenses.needs import called, require_access
from mesascope.measurement import Measurement
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner
from mesascope.tasks.asking import label

__all__ = ["Identification", "identify"]

_TASKS = 100
# Tasks of a condition are asked about three times: to fit, to test, and to see how answers differ from call to call.
_PARTS = 3
# Tasks that candidates are tried on first.
_SCREEN = 16
# The difference from a candidate that has no answer: none is larger.
_FARTHEST = 4.0
# The least tasks of a condition for an interval to mean anything.
_LEAST = 8


@dataclass(frozen=True, repr=False)
class Identification(Tabular):
    """The answer of `identify`.

    Args:
        learner: its name.
        standing: which candidates are left, in which sense, and what rules out each other.
        rows: every candidate at its nearest, the nearest first.
        noise: by condition, how far answers of the learner differ from call to call and by rounding, squared, over the
            size of labels and predictions: differences are less this.
        level: the probability that the learner's own algorithm, were it among the candidates, is ruled out.
        tolerance: the largest difference of an approximation.
        asked: predictions that the learner was asked for.
        unanswered: conditions that it did not answer.
    """

    learner: str
    standing: Standing
    rows: tuple[Row, ...]
    noise: Mapping[str, Measurement]
    level: float
    tolerance: float
    asked: int
    unanswered: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates that cannot be told apart from the learner, nearest first."""
        return tuple(self.standing.names)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        if not self.names:
            return f"{self.learner}: none of the {len(self.rows)} candidates."
        by_name = {row.candidate: row for row in self.rows}
        first, *others = self.names
        also = f"; not told apart from it: {', '.join(others)}" if others else ""
        return f"{self.learner} {self.standing.kind} {_spelt(by_name[first], self.standing)}{also}."

    def parameters(self, candidate: str) -> dict[str, Any]:
        """The parameters at which a candidate is nearest: on the family's own tasks, if the verdict is about those."""
        for row in self.rows:
            if row.candidate == candidate:
                return dict(_parameters(row, self.standing))
        raise ArgumentError(f"candidate must be one of those compared, but is {candidate!r}: see .table().")

    def table(self) -> Table:
        """A row for each candidate: the largest difference, that on the family's own tasks, and what rules it out."""
        return Table(
            {
                "candidate": row.candidate,
                "parameters": _listed(_parameters(row, self.standing)),
                "own tasks": row.own_difference.mean,
                "largest": row.differences[_clearest(row)].mean,
                "under": _clearest(row),
                "ruled out by": self.standing.ruled_out.get(row.candidate, ""),
            }
            for row in self.rows
        )

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.table()!r}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.verdict)}</p>{self.table()._repr_html_()}"


def _clearest(row: Row) -> str:
    return max(row.differences, key=lambda name: row.differences[name].mean.value)


def _parameters(row: Row, standing: Standing) -> Mapping[str, Any]:
    return row.own_parameters if standing.kind.endswith("own tasks") else row.parameters


def _spelt(row: Row, standing: Standing) -> str:
    listed = _listed(_parameters(row, standing))
    return f"{row.candidate} with {listed}" if listed else row.candidate


def _listed(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in parameters.items())


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} rows" if value and isinstance(value[0], list) else f"[{', '.join(map(_short, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@register("lens", "identify", needs="prediction")
def identify(
    learner: Learner,
    family: Family,
    candidates: Iterable[Candidate] | None = None,
    budget: int | None = None,
    seed: int = 0,
    *,
    tolerance: float = 0.01,
    level: float = 0.01,
    name: str | None = None,
) -> Identification:
    """Which learning algorithm ``learner`` runs, as far as its predictions tell. Needs *prediction*.

    Tasks of ``family`` and distorted ones (`CONDITIONS`) are put to the learner and to every candidate, whose free
    parameters are fitted to the learner's predictions on tasks of their own. Differences of predictions are squared,
    divided by the mean square of labels or predictions, and reduced by what answers differ from call to call. A
    candidate is left if under no condition its difference is above a bound beyond its error: one of rounding (the
    learner *runs* it), ``tolerance`` (it *approximates* it), or ``tolerance`` on the family's own tasks alone. The
    strictest sense in which any is left is the answer; *none of the candidates* is one, too.

    Args:
        candidates: what the learner may run; the whole catalogue if None.
        budget: predictions that the learner may be asked for, at most; 100 tasks for each condition and part if None.
        seed: of the tasks.
        tolerance: the largest normalised squared difference of an approximation.
        level: the most that the probability of ruling out the learner's own algorithm may be.
        name: of the learner, in the answer.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> some = [one for one in catalogue(sklearn=False) if one.name in ("gradient-descent", "ridge least-squares")]
    >>> identify(GradientDescent(2, 1.5), LinearRegression(), some).verdict
    'GradientDescent runs gradient-descent with steps = 2, eta = 1.5.'
    """
    require_access("identify", learner)
    require_count("seed", seed, least=0)
    for argument, value in (("tolerance", tolerance), ("level", level)):
        require_number(argument, value, above=0, most=1)
    chosen = require_candidates(catalogue(family) if candidates is None else candidates)
    tasks = {part: battery(family, _affordable(family, budget), seed, part) for part in ("fit", "test")}
    seen = _Seen(learner, tasks, seed)
    rows = sorted(
        (_row(candidate, seen, tolerance, level) for candidate in chosen), key=lambda row: (row.screened, row.rank())
    )
    return Identification(
        name or getattr(learner, "__name__", label(learner).split("(")[0]), standing(rows, tolerance),
        tuple(rows), {one: Measurement.of(noise) for one, noise in seen.noise.items()}, level, tolerance, seen.asked,
        tuple(one for one in tasks["test"] if one not in seen.test),
    )  # fmt: skip


def _affordable(family: Any, budget: int | None) -> int:
    """Tasks for each condition and part."""
    if budget is None:
        return _TASKS
    require_count("budget", budget)
    one = battery(family, 1, 0, "size")
    tasks = budget // (_PARTS * sum(episode.xq.shape[-2] for episode in one.values()))
    if tasks < _LEAST:
        needed = _LEAST * budget // max(tasks, 1) if tasks else _LEAST * _PARTS * len(one)
        refuse("budget", f"leave {_LEAST} tasks a condition", budget, f"pass {needed} or more")
    return tasks


class _Seen:
    """What the learner answers, asked once to fit and twice to test, on tasks of the precision that it takes.

    Its answers differ from call to call if it draws at random. Inputs of the second call differ by rounding where it
    computes in single precision, so that what rounding does to it shows.
    """

    def __init__(self, learner: Learner, tasks: Mapping[str, Mapping[str, Episode]], seed: int) -> None:
        dtype = _precision(learner, tasks["fit"][OWN].part(0, 1))
        own = {part: {name: one.to(dtype) for name, one in some.items()} for part, some in tasks.items()}
        self.tasks = {part: {name: one.to(torch.float64) for name, one in some.items()} for part, some in own.items()}
        draw = stream(seed, "identify-rounding")
        again = {
            name: _rounded_otherwise(one, draw) if dtype == torch.float32 else one for name, one in own["test"].items()
        }
        fitting, first, second = (answers(learner, part) for part in (own["fit"], own["test"], again))
        self.test = {name: one for name, one in first.items() if name in second and name in fitting}
        self.fit = {name: fitting[name] for name in self.test}
        if OWN not in self.test:
            raise ArgumentError(
                f"a learner must answer the family's own tasks with finite numbers, but {label(learner)} does not: "
                "mend it, or choose another family."
            )
        self.size = sizes(self.tasks["test"], self.test)
        rounding = getattr(learner, "resolution", 0.0) ** 2 / 12
        self.noise = {
            name: ((one - second[name]).square().mean((-2, -1)) / 2 + rounding) / self.size[name]
            for name, one in self.test.items()
        }
        asked = [*own["fit"].values(), *own["test"].values(), *again.values()]
        self.asked = sum(episode.yq[..., 0].numel() for episode in asked)


def _precision(learner: Learner, task: Episode) -> torch.dtype:
    """Double where the learner takes it."""
    for dtype in (torch.float64, torch.float32):
        if answers(learner, {"": task.to(dtype)}):
            return dtype
    called(learner, task.context, task.xq)  # says what is wrong
    raise ArgumentError(f"a learner must answer in float64 or float32, but {label(learner)} does not: convert it.")


def _rounded_otherwise(tasks: Episode, generator: torch.Generator) -> Episode:
    """Every number moved to one next to it."""

    def moved(part: Tensor) -> Tensor:
        signs = torch.randint(0, 2, part.shape, generator=generator).to(part) * 2 - 1
        return part * (1 + torch.finfo(part.dtype).eps * signs)

    return tasks.map(moved)


def _row(candidate: Candidate, seen: _Seen, tolerance: float, level: float) -> Row:
    """A candidate fitted to a few of the family's own tasks, to all of them, and to all conditions, while it is near.

    What it is fitted to flatters it: one that is beyond the bound there is ruled out with the less error. A half of
    ``level`` is for these two looks, and a half for all conditions together.
    """
    fitting = seen.tasks["fit"]
    near: list[Fit] = []
    for most in (_SCREEN, len(seen.fit[OWN])):
        alone, tasks = {OWN: seen.fit[OWN][:most]}, {OWN: fitting[OWN].part(0, most)}
        near = fits(candidate, tasks, alone, near)
        own = near[0]
        at_best = _difference(candidate, own, tasks, alone, float(seen.noise[OWN].mean()), level / 4)
        if at_best.low > max(tolerance, EXACT):
            return Row(candidate.name, own.parameters, {OWN: at_best}, own.parameters, at_best, screened=True)
    whole = fits(candidate, fitting, seen.fit, near)[0]
    share = level / 2 / len(seen.test)
    tested = {name: _tested(candidate, whole, seen, name, share) for name in seen.test}
    return Row(candidate.name, whole.parameters, tested, own.parameters, _tested(candidate, own, seen, OWN, level / 2))


def _difference(
    candidate: Candidate, fitted: Fit, tasks: Mapping[str, Episode], seen: Answers, noise: float, level: float
) -> Difference:
    """On the family's own tasks that it was fitted to."""
    most = candidate.most_tasks or len(seen[OWN])
    episode, own = tasks[OWN].part(0, most), seen[OWN][:most]
    size = sizes({OWN: episode}, {OWN: own})[OWN]
    return _less_noise(candidate, fitted, episode, own, size, torch.full_like(size, noise), level)


def _tested(candidate: Candidate, fitted: Fit, seen: _Seen, name: str, level: float) -> Difference:
    """On tasks that nothing was fitted to."""
    most = candidate.most_tasks or len(seen.size[name])
    answer, size, noise = (part[name][:most] for part in (seen.test, seen.size, seen.noise))
    return _less_noise(candidate, fitted, seen.tasks["test"][name].part(0, most), answer, size, noise, level)


def _less_noise(
    candidate: Candidate,
    fitted: Fit,
    tasks: Episode,
    seen: Float[Tensor, "tasks m dy"],
    size: Float[Tensor, " tasks"],
    noise: Float[Tensor, " tasks"],
    level: float,
) -> Difference:
    """The difference less the noise of the learner and of the candidate.

    That of a candidate that draws at random counts twice where the learner does not differ from call to call: if it
    runs the same algorithm, it has drawn once and for all.
    """
    answered = answers(fitted.learner, {"": tasks})
    if not answered:
        return Difference(Measurement(_FARTHEST, 0.0, len(size)), _FARTHEST)
    raw = squared_differences(seen, answered[""], size)
    if candidate.draws is not None:
        other = answers(candidate.draws(seed=1, **fitted.parameters), {"": tasks})[""]
        own = squared_differences(other, answered[""], size) / 2
        noise = noise + own * (2 if noise.mean() < own.mean() / 2 else 1)
    return difference(raw, noise, level)
