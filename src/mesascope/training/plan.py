"""Settings of a training, and its learning-rate schedules. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from mesascope.errors import refuse, require_choice, require_number
from mesascope.validate import Count, NonEmpty, NonNegative, Positive, Share, Whole, frozen

# Factor on the learning rate as a function of progress, from the first step of the decay (0) to the end (1).
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


_Decay = Annotated[float, msgspec.Meta(ge=0, lt=1)]


@frozen
class Training:
    """Settings that determine the result of a training, together with the model, the loss, the data and the seeds.

    Args:
        steps: Optimiser steps.
        batch: Tasks per step and network.
        learning_rate: Peak learning rate; the schedule multiplies it by `schedule_factor`.
        schedule: Decay of the learning rate: none, linear, or half a cosine.
        warmup_steps: Steps over which the learning rate rises.
        decay_from: Share of all steps after which the learning rate decays.
        final_rate: Final learning rate, as a share of the peak learning rate.
        optimizer: `torch.optim.SGD`, `torch.optim.Adam` or `torch.optim.AdamW`.
        momentum: Momentum of sgd.
        betas: Decay rates of adam's and adamw's running means of gradients and squared gradients.
        eps: Term that adam and adamw add to the denominator.
        weight_decay: Decoupled weight decay in adamw, relative to the learning rate; an L2 penalty in sgd and adam.
        clip: Bound on the gradient's norm, for each member of an ensemble; no clipping if None.
        average: Exponent a of polynomial-decay averaging: the result is the mean of the weights over all steps, with
            step t weighted by about t^a, so that the last 1/(a + 1) of the training counts most. No averaging if None.
        evaluate_every: Steps between evaluations.
        checkpoint_every: Steps between checkpoints; another is saved after a minute without one. The newest replaces
            the others.
        keep: Steps whose checkpoints are kept besides the newest, such as (0, 100, 1000).
    """

    steps: Count = 2000
    batch: Count = 2048
    learning_rate: Positive = 2e-3
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: Whole = 0
    decay_from: Share = 0.5
    final_rate: Share = 0.0
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    momentum: NonNegative = 0.0
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    clip: Positive | None = None
    average: NonNegative | None = None
    evaluate_every: Count = 100
    checkpoint_every: Count = 500
    keep: tuple[Whole, ...] = ()

    def __post_init__(self) -> None:
        require_number("warmup_steps", self.warmup_steps, most=self.steps)
        for step in self.keep:
            require_number("keep", step, most=self.steps)
        if self.momentum and self.optimizer != "sgd":
            remedy = 'set training.betas, or training.optimizer to "sgd"'
            refuse("momentum", f"be 0 for {self.optimizer}", self.momentum, remedy)

    def evaluation_steps(self, done: int) -> set[int]:
        """Steps up to ``done`` at which networks are evaluated."""
        return {0, *range(0, done + 1, self.evaluate_every), *([done] if done == self.steps else [])}


@frozen
class ParameterGroup:
    """Parameters of a module that train with their own learning rate or weight decay.

    Args:
        names: shell patterns of parameter names, such as ``("*.bias", "embedding.*")``.
        learning_rate, weight_decay: values for the group; the plan's if None. The schedule applies to every group.
    """

    names: NonEmpty[str]
    learning_rate: Positive | None = None
    weight_decay: NonNegative | None = None


def schedule_factor(
    schedule: str, step: int, steps: int, decay_from: float = 0.5, *, warmup_steps: int = 0, final_rate: float = 0.0
) -> float:
    """Factor on the learning rate at ``step``, counted from 0.

    It rises linearly to 1 over the first ``warmup_steps`` and stays there up to the share ``decay_from`` of all steps
    (or the end of the warm-up, if later). Then it decays linearly or along half a cosine to ``final_rate`` at step
    ``steps``, and stays there. ``"constant"`` does not decay.

    >>> [round(schedule_factor("linear", step, 8, 0.5, warmup_steps=2), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if schedule not in list(SCHEDULES):  # called at every step
        require_choice("schedule", schedule, SCHEDULES)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    start = max(decay_from * steps, warmup_steps)
    progress = min(max(0.0, (step - start) / (steps - start)), 1.0) if steps > start else 0.0
    height = SCHEDULES[schedule](progress)
    return height + final_rate * (1.0 - height)
