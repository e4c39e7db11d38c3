"""The training loop, its progress, and the protocols of its state, checkpoints and observers."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import distributed

from mesascope.errors import ArgumentError, MesascopeError, raised, refuse, require_callable, require_instance
from mesascope.modes import guarded
from mesascope.progress import STOP, Progress, tell_progress
from mesascope.shapes import Tensor
from mesascope.training.finite import check_finite
from mesascope.training.judging import BeforeAndAfter
from mesascope.training.plan import Training

Metrics = Mapping[str, Tensor | float]
_Batch = TypeVar("_Batch", contravariant=True)
_Result = TypeVar("_Result", covariant=True)

# Seconds between checkpoints; a killed training loses little more than this.
_MOST_LOST = 60.0


@runtime_checkable
class TrainingState(Protocol[_Batch, _Result]):
    """Complete state of a training, and its update rule: `EnsembleState`, `ModuleState`, or your own.

    ``update`` takes one step on a batch and returns metrics: numbers, or tensors with one entry for each member. The
    metric ``"loss"`` is required; after divergence it must be NaN or infinite. ``tensors`` is a complete checkpoint by
    name: after ``load``, updates continue bit for bit. ``result`` is the current model in eval() mode.
    """

    def update(self, batch: _Batch, /) -> Metrics: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def load(self, tensors: Mapping[str, Tensor], /) -> None: ...
    def result(self) -> _Result: ...


@runtime_checkable
class Checkpoints(Protocol):
    """Storage of a training's tensors between sessions; ``load`` returns the last step and its tensors, or None."""

    def save(self, step: int, tensors: dict[str, Tensor]) -> None: ...
    def load(self) -> tuple[int, dict[str, Tensor]] | None: ...


@runtime_checkable
class Observer(Protocol):
    """Function that is called with every step's metrics, for example to show or log them."""

    def __call__(self, step: int, metrics: Metrics) -> None: ...


