"""`identify`: the call that names the learning algorithm of a learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal, NamedTuple, overload

import torch

from mesascope.adapters.arrays import SklearnLearner
from mesascope.adapters.text import TextLearner
from mesascope.errors import refuse, require_count, require_number
from mesascope.identification.answer import Identification, like
from mesascope.identification.behaviour import Behaviour, asked_for_behaviour, behaviour_of, controls, untrained
from mesascope.identification.candidate import Candidate, require_candidates
from mesascope.identification.catalogue import Catalogue, candidates as catalogue
from mesascope.identification.comparing import (
    Compared,
    Levels,
    compare,
    comparing,
    in_order,
    ruled_out_by_draws,
    shares,
)
from mesascope.identification.conditions import OWN, SHUFFLED, battery
from mesascope.identification.estimating import Estimate, estimated
from mesascope.identification.likeness import Likeness, apart, likeness
from mesascope.identification.mixture import mixture
from mesascope.identification.seen import LEAST, Seen, placed
from mesascope.identification.verdict import EXACT
from mesascope.identification.wrapped import FORMS, wrapped
from mesascope.lenses.needs import require_access
from mesascope.measurement import Measurement
from mesascope.progress import tell, tracked
from mesascope.records import register
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner
from mesascope.tasks.calling import display_name

_TASKS = 100
# Answers to each condition's tasks: to fit, to test, and to see how answers differ from call to call.
_PARTS = 3
# Budget for an estimator of scikit-learn, which is fitted for each prediction.
_OF_ESTIMATORS = 1_200
# Tasks that behaviour is measured on, and the share of a budget that it may take.
_WATCHED, _SHARE = 32, 4
# Predictions that show in which precision a learner computes, and if torch can differentiate it.
TRIED = 3
# Seconds after which the nearest families are printed.
_SOON = 3.0
# Number of candidates whose derivatives are compared.
_NEAREST = 8


@overload
def identify(
    learner: Learner,
    family: Family,
    candidates: Iterable[Candidate] | None = None,
    budget: int | None = None,
    seed: int = 0,
    *,
    tolerance: float = ...,
    level: float = ...,
    name: str | None = None,
    device: torch.device | str | None = None,
    estimate: Literal[False] = False,
) -> Identification: ...
@overload
def identify(learner: Learner, family: Family, *given: Any, estimate: Literal[True], **others: Any) -> Estimate: ...
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
    device: torch.device | str | None = None,
    estimate: bool = False,
) -> Identification | Estimate:
    """Name the learning algorithm that ``learner`` runs, from its predictions. Needs *prediction*.

    Tasks of ``family`` and distorted ones (`CONDITIONS`) are put to the learner and to every candidate, whose free
    parameters are fitted to the learner's predictions on tasks of their own. Squared differences of predictions are
    divided by the variance of predictions, and reduced by the variance of answers from call to call.

    A candidate is named only if the upper confidence bounds of its differences under all conditions lie below a bound:
    one of rounding (the learner *runs* it), ``tolerance`` (it *approximates* it), or ``tolerance`` on the family's own
    tasks alone. It is ruled out if the lower bound of any difference lies above the bound, and otherwise not measured
    well enough. *None of the candidates* is an answer too.

    Args:
        candidates: what the learner may run; the whole catalogue if None. A `Catalogue` is also tried clipped and
            copying labels, where the learner's answers show that. Costly candidates are tried only as long as the
            learner runs no other.
        budget: largest number of predictions to ask the learner for; if None, 100 tasks for each condition and part,
            and 1,200 predictions of an estimator of scikit-learn.
        seed: of the tasks.
        tolerance: largest squared difference of an approximation, over the variance of predictions.
        level: largest probability that the learner's own algorithm is ruled out, and that any other is named.
        name: of the learner, in the answer.
        device: where the learner computes; that of its weights if None. Candidates compute on the CPU.
        estimate: return an `Estimate` of what this costs in place of the answer. It times the learner on eight tasks,
            and a model of text not at all.

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
    whole = catalogue(family) if candidates is None else candidates
    chosen, forms = require_candidates(whole), len(FORMS) if isinstance(whole, Catalogue) else 0
    if budget is None and isinstance(learner, SklearnLearner):
        budget = _OF_ESTIMATORS
    size = battery(family, 1, 0, "size")
    watching = asked_for_behaviour(size[OWN])
    few = _watched(watching, budget)
    count = affordable(size, budget, TRIED + few * watching)
    name, own = name or display_name(learner), placed(learner, device)
    if estimate:
        return estimated(own, family, chosen, TRIED + few * watching + count * queries(size), name, seed)
    counts = {"fit": count, "test": count} | ({"watch": few} if few else {})
    tasks = {part: battery(family, number, seed, part) for part, number in counts.items()}
    levels = Levels(tolerance, level, level / (len(chosen) * (1 + forms)))
    found = identified(learner, own, chosen, tasks, name, seed, levels, in_forms=bool(forms))
    if few:
        return found
    why = f"the budget leaves fewer than {LEAST} tasks for them"
    return dataclasses.replace(found, unmeasured={**found.unmeasured, **dict.fromkeys(("behaviour", "controls"), why)})


