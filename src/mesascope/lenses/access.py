"""Predictions, errors and sensitivities of a learner on many tasks, computed in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from mesascope.errors import NumericalError
from mesascope.lenses.needs import Tasks, predict_in_eval, require_access
from mesascope.progress import tracked
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner, Predictor
from mesascope.tasks.calling import check_answer, check_causal, check_tasks, copied, label
from mesascope.training.modes import evaluating

# Tasks per part: small enough to bound memory and to fit the processor's caches.
_PART = 10_000


class Seen(NamedTuple):
    """Predictions of one learner on all tasks, their squared error for each task, and dy/dx_q if measured."""

    prediction: Float[Tensor, "tasks m dy"]
    error: Float[Tensor, " tasks"]
    sensitivity: Float[Tensor, "tasks m dy dx"] | None = None


def seen(learner: Learner | Predictor, tasks: Tasks, *, derived: bool = False) -> Seen:
    """Predictions and errors of a learner on all tasks, and its sensitivities if ``derived``."""
    parts: Iterable[Any] = sensitivities(learner, tasks) if derived else predictions(learner, tasks)  # type: ignore[arg-type]
    rows = [(own, (own - answers).square().flatten(1).mean(1), *rest) for answers, own, *rest in parts]
    return Seen(*(torch.cat(column) for column in zip(*rows, strict=True)))


def predictions(
    learner: Learner | Predictor, tasks: Tasks
) -> Iterator[tuple[Float[Tensor, "part m dy"], Float[Tensor, "part m dy"]]]:
    """Yield targets and predictions for each part of the tasks, without gradients. Predictions must be finite.

    The targets of a sequence are its elements from the second on.
    """
    for answers, inputs in _parts(tasks):
        with torch.no_grad():
            prediction = predict_in_eval(learner, *inputs)
        yield answers, _finite("predictions", learner, check_answer(learner, prediction, answers.shape))


def require_causal(learners: Iterable[Learner | Predictor], tasks: Tasks) -> None:
    """Raise if a predictor of sequences looks ahead."""
    if not isinstance(tasks, Episode):
        for one in learners:
            with evaluating(one):
                check_causal(one, tasks)


@register("lens", "per_task_errors", needs="prediction")
def per_task_errors(learner: Learner | Predictor, tasks: Tasks) -> Float[Tensor, " tasks"]:
    """Squared error of each task: the mean over queries (or times) and outputs. Needs *prediction*."""
    require_access("per_task_errors", learner)
    check_tasks(tasks)
    errors = seen(learner, tasks).error
    require_causal([learner], tasks)
    return errors


def sensitivities(
    learner: Learner, episode: Episode
) -> Iterator[tuple[Float[Tensor, "part m dy"], Float[Tensor, "part m dy"], Float[Tensor, "part m dy dx"]]]:
    """Yield targets, predictions and dy/dx_q for each part of the episode, with one backward pass per output."""
    for answers, (context, queries) in _parts(episode):
        xq = queries.detach().clone().requires_grad_()
        with torch.enable_grad(), evaluating(learner):
            prediction = check_answer(learner, predict_in_eval(learner, context, xq), answers.shape)
            outputs = prediction.unbind(-1)
            rows = [torch.autograd.grad(output.sum(), xq, retain_graph=True)[0] for output in outputs]
        found = torch.stack(rows, dim=-2)
        yield (
            answers,
            _finite("predictions", learner, prediction.detach()),
            _finite("derivatives by xq", learner, found),
        )


def _parts(tasks: Tasks) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """Yield the targets and the inputs of each part; inputs are copies, as a learner may overwrite them."""
    if isinstance(tasks, Episode):
        for start in tracked(range(0, len(tasks.xq), _PART), f"evaluating parts of {_PART:,} tasks"):
            part = tasks.part(start, start + _PART)
            own = part.map(copied)
            yield part.yq, (own.context, own.xq)
    else:
        for part in tracked(tasks.split(_PART), f"evaluating parts of {_PART:,} sequences"):
            yield part[:, 1:], (copied(part[:, :-1]),)


def _finite(what: str, learner: Learner | Predictor, numbers: Tensor) -> Tensor:
    bad = int((~torch.isfinite(numbers)).sum())
    if bad:
        raise NumericalError(
            f"{what} must be finite, but {bad} of {numbers.numel()} by {label(learner)} are not: check the learner's "
            "inputs and step sizes."
        )
    return numbers
