"""Predictions, errors and sensitivities of learners, for one part of the tasks at a time; checks of their groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from mesascope.errors import (
    ArgumentError,
    ArgumentTypeError,
    NumericalError,
    refuse,
    require_choice,
    require_count,
    require_instance,
    shown,
)
from mesascope.lenses.needs import Tasks, predict_in_eval, require_access
from mesascope.progress import tracked
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner, Predictor
from mesascope.tasks.calling import check_answer, check_causal, check_tasks, copied, label
from mesascope.training import Ensemble
from mesascope.training.modes import evaluating

_Member = TypeVar("_Member")

# Tasks per part: small enough to bound memory and to fit the processor's caches.
PART = 10_000


class Seen(NamedTuple):
    """Predictions of one learner on all tasks, the mean squared error of each task, and dy/dx_q if measured."""

    prediction: Float[Tensor, "tasks m dy"]
    error: Float[Tensor, " tasks"]
    sensitivity: Float[Tensor, "tasks m dy dx"] | None = None


def seen(learner: Learner | Predictor, tasks: Tasks, *, derived: bool = False) -> Seen:
    """Predictions and errors of a learner on all tasks, and its sensitivities if ``derived``."""
    parts: Iterable[Any] = sensitivities(learner, tasks) if derived else predictions(learner, tasks)  # type: ignore[arg-type]

    def error(own: Tensor, answers: Tensor) -> Tensor:
        wide = (own - answers).double()  # squares may leave the range of narrower numbers
        return _finite("squared errors", learner, wide.square().flatten(1).mean(1))

    rows = [(own, error(own, answers), *rest) for answers, own, *rest in parts]
    return Seen(*(torch.cat(column) for column in zip(*rows, strict=True)))


def predictions(
    learner: Learner | Predictor, tasks: Tasks
) -> Iterator[tuple[Float[Tensor, "part m dy"], Float[Tensor, "part m dy"]]]:
    """Yield targets and predictions for each part of the tasks, without gradients; raise if a prediction is not finite.

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
        for start in tracked(range(0, len(tasks.xq), PART), f"evaluating parts of {PART:,} tasks"):
            part = tasks.part(start, start + PART)
            own = part.map(copied)
            yield part.yq.detach(), (own.context, own.xq)
    else:
        for part in tracked(tasks.split(PART), f"evaluating parts of {PART:,} sequences"):
            yield part[:, 1:], (copied(part[:, :-1]),)


def _finite(what: str, learner: Learner | Predictor, numbers: Tensor) -> Tensor:
    bad = int((~torch.isfinite(numbers)).sum())
    if bad:
        are = "is" if bad == 1 else "are"
        raise NumericalError(
            f"{what} must be finite, but {bad} of {numbers.numel()} by {label(learner)} {are} not: check the learner's "
            "inputs and step sizes, or convert tasks and weights with .double()."
        )
    return numbers


def require_groups(
    lens: str, groups: Mapping[str, Sequence[Any]], against: Sequence[str] = (), tasks: Tasks | None = None
) -> None:
    """Raise unless groups map names to lists of learners for this lens, and ``against`` lists only such names."""
    if not isinstance(groups, Mapping) or not groups:
        raise ArgumentTypeError(f"groups must map names to lists of learners, but is {shown(groups)}: pass a dict.")
    for name, learners in groups.items():
        if not isinstance(learners, Sequence) or not learners:
            remedy = "pass its members()" if isinstance(learners, Ensemble) else "pass [learner]"
            raise ArgumentTypeError(f"{name} must be a non-empty list of learners, but is {shown(learners)}: {remedy}.")
        for learner in learners:
            require_access(lens, learner, tasks)
    if isinstance(against, str):
        raise ArgumentTypeError(f"against must be a list of names, but is {against!r}: pass [{against!r}].")
    for name in against:
        require_choice("against", name, groups)


def against_others(
    groups: Mapping[str, Sequence[_Member]], against: Sequence[str]
) -> Iterator[tuple[str, str, list[tuple[_Member, _Member]]]]:
    """Yield each group's name, each other name in ``against``, and pairs of members; a lone member is in all pairs."""
    for name, members in groups.items():
        for other in (other for other in against if other != name):
            parts = members, groups[other]
            count = max(map(len, parts))
            if {len(part) for part in parts} - {1, count}:
                raise ArgumentError(
                    f"groups must have as many members as the groups that they are compared with, or one, but {name} "
                    f"and {other} have {len(members)} and {len(groups[other])}: build one for each."
                )
            yield name, other, list(zip(*(list(part) * (count // len(part)) for part in parts), strict=True))


def numbers(tensor: Tensor) -> np.ndarray:
    """A tensor as a NumPy array in double precision."""
    return tensor.detach().double().cpu().numpy()


def activations_of(network: Any, sequences: Float[Tensor, "tasks t d"]) -> list[Float[Tensor, "tasks t width"]]:
    """Activations of a network; raise unless they are finite tensors (tasks, t, width), one for each layer."""
    found = network.activations(copied(sequences))
    require_instance("activations(sequences)", found, list | tuple, "return one tensor for each layer")
    for tokens, alone in zip(found, network.activations(copied(sequences[:1])), strict=True):
        for one, count in ((tokens, len(sequences)), (alone, 1)):
            require_instance("each of activations(sequences)", one, Tensor, "return one tensor for each layer")
            if one.ndim != 3 or one.shape[:2] != (count, sequences.shape[1]):
                rule = f"have shape ({count}, {sequences.shape[1]}, width) for sequences (tasks, t, d) of this size"
                refuse("each of activations(sequences)", rule, tuple(one.shape), "put tasks first, then time")
        _finite("activations", network, tokens)
    return list(found)


def require_sequences(lens: str, sequences: Any) -> None:
    """Raise unless sequences are finite tensors ``(tasks, t, d)``."""
    if not isinstance(sequences, Tensor):
        raise ArgumentTypeError(
            f"{lens} must be given sequences (tasks, t, d), but is given {shown(sequences)}: draw some."
        )
    check_tasks(sequences)


def chosen_times(times: Sequence[int] | None, sequences: Float[Tensor, "tasks t d"]) -> list[int]:
    """Return the times t (numbers of known elements), all if None; raise unless they lie in 1 to length - 1."""
    known = sequences.shape[1] - 1
    named = list(times) if isinstance(times, Iterable) else []
    if times is not None and not named:
        refuse("times", "name at least one time", times, "pass [1, 5], say, or None for all")
    chosen = list(range(1, known + 1)) if times is None else named
    for time in chosen:
        require_count("times", time)
        if time > known:
            refuse("times", f"be at most {known}, one less than the number of elements", time, "draw longer sequences")
    return chosen