def identified(
    learner: Learner,
    own: Learner,
    chosen: Sequence[Candidate],
    tasks: Mapping[str, Mapping[str, Episode]],
    name: str,
    seed: int,
    levels: Levels,
    most: int | None = None,
    in_forms: bool = False,
) -> Identification:
    """Identify a learner from given tasks: to fit on, to test on and, if any, to measure its behaviour on.

    Args:
        own: the learner, on its device.
        most: number of members of each family that are compared fully, the nearest at first; all if None.
        in_forms: also try the nearest candidates with clipping and with label copying.
    """
    seen = Seen(own, tasks, seed)
    found = in_order(_all(chosen, seen, levels, name, most, in_forms), levels.tolerance)
    first, *others = found
    near = [first, *(one for one in others if not one.candidate.costly)][:_NEAREST]
    nearest = {one.row.candidate: one.fitted.learner for one in near}
    kept = first.candidate.most_tasks or len(seen.test[OWN])
    apart_on = {one: seen.tasks["test"][one].part(0, kept) for one in seen.test}
    watched, few = _Watched(), 0
    if "watch" in tasks:
        few = LEAST if first.candidate.costly else len(tasks["watch"][OWN].xq)
        watch = {one: episode.part(0, few) for one, episode in tasks["watch"].items()}
        watched = _watch(learner, own, name, nearest, watch, seen.dtype, seed)
    families = shares(found)
    by_name = {one.row.candidate: one for one in found if not one.candidate.most_tasks}
    costly = {one.name for one in chosen} - {one.row.candidate for one in found} if most is None else ()
    unmeasured = dict.fromkeys(costly, f"costly, and the learner runs {first.row.candidate}")
    return Identification(
        learner=name,
        seed=seed,
        answers=tuple(learner.table()) if isinstance(learner, TextLearner) else (),
        rows=tuple(one.row for one in found),
        shares=families,
        mixture=mixture([by_name[one.candidate] for one in families if one.candidate in by_name], seen),
        noise={one: Measurement.of(noise) for one, noise in seen.noise.items()},
        pairs={one: seen.tasks["test"][one].context.x.shape[-2] for one in seen.test},
        level=levels.out,
        tolerance=levels.tolerance,
        asked=TRIED + seen.asked + few * asked_for_behaviour(tasks["fit"][OWN].part(0, 1)),
        behaviour=watched.behaviour,
        controls=watched.controls,
        likenesses=watched.likenesses,
        apart=apart(nearest, apart_on, {one: noise[:kept] for one, noise in seen.noise.items()}, levels.out),
        unmeasured={**seen.missed, **unmeasured, **watched.unmeasured},
    )


