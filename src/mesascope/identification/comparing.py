"""Comparison of candidates with a learner: fits, tests on held-out tasks, and ordering by paired differences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mesascope.errors import require_number
from mesascope.identification.answering import answer, size, squared_differences
from mesascope.identification.candidate import Candidate
from mesascope.identification.conditions import OWN
from mesascope.identification.fitting import KEPT, fits
from mesascope.identification.residuals import Fit
from mesascope.identification.seen import Answered, Seen
from mesascope.identification.verdict import (
    ENOUGH,
    EXACT,
    FARTHEST,
    OWN_TASKS,
    Difference,
    Row,
    Share,
    averaged,
    difference,
    standing,
)
from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode

# Number of tasks for the first comparison.
_SCREEN = 16
# The same for costly candidates.
_FEW = 8
# Divisor of the error rate for each interim look.
_LOOKS = 10
# Maximum rounding error, relative to the resolution.
_HALF = 0.5 + 1e-6
# Variance of rounding, relative to that of answers, above which no candidate is named for being near.
_COARSE = 0.25
# Candidates within this many standard errors are equally near; the one with fewer parameters comes first.
_ERRORS = 3.0


class Levels(NamedTuple):
    """Bounds and error rates of the verdicts.

    Args:
        tolerance: maximum difference of an approximation.
        out: error rate for ruling out the true algorithm.
        naming: error rate for naming a particular false candidate: the total rate divided by the number of candidates.
    """

    tolerance: float
    out: float
    naming: float

    @classmethod
    def of(cls, tolerance: float, level: float, candidates: int) -> Levels:
        """Bounds and rates for a number of candidates; raises unless ``tolerance`` and ``level`` are in (0, 1]."""
        for argument, value in (("tolerance", tolerance), ("level", level)):
            require_number(argument, value, above=0, most=1)
        return cls(tolerance, level, level / candidates)


class Measured(NamedTuple):
    """A difference, its values by task, and these values with only the learner's noise subtracted."""

    difference: Difference
    values: Float[Tensor, " tasks"]
    left: Float[Tensor, " tasks"]


@dataclass(frozen=True)
class Compared:
    """A candidate's row, with its fits and measurements.

    Args:
        fitted: fit to all conditions; equals ``own`` if the comparison ended on the family's own tasks.
        own: fit to the family's own tasks; ``alone`` is its difference on these tasks.
        measured: differences on held-out tasks by condition; empty if the comparison ended on own tasks. After
            `confirmed`, those of ``row`` on own tasks are of further tasks, and ``alone`` has these too.
    """

    candidate: Candidate
    row: Row
    fitted: Fit
    own: Fit
    alone: Measured
    measured: Mapping[str, Measured]

    @property
    def score(self) -> float:
        """Distance for sorting: difference plus standard error, averaged over conditions."""
        differences = [self.row.own_difference] if not self.measured else self.row.differences.values()
        scores = [one.mean.value + float(torch.tensor(one.mean.stderr).nan_to_num(FARTHEST)) for one in differences]
        return sum(scores) / len(scores)


def compare(candidate: Candidate, seen: Seen, levels: Levels) -> Compared:
    """Compare a candidate with a learner; return the last result of `comparing`."""
    *_, last = comparing(candidate, seen, levels)
    return last


