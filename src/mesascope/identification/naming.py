"""Which learning algorithm a learner runs: the one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from mesascope.adapters.estimators import SklearnLearner
from mesascope.adapters.text import TextLearner
from mesascope.errors import refuse, require_count, require_number
from mesascope.identification.answer import Identification
from mesascope.identification.behaviour import Behaviour, asked_for_behaviour, behaviour_of, controls, untrained
from mesascope.identification.candidate import Candidate, require_candidates
from mesascope.identification.catalogue import candidates as catalogue
from mesascope.identification.comparing import Compared, Levels, compared, in_order, shares, told_by_draws
from mesascope.identification.conditions import OWN, SHUFFLED, battery
from mesascope.identification.likeness import Likeness, apart, likeness
from mesascope.identification.seen import LEAST, Seen
from mesascope.identification.verdict import EXACT
from mesascope.identification.wrapped import FORMS, wrapped
from mesascope.lenses.needs import require_access
from mesascope.measurement import Measurement
from mesascope.progress import tracked
from mesascope.records import register
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner
from mesascope.tasks.asking import named

__all__ = ["identify"]

_TASKS = 100
# Answers to each condition's tasks: to fit, to test, and to see how answers differ from call to call.
_PARTS = 3
# Predictions asked of an estimator of scikit-learn, which fits each of them anew.
_OF_ESTIMATORS = 1_200
# Tasks that behaviour is measured on, and the share of a budget that it may take.
_WATCHED, _SHARE = 32, 4
# Predictions that show in which precision a learner computes, and if torch can differentiate it.
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
    """Name the learning algorithm that ``learner`` runs, from its predictions. Needs *prediction*.

    Tasks of ``family`` and distorted ones (`CONDITIONS`) are put to the learner and to every candidate, whose free
    parameters are fitted to the learner's predictions on tasks of their own. Squared differences of predictions are
    divided by the variance of predictions, and reduced by the variance of answers from call to call.

    A candidate is named only if the upper confidence bounds of its differences under all conditions lie below a bound:
    one of rounding (the learner *runs* it), ``tolerance`` (it *approximates* it), or ``tolerance`` on the family's own
    tasks alone. It is ruled out if the lower bound of any difference lies above the bound, and otherwise not measured
    well enough. *None of the candidates* is an answer too.

    Args:
        candidates: what the learner may run; the whole catalogue if None. Costly candidates are tried only as
            long as the learner runs no other.
        budget: largest number of predictions to ask the learner for; if None, 100 tasks for each condition and part,
            and 1,200 predictions of an estimator of scikit-learn.
        seed: of the tasks.
        tolerance: largest squared difference of an approximation, over the variance of predictions.
        level: largest probability that the learner's own algorithm is ruled out, and that any other is named.
        name: of the learner, in the answer.

    Raises:
        ArgumentError: if an argument is out of range, if the budget is too small for 8 tasks a condition, or if the
            learner does not answer the family's own tasks with finite numbers.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> some = [one for one in catalogue(sklearn=False) if one.name in ("gradient-descent", "ridge least-squares")]
    >>> identify(GradientDescent(2, 1.5), LinearRegression(), some).exactly
    'GradientDescent runs gradient-descent with steps = 2, eta = 1.5.'
    """
    require_access("identify", learner)
    seed = require_count("seed", seed, least=0)
    for argument, value in (("tolerance", tolerance), ("level", level)):
        require_number(argument, value, above=0, most=1)
    chosen = require_candidates(catalogue(family) if candidates is None else candidates)
    if budget is None and isinstance(learner, SklearnLearner):
        budget = _OF_ESTIMATORS
    size = battery(family, 1, 0, "size")
    watching = asked_for_behaviour(size[OWN])
    few = _watched(watching, budget)
    count = _affordable(size, budget, _TRIED + few * watching)
    tasks = {part: battery(family, count, seed, part) for part in ("fit", "test")}
    seen = Seen(learner, tasks, seed)
    levels = Levels(tolerance, level, level / (len(chosen) * (1 + len(FORMS))))
    found = in_order(_all(chosen, seen, levels), tolerance)
    first, *others = found
    near = [first, *(one for one in others if not one.candidate.costly)][:_NEAREST]
    nearest = {one.row.candidate: one.fitted.learner for one in near}
    most = first.candidate.most_tasks or count
    apart_on = {one: seen.tasks["test"][one].part(0, most) for one in seen.test}
    name = name or named(learner)
    few = min(few, LEAST) if first.candidate.costly else few
    watched = (
        _watch(learner, name, nearest, battery(family, few, seed, "watch"), seen.dtype, seed) if few else _Watched()
    )
    unmeasured = dict(seen.missed)
    if not few:
        unmeasured |= dict.fromkeys(("behaviour", "controls"), f"the budget leaves fewer than {LEAST} tasks for them")
    tried = {one.row.candidate for one in found}
    unmeasured |= {
        one.name: f"costly, and the learner runs {first.row.candidate}" for one in chosen if one.name not in tried
    }
    return Identification(
        learner=name,
        seed=seed,
        answers=tuple(learner.table()) if isinstance(learner, TextLearner) else (),
        rows=tuple(one.row for one in found),
        shares=shares(found, seen),
        noise={one: Measurement.of(noise) for one, noise in seen.noise.items()},
        pairs={one: seen.tasks["test"][one].context.x.shape[-2] for one in seen.test},
        level=level,
        tolerance=tolerance,
        asked=_TRIED + seen.asked + few * watching,
        behaviour=watched.behaviour,
        controls=watched.controls,
        likenesses=watched.likenesses,
        apart=apart(nearest, apart_on, {one: noise[:most] for one, noise in seen.noise.items()}, level),
        unmeasured={**unmeasured, **watched.unmeasured},
    )


def _all(chosen: Sequence[Candidate], seen: Seen, levels: Levels) -> list[Compared]:
    """Candidates compared, the costly ones only if the learner runs none of the others."""
    cheap, costly = ([one for one in chosen if one.costly == which] for which in (False, True))
    found = [compared(one, seen, levels) for one in tracked(cheap, "candidates")]
    if not any(one.row.within(EXACT) for one in found):
        found += [compared(one, seen, levels) for one in wrapped(found, seen)]
    for one in tracked(costly, "costly candidates, as the learner runs no other"):
        if any(one.row.within(EXACT) for one in found):
            break
        found.append(compared(one, seen, levels))
    return told_by_draws(found, seen, levels)


class _Watched(NamedTuple):
    """Measurements beside the differences of predictions."""

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
    pair = ((name, learner, own), (first, second, tasks[OWN]))
    seen = {who: behaviour_of(one, on, stream(seed, "identify-changes")) for who, one, on in tracked(pair, "behaviour")}
    copy = untrained(learner, stream(seed, "identify-untrained"))
    if copy is None:
        unmeasured["untrained copy"] = (
            "only networks of mesascope.nets and layers with reset_parameters() draw fresh weights"
        )
    alike = likeness(learner, nearest, own, own.context.x.roll(1, 0))
    if all(one.sensitivity_cosine is None for one in alike):
        unmeasured["sensitivities"] = "torch cannot differentiate the learner everywhere"
    if not own.yq.any():
        unmeasured["controls"] = "the right answers are all 0"
    return _Watched(seen, controls(learner, own, tasks.get(SHUFFLED), copy), alike, unmeasured)


def _watched(predictions: int, budget: int | None) -> int:
    """Number of tasks that behaviour is measured on, each by so many predictions; none if the budget is too small."""
    if budget is None:
        return _WATCHED
    budget = require_count("budget", budget)
    tasks = min((budget - _TRIED) // (_SHARE * predictions), _WATCHED)
    return tasks if tasks >= LEAST else 0


def _affordable(size: Mapping[str, Episode], budget: int | None, spent: int) -> int:
    """Tasks for each condition and part, from what is left of a budget; ``size`` has a task of each condition."""
    if budget is None:
        return _TASKS
    queries = _PARTS * sum(episode.xq.shape[-2] for episode in size.values())
    tasks = (budget - spent) // queries
    if tasks < LEAST:
        refuse("budget", f"leave {LEAST} tasks a condition", budget, f"pass {LEAST * queries + spent} or more")
    return tasks
