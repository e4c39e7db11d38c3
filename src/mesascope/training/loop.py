"""The one training loop, and what it asks of a state, of checkpoints and of observers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Protocol, TypeVar, runtime_checkable

from torch import distributed

from mesascope.errors import ArgumentError, MesascopeError, refuse, require_callable, require_instance
from mesascope.modes import guarded
from mesascope.progress import tell
from mesascope.shapes import Tensor
from mesascope.tasks.asking import raised
from mesascope.training.finite import check_finite
from mesascope.training.interruption import interruption
from mesascope.training.judging import BeforeAndAfter
from mesascope.training.plan import Training
from mesascope.training.progress import ProgressBar

__all__ = ["Checkpoints", "Metrics", "Observer", "TrainingState", "fit", "result_tensors"]

Metrics = Mapping[str, Tensor | float]
_Batch = TypeVar("_Batch", contravariant=True)
_Result = TypeVar("_Result", covariant=True)

# Seconds of work that a killed training loses at most.
_MOST_LOST = 60.0


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


@guarded
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
        checkpoints: saved to before the first step, every ``checkpoint_every`` steps, at those to ``keep``, a minute
            after the last (not where several processes train, whose clocks differ) and at the end.
        observe: called after every step with its number, counted from 1, and its metrics; `ProgressBar` if None.

    Ctrl-C ends the training after the step that it meets (pressed twice, at once), and so does SIGTERM on the command
    line. With checkpoints, that step is saved and KeyboardInterrupt raised: resumed, the training ends as if nothing
    had been. Without, a warning tells the step, and the result so far is returned.

    A training of 100 steps or more that makes a model worse ends with a warning: it is judged on the tasks of its first
    steps, at most ten, before it begins and after, by accuracy where answers are classes, and else by the loss.

    Raises:
        ArgumentError: the state cannot be saved to the checkpoints.
        NumericalError: the data are not finite, or the loss has diverged, for every member if there are several; names
            the step. The last checkpoint stays.
    """
    _check(state, batch_at, plan, evaluate, checkpoints, observe)
    done, found = 0, checkpoints.load() if checkpoints else None
    if found:
        done = found[0]
        state.load(found[1])
        if 0 < done < plan.steps:
            tell(f"training: continues after step {done:,} of {plan.steps:,}, its last checkpoint")
    else:
        if evaluate:
            evaluate(0, state.result())
        if checkpoints:
            _save_first(checkpoints, state)
    begun = BeforeAndAfter(state, batch_at, plan, done)
    with interruption() as interrupted, ProgressBar("training", plan.steps) as bar:
        observe, saved = observe or bar, monotonic()
        for step in range(done + 1, plan.steps + 1):
            batch = begun.batch_at(step - 1)
            metrics = state.update(batch)
            check_finite(step, metrics, batch)
            last, stop = step == plan.steps, interrupted()
            observe(step, metrics)
            if evaluate and (last or step % plan.evaluate_every == 0):
                evaluate(step, state.result())
            late = monotonic() - saved >= _MOST_LOST and not distributed.is_initialized()
            due = step % plan.checkpoint_every == 0 or step in plan.keep
            if checkpoints and (last or stop or late or due):
                checkpoints.save(step, state.tensors())
                saved = monotonic()
            if stop and checkpoints:
                raise KeyboardInterrupt
            if stop:
                warnings.warn(f"the training was interrupted after step {step} of {plan.steps}.", stacklevel=2)
                break
    begun.warn()
    return state.result()


def result_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The final parameters and buffers by name that a checkpoint of an ensemble or a module holds.

    Averaged weights where an average is kept, with a leading axis of members if it is an ensemble's.

    >>> import torch
    >>> checkpoint = {"weights/a": torch.zeros(2), "average/a": torch.ones(2), "step": torch.tensor(3)}
    >>> result_tensors(checkpoint)
    {'a': tensor([1., 1.])}
    """
    require_instance("tensors", tensors, Mapping)
    kinds = ("weights", "average", "buffers")  # the later takes the place of the earlier
    parts = [{k.removeprefix(f"{kind}/"): v for k, v in tensors.items() if k.startswith(f"{kind}/")} for kind in kinds]
    if not parts[0]:
        refuse("tensors", "hold weights", sorted(tensors), "pass what a state's tensors() gave")
    return parts[0] | parts[1] | parts[2]


def _check(state: object, batch_at: object, plan: object, evaluate: object, checkpoints: object, observe: object):
    require_instance("state", state, TrainingState)
    require_callable("batch_at", batch_at)
    require_instance("plan", plan, Training)
    if checkpoints is not None:
        require_instance("checkpoints", checkpoints, Checkpoints)
    for name, given in (("evaluate", evaluate), ("observe", observe)):
        if given is not None:
            require_callable(name, given)


def _save_first(checkpoints: Checkpoints, state: TrainingState) -> None:
    """Save the state before the first step: what cannot be saved is refused before time is spent on it."""
    tensors = state.tensors()
    try:
        checkpoints.save(0, tensors)
    except MesascopeError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"checkpoints must save the state of the training, but could not before the first step ({raised(error)}): "
            "pass a folder that can be written to, and a module whose parameters and buffers are dense tensors."
        ) from error