class ProgressBar(Progress):
    """Observer of `fit` that shows progress, the loss and the time left.

    Args:
        name: name of the training.
        steps: number of steps of the training.
        per_step: number of tokens per step, to show tokens per second; None if there are no tokens.
    """

    def __init__(self, name: str, steps: int, *, per_step: int | None = None) -> None:
        super().__init__(name, steps, unit="step ", stays=True)
        self.per_step = per_step
        self._begun = False

    def __call__(self, step: int, metrics: Mapping[str, Tensor | float]) -> None:
        if not self._begun:  # not timed: the first step compiles, allocates, and may follow a checkpoint
            self.begin(step)
            self._begun = True
        self.update(step, lambda: self._note(metrics["loss"]))

    def _note(self, loss: Tensor | float) -> str:
        """Mean loss of members that have not diverged, number of diverged members, and tokens per second."""
        losses = torch.as_tensor(loss).flatten()
        finite = losses[torch.isfinite(losses)]
        parts = [f"loss {finite.mean().item():.4g}"] if len(finite) else []
        if len(finite) < len(losses):
            parts.append(f"{len(losses) - len(finite)} of {len(losses)} diverged")
        if self.per_step is not None and self.pace:
            parts.append(f"{self.per_step / self.pace:,.0f} tokens/s")
        return ", ".join(parts)


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
    """Take all steps of the plan, from the last checkpoint if there is one, and return the state's result.

    Args:
        state: model, optimiser and update rule; it must not have trained yet.
        batch_at: draws the batch of step i, counted from 0. It must depend on i alone, so that resumed and
            uninterrupted trainings are identical.
        plan: number of steps, and intervals between evaluations and checkpoints.
        evaluate: called with (steps done, result) before the first step, every ``evaluate_every`` steps and at the end.
            The result changes with further steps: copy it to keep it.
        checkpoints: a checkpoint is saved before the first step, every ``checkpoint_every`` steps, at the steps in
            ``keep``, one minute after the last checkpoint (unless several processes train, as their clocks differ) and
            at the end.
        observe: called after every step with its number, counted from 1, and its metrics; `ProgressBar` if None.

    Ctrl-C, and SIGTERM on the command line, end the training after the current step; a second Ctrl-C ends it at once.
    With checkpoints, that step is saved and KeyboardInterrupt is raised; the training can be resumed with identical
    results. Without checkpoints, a warning names the step, and the current result is returned.

    After 100 steps or more, a warning is given if the model has become worse on the tasks of its first steps (at most
    ten). The criterion is the accuracy if targets are classes, and the loss otherwise.

    Raises:
        ArgumentError: the state cannot be saved to the checkpoints.
        NumericalError: the data are not finite, or the loss (of all members, if there are several) has diverged. The
            message names the step; the last checkpoint is kept.
    """
    require_instance("state", state, TrainingState)
    require_instance("plan", plan, Training)
    if checkpoints is not None:
        require_instance("checkpoints", checkpoints, Checkpoints)
    require_callable("batch_at", batch_at)
    for name, given in (("evaluate", evaluate), ("observe", observe)):
        if given is not None:
            require_callable(name, given)
    if plan.keep and checkpoints is not None and hasattr(checkpoints, "keep"):
        checkpoints.keep = {*checkpoints.keep, *plan.keep}  # type: ignore[attr-defined]
    if taken := getattr(state, "step", 0):
        refuse("state", "be new", f"of {taken:,} steps", "make a new one of its model to train further")
    done = _started(state, plan, evaluate, checkpoints)
    begun = BeforeAndAfter(state, batch_at, plan, done)
    with _interruption() as interrupted, ProgressBar("training", plan.steps) as bar:
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


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C or `STOP.set()`; a second Ctrl-C interrupts at once.

    This applies to every signal that Python turns into KeyboardInterrupt, including SIGTERM on the command line. A
    program's own signal handlers are kept. In distributed training, signals interrupt at once, as processes wait for
    one another and cannot stop at different steps.
    """
    heard: list[int] = []

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and number in heard:  # SIGTERM arrives twice if a parent process forwards it
            raise KeyboardInterrupt
        heard.append(number)

    handles = threading.current_thread() is threading.main_thread() and not distributed.is_initialized()
    every = signal.valid_signals() if handles else ()
    answered = [one for one in every if signal.getsignal(one) is signal.default_int_handler]
    for number in answered:
        signal.signal(number, note)
    try:
        yield lambda: bool(heard) or STOP.is_set()
    finally:
        for number in answered:
            signal.signal(number, signal.default_int_handler)


def _started(state: Any, plan: Training, evaluate: Callable | None, checkpoints: Checkpoints | None) -> int:
    """Load the last checkpoint, or evaluate and save the initial state; return the number of steps done."""
    found = checkpoints.load() if checkpoints else None
    if found:
        done, tensors = found
        if done > plan.steps:
            refuse("checkpoints", f"be of at most {plan.steps:,} steps", f"at step {done:,}", "pass another folder")
        state.load(tensors)
        if 0 < done < plan.steps:
            tell_progress(f"training: continues after step {done:,} of {plan.steps:,}, its last checkpoint")
        return done
    if evaluate:
        evaluate(0, state.result())
    if checkpoints:  # raise before training if the state cannot be saved
        tensors = state.tensors()
        try:
            checkpoints.save(0, tensors)
        except MesascopeError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"checkpoints must save the state of the training, but could not before the first step "
                f"({raised(error)}): pass a folder that can be written to, a config of numbers and texts, and a "
                "module whose parameters and buffers are dense tensors."
            ) from error
    return 0


def result_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Final parameters and buffers by name from a checkpoint of an ensemble or a module.

    Weights are averaged if ``plan.average`` was set. Those of an ensemble have a leading axis of members.

    >>> import torch
    >>> checkpoint = {"weights/a": torch.zeros(2), "average/a": torch.ones(2), "step": torch.tensor(3)}
    >>> result_tensors(checkpoint)
    {'a': tensor([1., 1.])}
    """
    require_instance("tensors", tensors, Mapping)
    kinds = ("weights", "average", "buffers")  # averaged weights replace the last ones
    parts = [{k.removeprefix(f"{kind}/"): v for k, v in tensors.items() if k.startswith(f"{kind}/")} for kind in kinds]
    if not parts[0]:
        refuse("tensors", "hold weights", sorted(tensors), "pass the tensors() of a state")
    return parts[0] | parts[1] | parts[2]
