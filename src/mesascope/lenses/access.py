"""What a lens may ask of a learner: predictions, derivatives, or the network itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError, refuse
from mesascope.nets import InContextRegressor
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Episode, Learner, Predictor, check_episode, check_sequence

__all__ = [
    "Access",
    "Tasks",
    "access_of",
    "check_tasks",
    "per_task_errors",
    "predictions",
    "require_network",
    "sensitivities",
]

# What a family draws: episodes, or sequences (tasks, t, d).
Tasks = Episode | Tensor

Access = Literal["prediction", "gradient", "network"]

# Episodes are evaluated in parts of this many tasks, which bounds memory and suits a processor's caches.
_PART = 10_000


def access_of(learner: Learner | Predictor, tasks: Tasks) -> Access:
    """The most that ``learner`` gives: *network* if its weights can be read, *gradient* if its predictions can be
    differentiated by the queries, else *prediction*, which is all that lenses ask of a predictor of sequences."""
    if isinstance(learner, InContextRegressor):
        return "network"
    if not callable(learner):
        raise ArgumentTypeError(
            f"a learner must be callable as learner(context, xq), but is {learner!r}: pass a module or a function."
        )
    if isinstance(tasks, Tensor):
        return "prediction"
    episode = tasks
    xq = episode.xq[:1].detach().clone().requires_grad_()
    try:
        prediction = _called(learner, episode.part(0, 1).context, xq)
        differentiable = isinstance(prediction, Tensor) and prediction.requires_grad and _depends(prediction, xq)
        return "gradient" if differentiable else "prediction"
    except RuntimeError as error:
        if "requires grad" in str(error):  # what `Tensor.numpy` says to a learner outside torch
            return "prediction"
        raise


def _depends(prediction: Tensor, xq: Tensor) -> bool:
    return torch.autograd.grad(prediction.sum(), xq, allow_unused=True)[0] is not None


def require_network(lens: str, learner: object) -> InContextRegressor:
    """Refuse a learner whose weights cannot be read."""
    if not isinstance(learner, InContextRegressor):
        raise ArgumentTypeError(
            f"{lens} must be given a network (an InContextRegressor), but is given {type(learner).__name__}: use a "
            "lens that needs predictions only, such as alignment or sweep."
        )
    return learner


def predictions(
    learner: Learner | Predictor, tasks: Tasks
) -> Iterator[tuple[Float[Tensor, "part m dy"], Float[Tensor, "part m dy"]]]:
    """For parts of the tasks, the answers and the learner's finite predictions of them, without gradients.

    The answers of sequences are their elements from the second on.
    """
    for answers, inputs in _parts(tasks):
        with torch.no_grad():
            prediction = _called(learner, *inputs)
        yield answers, _checked(learner, prediction, answers)


def per_task_errors(learner: Learner | Predictor, tasks: Tasks) -> Float[Tensor, " tasks"]:
    """Squared error of each task, averaged over its queries, or times, and outputs."""
    errors = [(p - answers).square().flatten(1).mean(1) for answers, p in predictions(learner, tasks)]
    return torch.cat(errors)


def check_tasks(tasks: Tasks) -> None:
    """Refuse episodes or sequences whose shapes disagree, or that hold a number which is not finite."""
    if isinstance(tasks, Episode):
        check_episode(tasks)
        return
    check_sequence(tasks)
    if tasks.ndim != 3 or tasks.shape[1] < 2 or not bool(torch.isfinite(tasks).all()):
        refuse("sequences", "be finite numbers (tasks, t, d) with t > 1", tuple(tasks.shape), "draw longer ones, say")


def sensitivities(
    learner: Learner, episode: Episode
) -> Iterator[tuple[Float[Tensor, "part m dy"], Float[Tensor, "part m dy"], Float[Tensor, "part m dy dx"]]]:
    """For parts of the episode, answers, predictions and dy/dx_q of each query, by one backward pass an output."""
    if access_of(learner, episode) == "prediction":
        raise ArgumentError(
            f"sensitivities must come from a learner that torch can differentiate by xq, but {_name(learner)} cannot "
            "be: use lenses that need predictions only, or write the learner in torch."
        )
    for answers, (context, queries) in _parts(episode):
        xq = queries.detach().clone().requires_grad_()
        with torch.enable_grad():
            prediction = learner(context, xq)
            outputs = prediction.shape[-1]
            rows = [
                torch.autograd.grad(prediction[..., j].sum(), xq, retain_graph=j < outputs - 1)[0]
                for j in range(outputs)
            ]
        yield answers, _checked(learner, prediction.detach(), answers), torch.stack(rows, dim=-2)


def _parts(tasks: Tasks) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """Answers of parts of the tasks, and what a learner is called with for them."""
    if isinstance(tasks, Episode):
        for start in range(0, len(tasks.xq), _PART):
            part = tasks.part(start, start + _PART)
            yield part.yq, (part.context, part.xq)
    else:
        for part in tasks.split(_PART):
            yield part[:, 1:], (part[:, :-1],)


def _called(learner: Callable, *inputs: Context | Tensor) -> object:
    try:
        return learner(*inputs)
    except TypeError as error:
        if "positional argument" not in str(error):
            raise
        drawn = "(sequence)" if len(inputs) == 1 else "(context, xq)"
        raise ArgumentTypeError(
            f"a learner must take what the family draws, here {drawn}, but {_name(learner)} does not: choose a family "
            "of episodes for learners, of sequences for predictors."
        ) from error


def _checked(learner: Learner | Predictor, prediction: object, answers: Tensor) -> Tensor:
    if not isinstance(prediction, Tensor):
        raise ArgumentTypeError(
            f"a learner must return a torch tensor, but {_name(learner)} returned {type(prediction).__name__}: wrap it "
            "in torch.as_tensor."
        )
    if prediction.shape != answers.shape:
        raise ArgumentError(
            f"a learner must return predictions of the answers' shape {tuple(answers.shape)}, but {_name(learner)} "
            f"returned {tuple(prediction.shape)}: reshape its output."
        )
    bad = int((~torch.isfinite(prediction)).sum())
    if bad:
        raise NumericalError(
            f"predictions must be finite, but {bad} of {prediction.numel()} by {_name(learner)} are not: check the "
            "learner's inputs and step sizes."
        )
    return prediction


def _name(learner: object) -> str:
    return (
        str(learner) if isinstance(learner, torch.nn.Module) else getattr(learner, "__name__", type(learner).__name__)
    )