def _all(
    chosen: Sequence[Candidate], seen: Seen, levels: Levels, name: str, most: int | None, in_forms: bool
) -> list[Compared]:
    """Compare all candidates; other forms and costly ones only if the learner runs no other.

    The nearest families are printed after some seconds, as soon as all cheap candidates had a first look.
    """
    begun, told = monotonic(), most is not None
    cheap, costly = ([one for one in chosen if one.costly == which] for which in (False, True))
    comparisons = {one.name: comparing(one, seen, levels) for one in cheap}
    looks = {one.name: next(comparisons[one.name]) for one in tracked(cheap, "candidates, a first look")}
    found = []
    for one in tracked(_nearest(cheap, looks, most, levels.tolerance), "candidates"):
        if not told and monotonic() - begun > _SOON:
            told = True
            tell(f"a first look: {like(name, shares([*looks.values()]))}")
        found.append(next(comparisons[one.name], looks[one.name]))
    if in_forms and not any(one.row.within(EXACT) for one in found):
        found += [compare(one, seen, levels) for one in wrapped(found, seen)]
    for one in tracked(costly, "costly candidates, as the learner runs no other"):
        if any(one.row.within(EXACT) for one in found):
            break
        found.append(compare(one, seen, levels))
    return ruled_out_by_draws(found, seen, levels)


def _nearest(
    chosen: Sequence[Candidate], looks: Mapping[str, Compared], most: int | None, tolerance: float
) -> list[Candidate]:
    """The ``most`` nearest members of each family at a first look, and those that it ruled out.

    Members that equal the learner are kept in the order of the catalogue.
    """
    families: dict[str, list[str]] = {}
    for one in sorted(chosen, key=lambda one: max(looks[one.name].row.own_difference.mean.value, EXACT)):
        families.setdefault(one.family, []).append(one.name)
    kept = {name for members in families.values() for name in members[:most]}
    return [one for one in chosen if one.name in kept or looks[one.name].row.beyond(tolerance)]


class _Watched(NamedTuple):
    """Measurements other than differences of predictions."""

    behaviour: Mapping[str, Behaviour] = {}
    controls: Mapping[str, Measurement] = {}
    likenesses: tuple[Likeness, ...] = ()
    unmeasured: Mapping[str, str] = {}


def _watch(
    learner: Learner,
    placed_: Learner,
    name: str,
    nearest: Mapping[str, Learner],
    tasks: Mapping[str, Episode],
    dtype: torch.dtype,
    seed: int,
) -> _Watched:
    """Measure behaviour of the learner and of the nearest candidate, likenesses of the nearest, and null controls."""
    own, unmeasured = tasks[OWN].to(dtype), {}
    first, second = next(iter(nearest.items()))
    pair = ((name, placed_, own), (first, second, tasks[OWN]))
    seen = {who: behaviour_of(one, on, stream(seed, "identify-changes")) for who, one, on in tracked(pair, "behaviour")}
    copy = untrained(learner, stream(seed, "identify-untrained"))
    if copy is None:
        unmeasured["untrained copy"] = (
            "only networks of mesascope.nets and layers with reset_parameters() draw fresh weights"
        )
    alike = likeness(placed_, nearest, own, own.context.x.roll(1, 0))
    if all(one.sensitivity_cosine is None for one in alike):
        unmeasured["sensitivities"] = "torch cannot differentiate the learner everywhere"
    if not own.yq.any():
        unmeasured["controls"] = "the right answers are all 0"
    return _Watched(
        seen, controls(placed_, own, tasks.get(SHUFFLED), None if copy is None else placed(copy)), alike, unmeasured
    )


def _watched(predictions: int, budget: int | None) -> int:
    """Number of tasks to measure behaviour on, each with ``predictions``; 0 if the budget is too small."""
    if budget is None:
        return _WATCHED
    budget = require_count("budget", budget)
    tasks = min((budget - TRIED) // (_SHARE * predictions), _WATCHED)
    return tasks if tasks >= LEAST else 0


def affordable(size: Mapping[str, Episode], budget: int | None, spent: int) -> int:
    """Number of tasks per condition and part that a budget allows; ``size`` has one task of each condition."""
    if budget is None:
        return _TASKS
    tasks = (budget - spent) // queries(size)
    if tasks < LEAST:
        refuse("budget", f"leave {LEAST} tasks a condition", budget, f"pass {LEAST * queries(size) + spent} or more")
    return tasks


def queries(size: Mapping[str, Episode]) -> int:
    """Number of predictions that one task of each condition takes."""
    return _PARTS * sum(episode.xq.shape[-2] for episode in size.values())
