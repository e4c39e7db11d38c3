"""Groups of learners measured on the same tasks, with the joint standard errors of all means."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from mesascope.errors import require_instance
from mesascope.evidence import Estimates
from mesascope.lenses import access
from mesascope.lenses.access import against_others, chosen_times, numbers, require_groups, require_sequences
from mesascope.lenses.pairs import compare_sensitivities
from mesascope.progress import tracked
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner, Predictor
from mesascope.tasks.calling import check_tasks

Groups = Mapping[str, Sequence[Predictor]]
# Numbers of each task, by measurement and group: one array for each member.
_Numbers = dict[tuple[str, ...], list[np.ndarray]]

# Step of the difference quotients that check derivatives, relative to the context's first input.
_STEP = 0.05


@register("lens", "measure_learners", needs="gradient")
def measure_learners(groups: Mapping[str, Sequence[Learner]], against: Sequence[str], episodes: Episode) -> Estimates:
    """Errors of learners, and their agreement with references, on the same tasks. Needs *gradient*.

    For each group: ``("mse", group)`` is the mean squared error and ``("median", group)`` its median over tasks.
    ``("derivative", group)`` is the mean size of the prediction's difference quotient as the query moves along the
    context's first input. ``("derivative-error", group)`` is the quotient's mean distance from the derivative.

    For each group and each other group in ``against``: ``("cosine", group, other)`` and ``("sensitivity-difference",
    group, other)`` compare the sensitivities dy/dx_q, and ``("prediction-difference", group, other)`` the predictions.
    Members are paired by index; a group of one member is paired with all.

    Args:
        groups: learners by name, one for each replicate.
        against: names of the reference groups.
    """
    require_instance("episodes", episodes, Episode)
    check_tasks(episodes)
    require_groups("measure_learners", groups, against, episodes)
    seen = {name: [access.seen(one, episodes, derived=True) for one in members] for name, members in groups.items()}
    tasks: dict[tuple[str, ...], list[np.ndarray]] = {}
    for name, members in seen.items():
        tasks["mse", name] = [numbers(member.error) for member in members]
        tasks["median", name] = [_median(member.error) for member in members]
        own = zip(groups[name], members, strict=True)
        changes = [_changes(learner, member.sensitivity, episodes) for learner, member in own]
        for place, kind in enumerate(("derivative", "derivative-error")):
            tasks[kind, name] = [numbers(one[place].norm(dim=-1).mean(-1)) for one in changes]
    for name, other, pairs in against_others(seen, against):
        compared = [compare_sensitivities(*(one.sensitivity for one in pair)) for pair in pairs]  # type: ignore[arg-type]
        tasks["prediction-difference", name, other] = _distances(pairs)
        tasks["cosine", name, other] = [numbers(one["cosine"]) for one in compared]
        tasks["sensitivity-difference", name, other] = [numbers(one["sensitivity"]) for one in compared]
    return Estimates.of(tasks)


@register("lens", "measure_predictors", needs="prediction", of="predictor")
def measure_predictors(groups: Groups, against: Sequence[str], sequences: Float[Tensor, "tasks t d"]) -> Estimates:
    """Errors of predictors over whole sequences, and their differences from references. Needs *prediction*.

    ``("mse", group)`` is the mean squared error of all next elements. For each group and each other group in
    ``against``, ``("prediction-difference", group, other)`` is the mean distance |.|_2 of their predictions. Members
    are paired as in `measure_learners`.

    Source: von Oswald (2024), section 3.5.1, whose loss is half the sum: (T - 1) d/2 times this mean.
    """

    def measured(seen: Mapping[str, list[access.Seen]], _: Tensor) -> _Numbers:
        errors = {("mse", name): [numbers(one.error) for one in members] for name, members in seen.items()}
        others = against_others(seen, against)
        return errors | {("prediction-difference", *names): _distances(pairs) for *names, pairs in others}

    return Estimates.of(_by_part("measure_predictors", groups, sequences, against, measured))


@register("lens", "errors_by_time", needs="prediction", of="predictor")
def errors_by_time(
    groups: Groups, sequences: Float[Tensor, "tasks t d"], times: Sequence[int] | None = None
) -> Estimates:
    """Mean squared error ``("mse", group)`` of the element after t known ones, one case for each t. Needs *prediction*.

    ``times`` are values of t, from 1 to length - 1; all if None.
    """

    def squares(seen: Mapping[str, list[access.Seen]], part: Tensor) -> _Numbers:
        errors = {name: [(one.prediction - part[:, 1:]).square() for one in own] for name, own in seen.items()}
        return {("mse", name): [numbers(one.mean(2)) for one in own] for name, own in errors.items()}

    found = _by_part("errors_by_time", groups, sequences, (), squares)
    chosen = chosen_times(times, sequences)
    points = [
        Estimates.of({key: [one[:, time - 1] for one in members] for key, members in found.items()}) for time in chosen
    ]
    return Estimates.over({"t": chosen}, points)


def _by_part(
    lens: str, groups: Groups, sequences: Tensor, against: Sequence[str],
    measured: Callable[[Mapping[str, list[access.Seen]], Tensor], _Numbers],
) -> _Numbers:  # fmt: skip
    """Numbers of all sequences, measured part by part, because the predictions of all members need much memory."""
    require_sequences(lens, sequences)
    require_groups(lens, groups, against)
    found = []
    for part in tracked(sequences.split(access.PART), f"measuring parts of {access.PART:,} sequences"):
        seen = {name: [access.seen(one, part) for one in own] for name, own in groups.items()}
        found.append(measured(seen, part))
    access.require_causal(itertools.chain.from_iterable(groups.values()), sequences)
    return {key: [np.concatenate(rows) for rows in zip(*(one[key] for one in found), strict=True)] for key in found[0]}


def _distances(pairs: Sequence[tuple[access.Seen, access.Seen]]) -> list[np.ndarray]:
    return [numbers((one.prediction - two.prediction).norm(dim=-1).mean(-1)) for one, two in pairs]


def _changes(learner: Learner, sensitivity: Tensor | None, episodes: Episode) -> tuple[Tensor, Tensor]:
    """Difference quotient of the prediction along the context's first input, and its difference from the derivative."""
    direction = episodes.context.x[..., :1, :].expand_as(episodes.xq)
    sides = [episodes._replace(xq=episodes.xq + sign * _STEP * direction) for sign in (1, -1)]
    high, low = (access.seen(learner, side).prediction for side in sides)
    quotient = (high - low) / (2 * _STEP)
    return quotient, quotient - torch.einsum("tmyx,tmx->tmy", sensitivity, direction)


def _median(errors: Float[Tensor, " tasks"]) -> np.ndarray:
    """Pseudo-value m + (p - [e < m]) / density of each error e, with m the median and p the share of errors below m.

    Their mean is m, and their standard error is the median's. The density at m is estimated from order statistics.
    """
    values = numbers(errors)
    reach = 0.5 * len(values) ** (-1 / 3)
    low, median, high = np.quantile(values, [max(0.5 - reach, 0.0), 0.5, min(0.5 + reach, 1.0)])
    below = values < median
    return median + (below.mean() - below) * (high - low) / (2 * reach)
