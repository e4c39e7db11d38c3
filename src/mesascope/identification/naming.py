"""Which learning algorithm a learner runs: the one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from mesascope.errors import ArgumentError, refuse, require_count, require_number
from mesascope.identification.answer import Identification
from mesascope.identification.behaviour import Behaviour, asked_for_behaviour, behaviour_of, controls, untrained
from mesascope.identification.catalogue import Candidate, candidates as catalogue, require_candidates
from mesascope.identification.conditions import OWN, SHUFFLED, battery
from mesascope.identification.fitting import (
    KEPT,
    LARGEST,
    Answers,
    Fit,
    answers,
    bounded,
    fits,
    sizes,
    squared_differences,
)
from mesascope.identification.likeness import Likeness, apart, likeness
from mesascope.identification.verdict import EXACT, FARTHEST, Difference, Row, difference
from mesascope.lenses.needs import called, require_access
from mesascope.measurement import Measurement
from mesascope.progress import tracked
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner
from mesascope.tasks.asking import label, named

__all__ = ["identify"]

_TASKS = 100
# Tasks of a condition are asked about three times: to fit, to test, and to see how answers differ from call to call.
_PARTS = 3
# Tasks that candidates are tried on first.
_SCREEN = 16
# The least tasks of a condition for an interval to mean anything.
_LEAST = 8
# Tasks that behaviour is measured on, and the share of a budget that it may take.
_WATCHED, _SHARE = 32, 4
# Predictions that tell in which precision a learner computes, and whether torch can differentiate it.
_TRIED = 3
# Candidates that are compared beyond predictions.
_NEAREST = 8


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
    seed = require_count("seed", seed, least=0)
    for argument, value in (("tolerance", tolerance), ("level", level)):
        require_number(argument, value, above=0, most=1)
    chosen = require_candidates(catalogue(family) if candidates is None else candidates)
    few = _watched(family, budget)
    count = _affordable(family, budget, _TRIED + few * _cost(family))
    tasks = {part: battery(family, count, seed, part) for part in ("fit", "test")}
    seen = _Seen(learner, tasks, seed)
    found = sorted(
        (_row(candidate, seen, tolerance, level) for candidate in tracked(chosen, "candidates")),
        key=lambda pair: (pair[0].screened, pair[0].rank()),
    )
    nearest = {row.candidate: fit.learner for row, fit in found[:_NEAREST]}
    name = name or named(learner)
    watched = (
        _watch(learner, name, nearest, battery(family, few, seed, "watch"), seen.dtype, seed) if few else _Watched()
    )
    unmeasured = dict(seen.missed)
    if not few:
        unmeasured |= dict.fromkeys(("behaviour", "controls"), f"the budget leaves fewer than {_LEAST} tasks for them")
    return Identification(
        learner=name,
        rows=tuple(row for row, _ in found),
        noise={one: Measurement.of(noise) for one, noise in seen.noise.items()},
        pairs={one: seen.tasks["test"][one].context.x.shape[-2] for one in seen.test},
        level=level,
        tolerance=tolerance,
        asked=_TRIED + seen.asked + few * _cost(family),
        behaviour=watched.behaviour,
        controls=watched.controls,
        likenesses=watched.likenesses,
        apart=apart(nearest, {one: seen.tasks["test"][one] for one in seen.test}, seen.noise, level),
        unmeasured={**unmeasured, **watched.unmeasured},
    )


class _Watched(NamedTuple):
    """What is told beside the differences of predictions."""

    behaviour: Mapping[str, Behaviour] = {}
    controls: Mapping[str, Measurement] = {}
    likenesses: tuple[Likeness, ...] = ()
    unmeasured: Mapping[str, str] = {}


def _watch(
    learner: Learner,
    name: str,
    nearest: Mapping[str, Learner],
    tasks: Mapping[str, Episode],
    dtype: torch.dtype,
    seed: int,
) -> _Watched:
    """Behaviour of the learner and of the candidate nearest to it, likenesses of the nearest, and null controls."""
    own, unmeasured = tasks[OWN].to(dtype), {}
    first, second = next(iter(nearest.items()))
    seen = {
        name: behaviour_of(learner, own, stream(seed, "identify-changes")),
        first: behaviour_of(second, tasks[OWN], stream(seed, "identify-changes")),
    }
    copy = untrained(learner, stream(seed, "identify-untrained"))
    if copy is None:
        unmeasured["untrained copy"] = "the learner has no parameters, or does not say how they are drawn"
    alike = likeness(learner, nearest, own, own.context.x.roll(1, 0))
    if all(one.sensitivity_cosine is None for one in alike):
        unmeasured["sensitivities"] = "torch cannot differentiate the learner everywhere"
    if not own.yq.any():
        unmeasured["controls"] = "the right answers are all 0"
    return _Watched(seen, controls(learner, own, tasks.get(SHUFFLED), copy), alike, unmeasured)


def _cost(family: Any) -> int:
    """Predictions that a learner is asked for about a task of which its behaviour is watched."""
    return asked_for_behaviour(battery(family, 1, 0, "size")[OWN])


def _watched(family: Any, budget: int | None) -> int:
    """Tasks that behaviour is measured on; none where a budget leaves too few."""
    if budget is None:
        return _WATCHED
    budget = require_count("budget", budget)
    tasks = min((budget - _TRIED) // (_SHARE * _cost(family)), _WATCHED)
    return tasks if tasks >= _LEAST else 0


def _affordable(family: Any, budget: int | None, spent: int) -> int:
    """Tasks for each condition and part, from what is left of a budget."""
    if budget is None:
        return _TASKS
    queries = _PARTS * sum(episode.xq.shape[-2] for episode in battery(family, 1, 0, "size").values())
    tasks = (budget - spent) // queries
    if tasks < _LEAST:
        refuse("budget", f"leave {_LEAST} tasks a condition", budget, f"pass {_LEAST * queries + spent} or more")
    return tasks


class _Seen:
    """What the learner answers, asked once to fit and twice to test, on tasks of the precision that it takes.

    Its answers differ from call to call if it draws at random. Inputs of the second call differ by rounding where it
    computes in single precision, so that what rounding does to it shows.
    """

    def __init__(self, learner: Learner, tasks: Mapping[str, Mapping[str, Episode]], seed: int) -> None:
        self.dtype = _precision(learner, tasks["fit"][OWN].part(0, 1))
        read = getattr(learner, "as_written", lambda episode: episode)
        own = {part: {name: read(one.to(self.dtype)) for name, one in some.items()} for part, some in tasks.items()}
        draw = stream(seed, "identify-rounding")
        again = {
            name: _rounded_otherwise(one, draw) if self.dtype == torch.float32 else one
            for name, one in own["test"].items()
        }
        fitting, first, second = (answers(learner, part, partly=True) for part in (own["fit"], own["test"], again))
        self.tasks: dict[str, dict[str, Episode]] = {"fit": {}, "test": {}}
        self.fit: dict[str, Tensor] = {}
        self.test: dict[str, Tensor] = {}
        self.noise: dict[str, Tensor] = {}
        self.missed: dict[str, str] = {}
        rounding = getattr(learner, "resolution", 0.0) ** 2 / 12
        for name in own["test"]:
            if not all(name in one for one in (fitting, first, second)):
                self.missed[name] = "the learner does not answer its contexts"
                continue
            fit, test = bounded(fitting[name]), bounded(first[name], second[name])
            kept, all_ = int(fit.sum() + test.sum()), len(fit) + len(test)
            if kept < all_:
                self.missed[name] = f"{kept} of {all_} tasks were answered by numbers"
            if min(fit.sum(), test.sum()) < _LEAST:
                continue
            for part, mask in (("fit", fit), ("test", test)):
                self.tasks[part][name] = own[part][name].to(torch.float64).map(lambda one, mask=mask: one[mask])
            self.fit[name], self.test[name] = fitting[name][fit], first[name][test]
            differing = (first[name] - second[name])[test].square().mean((-2, -1)) / 2
            self.noise[name] = differing + rounding
        if OWN not in self.test:
            raise ArgumentError(
                f"a learner must answer {_LEAST} of the family's own tasks with finite numbers below {LARGEST:g}, but "
                f"{label(learner)} does not: mend it, or choose another family."
            )
        self.size = sizes(self.tasks["test"], self.test)
        # Noise beyond the size of a task hides all of it, and no more.
        self.noise = {name: one / torch.maximum(one, self.size[name]) for name, one in self.noise.items()}
        asked = [*own["fit"].values(), *own["test"].values(), *again.values()]
        self.asked = sum(episode.yq[..., 0].numel() for episode in asked)


def _precision(learner: Learner, task: Episode) -> torch.dtype:
    """Double where the learner takes it."""
    for dtype in (torch.float64, torch.float32):
        if answers(learner, {"": task.to(dtype)}, partly=True):
            return dtype
    called(learner, task.context, task.xq)  # says what is wrong
    raise ArgumentError(f"a learner must answer in float64 or float32, but {label(learner)} does not: convert it.")


def _rounded_otherwise(tasks: Episode, generator: torch.Generator) -> Episode:
    """Every number moved to one next to it."""

    def moved(part: Tensor) -> Tensor:
        signs = torch.randint(0, 2, part.shape, generator=generator).to(part) * 2 - 1
        return part * (1 + torch.finfo(part.dtype).eps * signs)

    return tasks.map(moved)


def _row(candidate: Candidate, seen: _Seen, tolerance: float, level: float) -> tuple[Row, Fit]:
    """A candidate fitted to a few of the family's own tasks, to all of them, to a few of each condition, and to all.

    That is, while it is near. What it is fitted to flatters it: one that is beyond the bound there is ruled out with
    the less error. A half of ``level`` is for these three looks, and a half for all conditions together.
    """
    look, bound = level / 6, max(tolerance, EXACT)
    near: list[Fit] = []
    tasks_each = len(seen.fit[OWN])
    counts = sorted({_most(candidate, min(_SCREEN, tasks_each)), _most(candidate, tasks_each)})
    for most in counts:
        few, tasks = {OWN: seen.fit[OWN][:most]}, {OWN: seen.tasks["fit"][OWN].part(0, most)}
        near = fits(candidate, tasks, few, near, anew=not near)
        own = near[0]
        at_best = _difference(candidate, own, tasks, few, float(seen.noise[OWN].mean()), look)
        if at_best.low > bound:
            return Row(candidate.name, own.parameters, {OWN: at_best}, own.parameters, at_best, screened=True), own
    alone = _tested(candidate, own, seen, OWN, level / 2)
    near = near[:1] if candidate.most_tasks else near
    anew = len(near) == KEPT and float(seen.noise[OWN].mean()) > 0  # then other numbers of steps may be as near
    for most in counts:
        few = {name: one[:most] for name, one in seen.fit.items()}
        tasks = {name: one.part(0, most) for name, one in seen.tasks["fit"].items()}
        near, anew = fits(candidate, tasks, few, near, anew), False
        best, last = near[0], most == counts[-1]
        share, tested = (level / 2 if last else look) / len(seen.test), {}
        for name in seen.test:
            tested[name] = _tested(candidate, best, seen, name, share, most)
            if candidate.most_tasks and tested[name].low > bound:  # others would take long
                break
        row = Row(candidate.name, best.parameters, tested, own.parameters, alone, screened=not last)
        if any(one.low > bound for one in tested.values()):
            break
    return row, best


def _most(candidate: Candidate, tasks: int) -> int:
    return min(candidate.most_tasks or tasks, tasks)


def _difference(
    candidate: Candidate, fitted: Fit, tasks: Mapping[str, Episode], seen: Answers, noise: float, level: float
) -> Difference:
    """On the family's own tasks that it was fitted to."""
    most = candidate.most_tasks or len(seen[OWN])
    episode, own = tasks[OWN].part(0, most), seen[OWN][:most]
    size = sizes({OWN: episode}, {OWN: own})[OWN]
    return _less_noise(candidate, fitted, episode, own, size, torch.full_like(size, noise), level)


def _tested(
    candidate: Candidate, fitted: Fit, seen: _Seen, name: str, level: float, most: int | None = None
) -> Difference:
    """On tasks that nothing was fitted to, so many of them at most."""
    most = _most(candidate, most or len(seen.size[name]))
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
    again = answers(candidate.draws(seed=1, **fitted.parameters), {"": tasks}) if candidate.draws else answered
    if not answered or not again:
        return Difference(Measurement(FARTHEST, 0.0, len(size)), FARTHEST)
    own = squared_differences(again[""], answered[""], size) / 2
    noise = noise + own * (2 if noise.mean() < own.mean() / 2 else 1)
    return difference(squared_differences(seen, answered[""], size), noise, level)
