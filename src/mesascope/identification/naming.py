"""The function `identify`, which names a learner's learning algorithm."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal, NamedTuple, overload

import torch

from mesascope.adapters.arrays import SklearnLearner
from mesascope.adapters.text import TextLearner
from mesascope.errors import ArgumentError, refuse, require_count
from mesascope.identification.answer import Identification, like
from mesascope.identification.answering import joined, unanswered
from mesascope.identification.behaviour import Behaviour, asked_for_behaviour, behaviour_of, controls, untrained
from mesascope.identification.candidate import Candidate, require_candidates
from mesascope.identification.catalogue import FORMS, Catalogue, candidates as catalogue, contains_catalogue, wrapped
from mesascope.identification.comparing import (
    Compared,
    Levels,
    compare,
    comparing,
    confirmed,
    in_order,
    ruled_out_by_draws,
    shares,
)
from mesascope.identification.conditions import OWN, SHUFFLED, battery
from mesascope.identification.estimating import Estimate, estimated
from mesascope.identification.likeness import Likeness, apart, likeness
from mesascope.identification.mixture import mixture
from mesascope.identification.seen import LEAST, Answered, Placed, Seen, placed
from mesascope.identification.verdict import ENOUGH, EXACT, FARTHEST
from mesascope.lenses.needs import require_access
from mesascope.measurement import Measurement
from mesascope.progress import tell_progress, tracked
from mesascope.records import register
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Learner
from mesascope.tasks.calling import display_name, sample_tasks

_TASKS = 100
# Number of further tasks of the family for named candidates, without a budget.
_MORE = 2_000
# Maximum number of entries of their kernel matrices, to limit memory.
_ENTRIES = 40_000_000
# Sets of predictions per condition: for the fit, for the test, and a repeat of the test for the noise.
_PARTS = 3
# Default budget for a scikit-learn estimator, which is fitted for each prediction.
_OF_ESTIMATORS = 1_200
# Number of tasks to measure behaviour on. Behaviour takes at most 1 / _SHARE of the budget.
_WATCHED, _SHARE = 32, 4
# Maximum number of calls that test the learner's precision (2) and derivatives (1), on one task each.
_TRIED = 3
# Seconds after which the nearest families are printed.
_SOON = 3.0
# Maximum number of candidates for `likeness` and `apart`.
_NEAREST = 8


@overload
def identify(
    learner: Learner, family: Family, candidates: Iterable[Candidate] | None = None, budget: int | None = None,
    seed: int = 0, *, tolerance: float = ..., level: float = ..., name: str | None = None,
    device: torch.device | str | None = None, estimate: Literal[False] = False,
) -> Identification: ...  # fmt: skip
@overload
def identify(learner: Learner, family: Family, *given: Any, estimate: Literal[True], **others: Any) -> Estimate: ...
@register("lens", "identify", needs="prediction")
def identify(
    learner: Learner, family: Family, candidates: Iterable[Candidate] | None = None, budget: int | None = None,
    seed: int = 0, *, tolerance: float = 0.01, level: float = 0.01, name: str | None = None,
    device: torch.device | str | None = None, estimate: bool = False,
) -> Identification | Estimate:  # fmt: skip
    """Name the learning algorithm that ``learner`` runs, from its predictions. Needs *prediction*.

    The learner and every candidate predict on tasks of ``family`` and on distorted tasks (`CONDITIONS`). Free
    parameters of candidates are fitted to the learner's predictions on separate tasks. Squared differences of
    predictions are divided by the variance of the learner's predictions, and the learner's noise (variance between
    repeated calls) is subtracted.

    A candidate is named if the upper confidence bounds of its differences lie below a threshold under all conditions.
    The threshold is 1e-6, for rounding (the learner *runs* the candidate), or else ``tolerance`` (the learner
    *approximates* it, which also needs 24 tasks per condition). If no candidate passes, ``tolerance`` is applied to the
    family's own tasks alone. Another candidate is ruled out if the lower bound of one of its differences lies above the
    same threshold. All others are *not measured well enough*. If all candidates are ruled out, the result is *none of
    the candidates*.

    Args:
        candidates: candidates to compare; the whole catalogue if None. If they contain the catalogue, the nearest are
            also tried with clipping or label copying, if the learner's answers suggest it. These and costly
            candidates are compared only if the learner runs no other.
        budget: maximum number of the learner's predictions. The default is 1,200 for a scikit-learn estimator. For
            other learners, it is 100 tasks per condition for the fit and 100 for the test; named candidates are then
            tested on 2,000 more of the family's own tasks, unless the learner is a language model. Tasks for the test
            are asked twice if the learner has noise or is in single precision.
        seed: random seed of the tasks.
        tolerance: maximum squared difference of an approximation, relative to the variance of predictions.
        level: error rate, both for ruling out the true algorithm and for naming a false one.
        name: name of the learner in the result.
        device: device of the learner; if None, that of its weights. Candidates compute on the CPU.
        estimate: return an `Estimate` of the cost instead of the result. The learner is timed on eight tasks; a
            language model is not called.

    Raises:
        ArgumentError: an argument is out of range, the budget is too small for 8 tasks per condition, or the learner
            does not answer the family's own tasks with finite numbers.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> some = [one for one in catalogue(sklearn=False) if one.name in ("gradient-descent", "ridge least-squares")]
    >>> identify(GradientDescent(2, 1.5), LinearRegression(), some).exactly
    'GradientDescent runs gradient-descent with steps = 2, eta = 1.5.'
    """
    require_access("identify", learner)
    seed = require_count("seed", seed, least=0)
    whole = catalogue(family) if candidates is None else candidates
    chosen = require_candidates(whole)
    forms = len(FORMS) if isinstance(whole, Catalogue) or contains_catalogue(chosen, family) else 0
    levels = Levels.of(tolerance, level, len(chosen) * (1 + forms))
    if budget is None and isinstance(learner, SklearnLearner):
        budget = _OF_ESTIMATORS
    size = battery(family, 1, 0, "size")
    watching = asked_for_behaviour(size[OWN])
    few = _watched(watching, budget, _tried(size))
    count = affordable(size, budget, few * watching)
    name, own = name or display_name(learner), placed(learner, device)
    again = _further(learner, size, budget)
    if estimate:
        most = _tried(size) + few * watching + count * queries(size) + 2 * again * size[OWN].xq.shape[-2]
        return estimated(own, family, chosen, most, name, seed)
    counts = {"fit": count, "test": count} | ({"watch": few} if few else {})
    tasks = {part: battery(family, number, seed, part) for part, number in counts.items()}
    more = (lambda: _drawn(family, again, seed)) if again else None
    found = identified(learner, own, chosen, tasks, name, seed, levels, in_forms=bool(forms), more=more)
    if few:
        return found
    why = f"the budget leaves fewer than {LEAST} tasks for them"
    return dataclasses.replace(found, unmeasured={**found.unmeasured, **dict.fromkeys(("behaviour", "controls"), why)})


def _further(learner: Learner, size: Mapping[str, Episode], budget: int | None) -> int:
    """Number of further tasks for named candidates: `_MORE`, or fewer if memory limits them; 0 with a budget."""
    most = min(_MORE, _ENTRIES // size[OWN].context.x.shape[-2] ** 2)
    return most if budget is None and not isinstance(learner, TextLearner) and most >= ENOUGH else 0


def _drawn(family: Family, count: int, seed: int) -> Episode:
    """Further tasks of the family, in draws of `LEAST`."""
    blocks = range(math.ceil(count / LEAST))
    return joined([sample_tasks(family, LEAST, stream(seed, f"identify-more-{block}")) for block in blocks])


def identified(
    learner: Learner, own: Placed | TextLearner, chosen: Sequence[Candidate],
    tasks: Mapping[str, Mapping[str, Episode]], name: str, seed: int, levels: Levels, most: int | None = None,
    in_forms: bool = False, more: Callable[[], Episode] | None = None,
) -> Identification:  # fmt: skip
    """Identify a learner on given tasks: ``fit``, ``test`` and optionally ``watch`` (to measure behaviour).

    Args:
        own: ``learner`` wrapped by `placed`, which counts predictions and moves tasks to its device.
        most: maximum number of cheap candidates of each family to compare fully, the nearest at first; all if None.
        in_forms: if the learner runs no candidate, also try the nearest with clipping or label copying.
        more: function that draws further tasks of the family, for named candidates.
    """
    asked = own.asked
    seen = Seen(own, tasks, seed)
    further = functools.cache(lambda: seen.further(own, more())) if more else None
    tried = _all(chosen, seen, levels, name, most, in_forms, further)
    silent = _silent(tried, seen)
    found = in_order([one for one in tried if one.row.candidate not in silent], levels.tolerance)
    first, *others = found
    near = [first, *(one for one in others if not one.candidate.costly)][:_NEAREST]
    nearest = {one.row.candidate: one.fitted.learner for one in near}
    kept = first.candidate.most_tasks or len(seen.test[OWN])
    apart_on = {one: seen.tasks["test"][one].part(0, kept) for one in seen.test}
    watched = _Watched()
    if "watch" in tasks:
        few = LEAST if first.candidate.costly else len(tasks["watch"][OWN].xq)
        watched = _watch(learner, own, name, nearest, tasks["watch"], few, seen.dtype, seed)
    families = shares(found)
    by_name = {one.row.candidate: one for one in found if not one.candidate.most_tasks}
    compared = {one.row.candidate for one in tried}
    left = [one.name for one in chosen if one.name not in compared] if most is None else ()
    unmeasured = dict.fromkeys(left, f"costly, and the learner runs {first.row.candidate}")
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
        asked=own.asked - asked,
        behaviour=watched.behaviour,
        controls=watched.controls,
        likenesses=watched.likenesses,
        apart=apart(nearest, apart_on, {one: noise[:kept] for one, noise in seen.noise.items()}, levels.out),
        unmeasured={**seen.missed, **silent, **unmeasured, **watched.unmeasured},
    )


def _silent(tried: Sequence[Compared], seen: Seen) -> dict[str, str]:
    """Candidates that do not answer the family's own tasks, with the reasons; raise if none answers."""
    tasks = seen.tasks["test"][OWN].part(0, 1)
    far = [one for one in tried if one.alone.difference.mean.value >= FARTHEST]
    reasons = {one.row.candidate: unanswered(one.fitted.learner, tasks) for one in far}
    found = {name: f"it does not answer the family's own tasks: {why}" for name, why in reasons.items() if why}
    if len(found) == len(tried):
        name, why = next(iter(reasons.items()))
        raise ArgumentError(f"candidates must answer the family's own tasks, but {name} does not ({why}): correct it.")
    return found