def comparing(candidate: Candidate, seen: Seen, levels: Levels) -> Iterator[Compared]:
    """Fit a candidate to a few, then all, of the family's own tasks; then to a few, then all, tasks of all conditions.

    Yields the result of the first fit and, unless this rules the candidate out, the final result. The comparison ends
    as soon as a fit rules the candidate out; for a costly candidate, also if it is not shown to equal the learner on
    the family's own tasks. Fitted tasks can also rule a candidate out, as differences on them are biased low. The first
    three fits, `ruled_out_by_draws` and `confirmed` share half of ``levels.out``; all conditions together have the
    other half.
    """
    look, bound = levels._replace(out=levels.out / _LOOKS), max(levels.tolerance, EXACT)
    near: list[Fit] = []
    tasks_each = len(seen.fit[OWN])
    first = min(_FEW if candidate.costly else _SCREEN, tasks_each)
    counts = sorted({_most(candidate, first), _most(candidate, tasks_each)})
    for most in counts:
        few, tasks = {OWN: seen.fit[OWN][:most]}, {OWN: seen.tasks["fit"][OWN].part(0, most)}
        near = fits(candidate, tasks, few, near, anew=not near, pooled=seen.pooled)
        own = near[0]
        flattered = _on_fitted(candidate, own, tasks[OWN], seen, look)
        if flattered.difference.low > bound:
            tested = _tested(candidate, own, seen, OWN, look, _most(candidate, tasks_each))
            found, on_fitted = tested.difference, flattered.difference
            if on_fitted.low > found.mean.value:  # held-out tasks are too few
                found = dataclasses.replace(found, mean=on_fitted.mean)
            low, high = (max(end, on_fitted.low) for end in (found.low, found.high))
            yield _ended(candidate, own, tested._replace(difference=dataclasses.replace(found, low=low, high=high)))
            return
        if most == counts[0]:
            yield _ended(candidate, own, flattered)
    half = levels._replace(out=levels.out / 2)
    alone = _tested(candidate, own, seen, OWN, half, tasks_each)
    if candidate.costly and alone.difference.high > bound:  # not equal on the family's own tasks
        yield _ended(candidate, own, alone)
        return
    near = near[:1] if candidate.most_tasks else near
    whole = any(one.scale == "integer" for one in candidate.free.values())
    # With noise, numbers of steps that were not kept may fit as well as those kept.
    anew = not (whole or candidate.costly) or (len(near) == KEPT and float(seen.noise[OWN].mean()) > 0)
    for most in counts:
        few = {name: one[:most] for name, one in seen.fit.items()}
        tasks = {name: one.part(0, most) for name, one in seen.tasks["fit"].items()}
        near, anew = fits(candidate, tasks, few, near, anew, seen.pooled), False
        best, last = near[0], most == counts[-1]
        level = levels._replace(out=(half.out if last else look.out) / len(seen.test))
        measured: dict[str, Measured] = {}
        for name in seen.test:
            measured[name] = _tested(candidate, best, seen, name, level, most)
            if candidate.most_tasks and measured[name].difference.low > bound:  # save time
                break
        out = any(one.difference.low > bound for one in measured.values())
        if out:
            break
    differences = {name: one.difference for name, one in measured.items()}
    row = Row(
        candidate.name, candidate.family, best.parameters, differences, own.parameters, alone.difference,
        screened=not last or len(measured) < len(seen.test),
    )  # fmt: skip
    yield Compared(candidate, row, best, own, alone, measured)


def _ended(candidate: Candidate, own: Fit, alone: Measured) -> Compared:
    """Result for a candidate that was compared on the family's own tasks alone."""
    found = alone.difference
    name, family, parameters = candidate.name, candidate.family, own.parameters
    row = Row(name, family, parameters, {OWN: found}, parameters, found, screened=True)
    return Compared(candidate, row, own, own, alone, {})


def _most(candidate: Candidate, tasks: int) -> int:
    return min(candidate.most_tasks or tasks, tasks)


def _on_fitted(candidate: Candidate, fitted: Fit, tasks: Episode, seen: Seen, levels: Levels) -> Measured:
    """Difference on fitted tasks, which are the family's own."""
    answered = seen.fit[OWN][: len(tasks.xq)]
    own = size(tasks, answered, seen.pooled)
    noise = torch.full_like(own[:, 0], float(seen.noise[OWN].mean()))
    return _less_noise(candidate, fitted, Answered(tasks, answered, own, noise), seen.resolution, levels)


def _tested(candidate: Candidate, fitted: Fit, seen: Seen, name: str, levels: Levels, most: int) -> Measured:
    """Difference under one condition, on at most ``most`` held-out tasks."""
    return _less_noise(candidate, fitted, seen.tested(name, most), seen.resolution, levels)


