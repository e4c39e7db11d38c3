"""What a lens may ask of a learner: predictions, derivatives, or the network itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.nets import InContextRegressor
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner

__all__ = ["Access", "access_of", "per_task_errors", "predictions", "require_network", "sensitivities"]

Access = Literal["prediction", "gradient", "network"]

# Episodes are evaluated in parts of this many tasks, which bounds memory and suits a processor's caches.
_PART = 10_000


def access_of(learner: Learner, episode: Episode) -> Access:
    """The most that ``learner`` gives: *network* if its weights can be read, *gradient* if its predictions can be
    differentiated by the queries, else *prediction*."""
    if isinstance(learner, InContextRegressor):
        return "network"
    if not callable(learner):
        raise ArgumentTypeError(
            f"a learner must be callable as learner(context, xq), but is {learner!r}: pass a module or a function."
        )
    xq = episode.xq[:1].detach().clone().requires_grad_()
    try:
        prediction = learner(episode.part(0, 1).context, xq)
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


def predictions(learner: Learner, episode: Episode) -> Iterator[tuple[Episode, Float[Tensor, "part m dy"]]]:
    """Parts of the episode and the learner's finite predictions for them, without gradients."""
    for part in _parts(episode):
        with torch.no_grad():
            prediction = learner(part.context, part.xq)
        yield part, _checked(learner, prediction, part)


def per_task_errors(learner: Learner, episode: Episode) -> Float[Tensor, " tasks"]:
    """Squared error of each task, averaged over its queries and outputs."""
    errors = [(p - part.yq).square().flatten(1).mean(1) for part, p in predictions(learner, episode)]
    return torch.cat(errors)


def sensitivities(
    learner: Learner, episode: Episode
) -> Iterator[tuple[Episode, Float[Tensor, "part m dy"], Float[Tensor, "part m dy dx"]]]:
    """Parts of the episode, predictions for them, and dy/dx_q of each query, by one backward pass an output."""
    if access_of(learner, episode) == "prediction":
        raise ArgumentError(
            f"sensitivities must come from a learner that torch can differentiate by xq, but {_name(learner)} cannot "
            "be: use lenses that need predictions only, or write the learner in torch."
        )
    for part in _parts(episode):
        xq = part.xq.detach().clone().requires_grad_()
        with torch.enable_grad():
            prediction = learner(part.context, xq)
            outputs = prediction.shape[-1]
            rows = [
                torch.autograd.grad(prediction[..., j].sum(), xq, retain_graph=j < outputs - 1)[0]
                for j in range(outputs)
            ]
        yield part, _checked(learner, prediction.detach(), part), torch.stack(rows, dim=-2)


def _parts(episode: Episode) -> Iterator[Episode]:
    tasks = episode.xq.shape[0]
    for start in range(0, tasks, _PART):
        yield episode.part(start, min(start + _PART, tasks))


def _checked(learner: Learner, prediction: object, part: Episode) -> Tensor:
    if not isinstance(prediction, Tensor):
        raise ArgumentTypeError(
            f"a learner must return a torch tensor, but {_name(learner)} returned {type(prediction).__name__}: wrap it "
            "in torch.as_tensor."
        )
    if prediction.shape != part.yq.shape:
        raise ArgumentError(
            f"a learner must return predictions (*batch, m, dy) = {tuple(part.yq.shape)}, but {_name(learner)} "
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
