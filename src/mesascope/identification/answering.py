"""Predictions of learners under several conditions, and their differences."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch

from mesascope.adapters.calls import UnusableModelError
from mesascope.errors import MesascopeError, raised
from mesascope.identification.verdict import FARTHEST
from mesascope.lenses.needs import predict_in_eval
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Episode, Learner
from mesascope.tasks.calling import check_answer

# Predictions (tasks, m, dy) by condition, without conditions where the learner raises.
Answers = Mapping[str, Float[Tensor, "tasks m dy"]]
# Limit of predictions; squares of larger numbers can overflow.
LARGEST = 1e150
# Variance of predictions that counts as none, relative to that of labels: (1e-6 of their spread)^2.
_CONSTANT = 1e-12
# Smallest divisor.
_TINY = float(torch.finfo(torch.float64).tiny)


def answers(learner: Learner, tasks: Mapping[str, Episode], partly: bool = False) -> dict[str, Tensor]:
    """Predictions of a learner by condition, in float64, without conditions where it raises or exceeds `LARGEST`.

    Args:
        partly: also keep conditions where predictions exceed `LARGEST`.
    """
    found = {}
    for names in grouped(tasks).values():
        try:
            whole = _predicted(learner, [tasks[name] for name in names])
        except UnusableModelError:
            raise
        except (MesascopeError, ValueError):
            for name in names if len(names) > 1 else ():  # the others may not raise
                found |= answers(learner, {name: tasks[name]}, partly)
            continue
        parts = whole.split([len(tasks[name].xq) for name in names])
        found |= {name: part for name, part in zip(names, parts, strict=True) if partly or bool(bounded(part).all())}
    return {name: found[name] for name in tasks if name in found}


def answer(learner: Learner, tasks: Episode) -> Float[Tensor, "tasks m dy"] | None:
    """Predictions of a learner under one condition; None if the learner raises or a prediction exceeds `LARGEST`."""
    return answers(learner, {"": tasks}).get("")


def unanswered(learner: Learner, tasks: Episode) -> str:
    """Reason why `answer` is None for these tasks; "" if it is not."""
    try:
        found = _predicted(learner, [tasks])
    except (MesascopeError, ValueError) as error:
        return raised(error.__cause__ or error)
    return "" if bool(bounded(found).all()) else f"predictions are not finite, or above {LARGEST:g}"


def _predicted(learner: Learner, episodes: Sequence[Episode]) -> Tensor:
    """Predictions on episodes of one shape, in float64; raise unless they have the targets' shape."""
    together = joined(episodes)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns if a fit has not converged
        predicted = predict_in_eval(learner, together.context, together.xq)
    return check_answer(learner, predicted, together.yq.shape).double()


def bounded(*answers: Float[Tensor, "tasks m dy"]) -> Tensor:
    """True for tasks whose predictions are all below `LARGEST`."""
    return torch.stack([(one.abs() < LARGEST).flatten(1).all(1) for one in answers]).all(0)


def grouped(tasks: Mapping[str, Episode]) -> dict[tuple[int, ...], list[str]]:
    """Group conditions by the shape of their tasks; each group is predicted in one call."""
    found: dict[tuple[int, ...], list[str]] = {}
    for name, episode in tasks.items():
        found.setdefault((*episode.context.x.shape[1:], *episode.xq.shape[1:]), []).append(name)
    return found


def joined(episodes: Sequence[Episode]) -> Episode:
    """Concatenate episodes of one shape. The result is a copy, so a learner may modify it."""
    contexts, queries, targets = zip(*episodes, strict=True)
    x, y = zip(*contexts, strict=True)
    return Episode(Context(torch.cat(x), torch.cat(y)), torch.cat(queries), torch.cat(targets))


def size(tasks: Episode, predicted: Float[Tensor, "tasks m dy"], pooled: bool = False) -> Float[Tensor, "tasks dy"]:
    """Divisors of squared differences, by task and output.

    Each divisor is the variance of the task's predictions of this output, or its mean over tasks if larger. They are
    scaled so that predicting the mean has an average divided difference of 1.

    Args:
        pooled: use the mean variance for all tasks. If predictions have noise, a task's own variance depends on it.
    """
    own = variances(tasks, predicted)
    if pooled:
        return own.mean(0).expand_as(own)
    larger = torch.maximum(own, own.mean(0))
    return larger * (own / larger).mean(0)


def sizes(tasks: Mapping[str, Episode], seen: Answers, pooled: bool = False) -> dict[str, Tensor]:
    """Divisors of squared differences, by condition, task and output: see `size`."""
    return {name: size(tasks[name], predicted, pooled) for name, predicted in seen.items()}


def variances(tasks: Episode, predicted: Float[Tensor, "tasks m dy"]) -> Float[Tensor, "tasks dy"]:
    """Variance of each task's predictions of each output around the mean over all tasks.

    The minimum is `_CONSTANT` times the variance of labels, or the rounding of labels if that is larger; predictions
    that vary less are constant.
    """
    predicted, labels = predicted.double(), tasks.context.y.double()
    own = (predicted - predicted.mean((0, 1))).square().mean(-2)
    spread = _CONSTANT * (labels - labels.mean((0, 1))).square().mean((0, 1))
    rounding = (8 * torch.finfo(tasks.context.y.dtype).eps) ** 2 * labels.square().mean((0, 1))
    return torch.maximum(own, torch.maximum(spread, rounding).clamp_min(_TINY))


def squared_differences(
    one: Float[Tensor, "tasks m dy"], other: Float[Tensor, "tasks m dy"], size: Float[Tensor, "tasks dy"]
) -> Float[Tensor, " tasks"]:
    """Mean squared difference of predictions, divided by ``size`` and clipped at `FARTHEST`."""
    return ((one - other).square().mean(-2) / size).mean(-1).clamp_max(FARTHEST)