def _less_noise(candidate: Candidate, fitted: Fit, asked: Answered, resolution: float, levels: Levels) -> Measured:
    """Difference minus the noise of the learner and, for a random candidate, of the candidate.

    If the learner rounds its answers, and all of them equal the rounded predictions, the upper bound is 0; if not all
    do and the rounding is coarse, it is infinite. The noise of a random candidate is subtracted twice if the learner's
    answers hardly vary between calls: the learner may be one fixed draw of this algorithm. A negative mean shows that
    the learner is nearer to the candidate's mean than another draw is. The difference is then the absolute value of
    this mean.
    """
    tasks, answered, size, noise = asked
    predicted = answer(fitted.learner, tasks)
    if predicted is None:
        return _farthest(noise)
    raw = squared_differences(answered, predicted, size)
    left = values = raw - noise
    found = difference(raw, noise, levels.out, levels.naming)
    if resolution and bool(((answered - predicted).abs() <= _HALF * resolution).all()):
        return Measured(Difference(found.mean, min(found.low, 0.0), 0.0), left, left)
    coarse = float((resolution**2 / 12 / size).mean()) > _COARSE
    if candidate.draws and (coarse or found.high >= levels.tolerance):
        other = answer(candidate.draws(seed=1, **fitted.parameters), tasks)
        assert other is not None  # the draw with the candidate's own seed has answered
        own = squared_differences(other, predicted, size) / 2
        if own.mean() > 1:  # its draws differ by more than the learner's predictions vary, so the learner is none
            return _farthest(noise)
        noise = noise + own * (2 if noise.mean() < own.mean() / 2 else 1)
        found, values = difference(raw, noise, levels.out, levels.naming), (raw - noise).abs()
        if found.mean.value < 0:
            mean, reach = Measurement(-found.mean.value, found.mean.stderr, found.mean.n), found.high + found.mean.value
            found = Difference(mean, mean.value - reach, mean.value + reach, found.skewed)
    if coarse:  # rounding is then no noise with this variance
        found = Difference(found.mean, found.low, math.inf)
    return Measured(found, values, left)


def _farthest(noise: Tensor) -> Measured:
    """The maximum difference on each task."""
    values = torch.full_like(noise, FARTHEST)
    return Measured(Difference(Measurement(FARTHEST, 0.0, len(noise)), FARTHEST, FARTHEST), values, values)


def confirmed(found: Sequence[Compared], further: Callable[[], Answered], seen: Seen, levels: Levels) -> list[Compared]:
    """Measure the differences of named candidates on the family's own tasks again, on ``further`` of these tasks.

    Rare tasks on which a learner is another algorithm are then seen. Costly candidates are not measured again, and none
    is if the learner answers fewer than `ENOUGH` of these tasks.
    """
    rows = {one.row.candidate: one for one in found}
    few = len(seen.test[OWN])
    left = {name for name, one in rows.items() if not one.candidate.costly and one.row.own_difference.mean.n <= few}
    while names := [
        name for name in standing([one.row for one in rows.values()], levels.tolerance).names if name in left
    ]:
        if len(further().noise) < ENOUGH:
            break
        for name in names:
            left.remove(name)
            rows[name] = _confirmed(rows[name], further(), seen.resolution, levels._replace(out=levels.out / _LOOKS))
    return list(rows.values())


def _confirmed(one: Compared, further: Answered, resolution: float, levels: Levels) -> Compared:
    own = _less_noise(one.candidate, one.own, further, resolution, levels)
    differences = one.row.differences
    if not one.row.screened:
        fitted = _less_noise(one.candidate, one.fitted, further, resolution, levels)
        differences = {**differences, OWN: fitted.difference}
    row = dataclasses.replace(one.row, own_difference=own.difference, differences=differences)
    parts = (torch.cat(pair) for pair in zip(one.alone[1:], own[1:], strict=True))
    return dataclasses.replace(one, row=row, alone=Measured(own.difference, *parts))


def ruled_out_by_draws(found: Sequence[Compared], seen: Seen, levels: Levels) -> list[Compared]:
    """Rule out undecided random candidates by the distance of their draws from the nearest deterministic candidate.

    A learner that runs a random candidate is one of its draws. On average, all draws are equally far from any other
    algorithm. So the candidate is ruled out if its draws are farther from this nearest one than the learner is.
    """
    fixed = [one for one in found if one.candidate.draws is None]
    if not fixed:
        return list(found)
    nearest = min(fixed, key=lambda one: one.row.own_difference.mean.value)
    return [
        _ruled_out_by_draws(one, nearest, seen, levels)
        if one.candidate.draws and not one.row.beyond(levels.tolerance) and not one.row.within(levels.tolerance)
        else one
        for one in found
    ]


