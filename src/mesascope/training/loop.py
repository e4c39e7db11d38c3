"""The one training loop, and what it asks of a state, of checkpoints and of observers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

import torch

from mesascope.errors import NumericalError
from mesascope.shapes import Tensor
from mesascope.training.plan import Training

__all__ = ["Checkpoints", "Metrics", "Observer", "TrainingState", "fit", "result_tensors"]

Metrics = Mapping[str, Tensor | float]
_Batch = TypeVar("_Batch", contravariant=True)
_Result = TypeVar("_Result", covariant=True)


@runtime_checkable
class TrainingState(Protocol[_Batch, _Result]):
    """Everything that changes while training, and the rule by which it does: `EnsembleState`, `ModuleState`, or yours.

    ``update`` takes one step on a batch and returns its metrics, numbers or tensors with one entry a member. Among them
    is ``"loss"``, which is not finite for what has diverged. ``tensors`` is a complete checkpoint by name: after
    ``load`` of it, updates go on bit for bit as they would have. ``result`` is what training has reached so far, in
    eval() mode.
    """

    def update(self, batch: _Batch, /) -> Metrics: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def load(self, tensors: Mapping[str, Tensor], /) -> None: ...
    def result(self) -> _Result: ...


@runtime_checkable
class Checkpoints(Protocol):
    """Where a training's tensors are kept between sessions."""

    def save(self, step: int, tensors: dict[str, Tensor]) -> None: ...
    def load(self) -> tuple[int, dict[str, Tensor]] | None: ...


@runtime_checkable
class Observer(Protocol):
    """Told of every step's metrics, so as to show or log them."""

    def __call__(self, step: int, metrics: Metrics) -> None: ...


def fit(
    state: TrainingState[_Batch, _Result],
    batch_at: Callable[[int], _Batch],
    plan: Training,
    *,
    evaluate: Callable[[int, _Result], None] | None = None,
    checkpoints: Checkpoints | None = None,
    observe: Observer | None = None,
) -> _Result:
    """Take the plan's steps, from the last checkpoint on if there is one, and return the state's result.

    Args:
        state: what is trained, and how.
        batch_at: draws the batch of step i, counted from 0; it must depend on i alone, so that a resumed training
            repeats an uninterrupted one.
        plan: its numbers of steps.
        evaluate: called with (steps done, result) before the first step, every ``evaluate_every`` and at the end.
        checkpoints: saved to every ``checkpoint_every`` steps and at the end.
        observe: called after every step with its number, counted from 1, and its metrics.

    Raises:
        NumericalError: the loss has diverged, for every member if there are several; names the step. The last
            checkpoint stays.
    """
    done, found = 0, checkpoints.load() if checkpoints else None
    if found:
        done = found[0]
        state.load(found[1])
    elif evaluate:
        evaluate(0, state.result())
    for step in range(done + 1, plan.steps + 1):
        metrics = state.update(batch_at(step - 1))
        _check_finite(step, metrics)
        last = step == plan.steps
        if observe:
            observe(step, metrics)
        if evaluate and (last or step % plan.evaluate_every == 0):
            evaluate(step, state.result())
        if checkpoints and (last or step % plan.checkpoint_every == 0):
            checkpoints.save(step, state.tensors())
    return state.result()


def result_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The final parameters and buffers by name that a checkpoint of an ensemble or a module holds.

    Averaged weights where an average is kept, with a leading axis of members if it is an ensemble's.

    >>> checkpoint = {"weights/a": torch.zeros(2), "average/a": torch.ones(2), "step": torch.tensor(3)}
    >>> result_tensors(checkpoint)
    {'a': tensor([1., 1.])}
    """
    kinds = ("weights", "average", "buffers")  # the later takes the place of the earlier
    parts = [{k.removeprefix(f"{kind}/"): v for k, v in tensors.items() if k.startswith(f"{kind}/")} for kind in kinds]
    return parts[0] | parts[1] | parts[2]


def _check_finite(step: int, metrics: Metrics) -> None:
    loss = metrics["loss"]
    # The sum answers for most steps in a third of the time that a look at each entry takes.
    if math.isfinite(loss.sum() if isinstance(loss, Tensor) else loss) or bool(
        torch.isfinite(torch.as_tensor(loss)).any()
    ):
        return
    said = ", ".join(
        f"{name.replace('_', ' ')} {value.tolist() if isinstance(value, Tensor) else value}"
        for name, value in metrics.items()
    )
    raise NumericalError(
        f"the training loss must stay finite, but diverged at step {step} ({said}): lower the learning rate, or set "
        "clip or token_clip."
    )