def _all(
    chosen: Sequence[Candidate], seen: Seen, levels: Levels, name: str, most: int | None, in_forms: bool,
    further: Callable[[], Answered] | None,
) -> list[Compared]:  # fmt: skip
    """Compare all candidates; clipped, label-copying and costly candidates only if the learner runs no other.

    Named candidates are `confirmed` on ``further`` tasks before these are compared. After the first comparison of all
    cheap candidates, the nearest families are printed if some seconds have passed.
    """
    begun, announced = monotonic(), most is not None
    cheap, costly = ([one for one in chosen if one.costly == which] for which in (False, True))
    comparisons = {one.name: comparing(one, seen, levels) for one in cheap}
    looks = {one.name: next(comparisons[one.name]) for one in tracked(cheap, "candidates, a first look")}
    found = []
    for one in tracked(_nearest(cheap, looks, most, levels.tolerance), "candidates"):
        if not announced and monotonic() - begun > _SOON:
            announced = True
            tell_progress(f"a first look, at tasks that were fitted: {like(name, shares([*looks.values()]))}")
        found.append(next(comparisons[one.name], looks[one.name]))
    confirm = functools.partial(confirmed, further=further, seen=seen, levels=levels) if further else list
    found = confirm(found)
    if in_forms and not any(one.row.within(EXACT) for one in found):
        found = confirm([*found, *(compare(one, seen, levels) for one in wrapped(found, seen))])
    for one in tracked(costly, "costly candidates, as the learner runs no other"):
        if any(one.row.within(EXACT) for one in found):
            break
        found.append(compare(one, seen, levels))
    return ruled_out_by_draws(found, seen, levels)


