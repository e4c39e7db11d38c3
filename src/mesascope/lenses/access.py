"""Predictions, errors and sensitivities of a learner on many tasks, in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from mesascope.errors import NumericalError
from mesascope.lenses.needs import Tasks, called, require_access
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner, Predictor
from mesascope.tasks.asking import check_answer, check_causal, check_tasks, copied, label
from mesascope.training.modes import evaluating

__all__ = ["per_task_errors", "predictions", "require_causal", "sensitivities"]

# Episodes are evaluated in parts of this many tasks, which bounds memory and suits a processor's caches.
_PART = 10_000


def predictions(
    learner: Learner | Predictor, tasks: Tasks
) -> Iterator[tuple[Float[Tensor, "part m dy"], Float[Tensor, "part m dy"]]]:
    """For parts of the tasks, the answers and the learner's finite predictions of them, without gradients.

    The answers of sequences are their elements from the second on.
    """
    for answers, inputs in _parts(tasks):
        with torch.no_grad():
            prediction = called(learner, *inputs)
        yield answers, _checked(learner, prediction, answers)


def require_causal(learners: Iterable[Learner | Predictor], tasks: Tasks) -> None:
    """Refuse predictors of sequences that look ahead."""
    if not isinstance(tasks, Episode):
        for one in learners:
            with evaluating(one):
                check_causal(one, tasks)


@register("lens", "per_task_errors", needs="prediction")
def per_task_errors(learner: Learner | Predictor, tasks: Tasks) -> Float[Tensor, " tasks"]:
    """Squared error of each task, averaged over its queries, or times, and outputs. Needs *prediction*."""
    require_access("per_task_errors", learner)
    check_tasks(tasks)
    errors = [(p - answers).square().flatten(1).mean(1) for answers, p in predictions(learner, tasks)]
    require_causal([learner], tasks)
    return torch.cat(errors)


def sensitivities(
    learner: Learner, episode: Episode
) -> Iterator[tuple[Float[Tensor, "part m dy"], Float[Tensor, "part m dy"], Float[Tensor, "part m dy dx"]]]:
    """For parts of the episode, answers, predictions and dy/dx_q of each query, by one backward pass an output."""
    for answers, (context, queries) in _parts(episode):
        xq = queries.detach().clone().requires_grad_()
        with torch.enable_grad(), evaluating(learner):
            prediction = check_answer(learner, called(learner, context, xq), answers.shape)
            outputs = prediction.shape[-1]
            rows = [
                torch.autograd.grad(prediction[..., j].sum(), xq, retain_graph=j < outputs - 1)[0]
                for j in range(outputs)
            ]
        found = torch.stack(rows, dim=-2)
        yield answers, _checked(learner, prediction.detach(), answers), _finite("derivatives by xq", learner, found)


def _parts(tasks: Tasks) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """Answers of parts of the tasks, and what a learner is called with for them: copies, which it may write into."""
    if isinstance(tasks, Episode):
        for start in range(0, len(tasks.xq), _PART):
            part = tasks.part(start, start + _PART)
            own = part.map(copied)
            yield part.yq, (own.context, own.xq)
    else:
        for part in tasks.split(_PART):
            yield part[:, 1:], (copied(part[:, :-1]),)


def _checked(learner: Learner | Predictor, answer: object, answers: Tensor) -> Tensor:
    return _finite("predictions", learner, check_answer(learner, answer, answers.shape))


def _finite(what: str, learner: Learner | Predictor, numbers: Tensor) -> Tensor:
    bad = int((~torch.isfinite(numbers)).sum())
    if bad:
        raise NumericalError(
            f"{what} must be finite, but {bad} of {numbers.numel()} by {label(learner)} are not: check the learner's "
            "inputs and step sizes."
        )
    return numbers