def _ruled_out_by_draws(one: Compared, nearest: Compared, seen: Seen, levels: Levels) -> Compared:
    assert one.candidate.draws is not None
    learners = (one.candidate.draws(seed=1, **one.own.parameters), nearest.own.learner)
    draw, other = (answer(learner, seen.tasks["test"][OWN]) for learner in learners)
    if draw is None or other is None:
        return one
    from_draw, from_learner = (squared_differences(own, other, seen.size[OWN]) for own in (draw, seen.test[OWN]))
    nearer = from_draw - from_learner
    found = difference(nearer, torch.zeros_like(nearer), levels.out / _LOOKS, squares=False)
    if found.low <= levels.tolerance:
        return one
    row = dataclasses.replace(one.row, differences={OWN: found}, own_difference=found, screened=True)
    return dataclasses.replace(one, row=row, measured={})


def in_order(found: Sequence[Compared], tolerance: float) -> list[Compared]:
    """Sort candidates: first named, then undecided, then ruled out; the nearest first in each group.

    If the verdict is about the family's own tasks, named candidates are sorted by distance on these. Named candidates
    within error of the nearest come first, sorted by number of parameters.
    """
    left = standing([one.row for one in found], tolerance)
    places = dict.fromkeys(left.ruled_out, 2) | dict.fromkeys(left.undecided, 1)
    order = sorted(found, key=lambda one: (places.get(one.row.candidate, 0), not one.measured, one.score))
    named = [one for one in order if one.row.candidate in left.names]
    if left.kind == OWN_TASKS:
        named.sort(key=lambda one: one.row.own_difference.mean.value)
    if named:
        near = [one for one in named if _as_near(one, named[0], left.kind == OWN_TASKS)]
        order = [*sorted(near, key=lambda one: (one.row.numbers, len(one.row.parameters), one.score)),
                 *(one for one in (*named, *order[len(named) :]) if one not in near)]  # fmt: skip
    return order


def _as_near(one: Compared, nearest: Compared, own: bool) -> bool:
    measured = ({OWN: each.alone} if own else each.measured for each in (one, nearest))
    behind = paired(*measured)
    return behind is None or behind.value - _ERRORS * behind.stderr <= EXACT


def paired(one: Mapping[str, Measured], other: Mapping[str, Measured]) -> Measurement | None:
    """Paired difference, averaged over conditions; None if ``other`` is empty or has a condition that ``one`` lacks."""
    if not other or other.keys() - one.keys():
        return None
    return averaged([_paired(one[name].values, found.values) for name, found in other.items()])


def shares(found: Sequence[Compared]) -> tuple[Share, ...]:
    """Nearest member of each family of algorithms, on the task family's own tasks, the nearest first.

    Among members as near as the nearest candidate, up to rounding, the one with the fewest parameters is chosen.
    Differences from the nearest family are paired.
    """
    most = max(len(one.alone.left) for one in found)
    whole = [one.alone.left for one in found if len(one.alone.left) == most]
    left = {one.row.candidate: _on_all(one.alone.left, whole) for one in found}
    nearest = min(one.value for one in left.values())

    def place(one: Compared) -> tuple[float, float, float]:
        own = left[one.row.candidate].value
        near = own <= nearest + EXACT
        return (one.row.numbers, len(one.row.parameters), own) if near else (math.inf, 0, own)

    best: dict[str, Compared] = {}
    for one in sorted(found, key=place):
        best.setdefault(one.row.family, one)
    first = next(iter(best.values()))
    return tuple(
        Share(
            family, one.row.candidate, one.row.own_parameters, left[one.row.candidate],
            None if one is first else _paired(one.alone.left, first.alone.left),
        )
        for family, one in best.items()
    )  # fmt: skip


def _on_all(left: Float[Tensor, " fewer"], whole: Sequence[Float[Tensor, " tasks"]]) -> Measurement:
    """Mean difference over all tasks, also for a candidate that was measured on fewer.

    To the mean over fewer tasks, add the change that the other tasks make to the mean of the most similar candidate.
    """
    similar = min(whole, key=lambda other: float((other[: len(left)] - left).square().sum()))
    mean, change = Measurement.of(left), float(similar.mean() - similar[: len(left)].mean())
    return Measurement(mean.value + change, mean.stderr, mean.n)


def _paired(one: Float[Tensor, " tasks"], other: Float[Tensor, " fewer"]) -> Measurement:
    """Paired difference on the tasks that both have."""
    most = min(len(one), len(other))
    return Measurement.of(one[:most] - other[:most])