def _nearest(
    chosen: Sequence[Candidate], looks: Mapping[str, Compared], most: int | None, tolerance: float
) -> list[Candidate]:
    """The nearest ``most`` members of each family in the first comparison, and candidates that it ruled out.

    Members that equal the learner stay in the order of ``chosen``.
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
    learner: Learner, placed_: Learner, name: str, nearest: Mapping[str, Learner], tasks: Mapping[str, Episode],
    few: int, dtype: torch.dtype, seed: int,
) -> _Watched:  # fmt: skip
    """Measure the behaviour of the learner and, on ``few`` tasks, of candidates; and controls."""
    own, unmeasured = tasks[OWN].to(dtype), {}
    first, second = next(iter(nearest.items()))
    pair = ((name, placed_, own), (first, second, tasks[OWN].part(0, few)))
    seen = {who: behaviour_of(one, on, stream(seed, "identify-changes")) for who, one, on in tracked(pair, "behaviour")}
    copy = untrained(learner, stream(seed, "identify-untrained"))
    if copy is None:
        unmeasured["untrained copy"] = (
            "only networks of mesascope.nets and layers with reset_parameters() draw fresh weights"
        )
    alike = likeness(placed_, nearest, own.part(0, few), own.context.x[:few].roll(1, 0))
    if all(one.sensitivity_cosine is None for one in alike):
        unmeasured["sensitivities"] = "torch cannot differentiate the learner or the candidates"
    if not own.yq.any():
        unmeasured["controls"] = "the right answers are all 0"
    return _Watched(
        seen, controls(placed_, own, tasks.get(SHUFFLED), None if copy is None else placed(copy)), alike, unmeasured
    )


def _watched(predictions: int, budget: int | None, tried: int) -> int:
    """Number of tasks for measuring behaviour, with ``predictions`` per task; 0 if the budget is too small."""
    if budget is None:
        return _WATCHED
    budget = require_count("budget", budget)
    tasks = min((budget - tried) // (_SHARE * predictions), _WATCHED)
    return tasks if tasks >= LEAST else 0


def affordable(size: Mapping[str, Episode], budget: int | None, watched: int = 0) -> int:
    """Number of tasks per condition and part within a budget.

    Args:
        size: one task per condition.
        watched: number of predictions for behaviour.
    """
    if budget is None:
        return _TASKS
    spent = _tried(size) + watched
    tasks = (budget - spent) // queries(size)
    if tasks < LEAST:
        refuse("budget", f"leave {LEAST} tasks per condition", budget, f"pass {LEAST * queries(size) + spent} or more")
    return tasks


def _tried(size: Mapping[str, Episode]) -> int:
    """Maximum number of predictions that test the learner's precision and derivatives."""
    return _TRIED * size[OWN].xq.shape[-2]


def queries(size: Mapping[str, Episode]) -> int:
    """Number of predictions for one task per condition and part."""
    return _PARTS * sum(episode.xq.shape[-2] for episode in size.values())
