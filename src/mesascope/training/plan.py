"""How to train: the settings of a training and its learning-rate schedules. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from mesascope.errors import (
    ArgumentTypeError,
    refuse,
    require_choice,
    require_count,
    require_instance,
    require_number,
    shown,
)
from mesascope.validate import frozen

__all__ = ["SCHEDULES", "ParameterGroup", "Training", "schedule_factor"]


@frozen
class Training:
    """How to train: everything that decides the result but the model, the loss, the data and the seeds.

    Args:
        steps: Optimiser steps.
        batch: Tasks a step and member.
        learning_rate: Of the optimiser; the schedule multiplies it by `schedule_factor`.
        schedule: How the learning rate falls: not at all, along a line, or along half a cosine.
        warmup_steps: Steps over which the learning rate rises.
        decay_from: Share of all steps from which on it falls.
        final_rate: Share of the learning rate towards which it falls.
        optimizer: `torch.optim.SGD`, `torch.optim.Adam` or `torch.optim.AdamW`.
        momentum: Of sgd.
        betas: Of adam and adamw: decay rates of their means of gradients, and of squared gradients.
        eps: Of adam and adamw: added to the denominator.
        weight_decay: Share of the weights taken off a step, times the learning rate; in sgd and adam by the gradient.
        clip: Bound on the norm of the gradient, of each member's in an ensemble; none if None.
        average: The result is the mean of the weights over all steps, step t weighted by about t^average, so that
            the last 1/(average + 1) of the training counts most (polynomial-decay averaging); the last weights if None.
        evaluate_every: Steps between evaluations.
        checkpoint_every: Steps between checkpoints; one is saved each minute, too. The newest replaces the others.
        keep: Steps whose checkpoints stay beside the newest, such as (0, 100, 1000).
    """

    steps: int = 2000
    batch: int = 2048
    learning_rate: float = 2e-3
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: int = 0
    decay_from: float = 0.5
    final_rate: float = 0.0
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    average: float | None = None
    evaluate_every: int = 100
    checkpoint_every: int = 500
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "evaluate_every", "checkpoint_every"):
            require_count(name, getattr(self, name))
        require_number("learning_rate", self.learning_rate, above=0)
        require_choice("schedule", self.schedule, SCHEDULES)
        require_count("warmup_steps", self.warmup_steps, least=0)
        require_number("warmup_steps", self.warmup_steps, most=self.steps)
        for name in ("decay_from", "final_rate"):
            require_number(name, getattr(self, name), least=0, most=1)
        self._check_optimizer()
        if self.average is not None:
            require_number("average", self.average, least=0)
        if self.clip is not None:
            require_number("clip", self.clip, above=0)
        if not isinstance(self.keep, tuple | list):
            raise ArgumentTypeError(f"keep must be some steps, but is {shown(self.keep)}: pass (0, 100), say.")
        object.__setattr__(self, "keep", tuple(self.keep))
        for step in self.keep:
            require_count("keep", step, least=0)
            require_number("keep", step, most=self.steps)

    def _check_optimizer(self) -> None:
        require_choice("optimizer", self.optimizer, ("sgd", "adam", "adamw"))
        require_number("momentum", self.momentum, least=0)
        if self.momentum and self.optimizer != "sgd":
            refuse(
                "momentum",
                f"be 0 for {self.optimizer}",
                self.momentum,
                'set training.betas, or training.optimizer to "sgd"',
            )
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise ArgumentTypeError(f"betas must be two numbers, but is {shown(self.betas)}: pass (0.9, 0.999), say.")
        object.__setattr__(self, "betas", tuple(self.betas))
        for beta in self.betas:
            require_number("betas", beta, least=0)
            if beta >= 1:
                refuse("betas", "be below 1", self.betas, "pass smaller numbers")
        require_number("eps", self.eps, above=0)
        require_number("weight_decay", self.weight_decay, least=0)


@frozen
class ParameterGroup:
    """Parameters of a module that train with a learning rate or weight decay of their own.

    Args:
        names: patterns of parameter names, in the shell's notation: ``("*.bias", "embedding.*")``.
        learning_rate, weight_decay: in place of the plan's; the plan's if None. The schedule holds for every group.
    """

    names: tuple[str, ...]
    learning_rate: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not isinstance(self.names, Sequence) or not self.names:
            raise ArgumentTypeError(f"names must be a tuple of patterns, but is {shown(self.names)}: pass ('*',), say.")
        for name in self.names:
            require_instance("names", name, str)
        object.__setattr__(self, "names", tuple(self.names))
        if self.learning_rate is not None:
            require_number("learning_rate", self.learning_rate, above=0)
        if self.weight_decay is not None:
            require_number("weight_decay", self.weight_decay, least=0)


def _constant(progress: float) -> float:
    return 1.0


def _linear(progress: float) -> float:
    return 1.0 - progress


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES = {"constant": _constant, "linear": _linear, "cosine": _cosine}


def schedule_factor(
    schedule: str, step: int, steps: int, decay_from: float = 0.5, *, warmup_steps: int = 0, final_rate: float = 0.0
) -> float:
    """The factor on the learning rate at ``step``, counted from 0.

    It rises in equal steps to 1 over the first ``warmup_steps``, stays there up to the share ``decay_from`` of all
    steps (or to the end of the warm-up, if that is later), and falls towards ``final_rate``, which it would reach at
    step ``steps`` and keeps from there on, along a line or half a cosine. ``"constant"`` does not fall.

    >>> [round(schedule_factor("linear", step, 8, 0.5, warmup_steps=2), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if schedule not in list(SCHEDULES):
        require_choice("schedule", schedule, SCHEDULES)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    start = max(decay_from * steps, warmup_steps)
    progress = min(max(0.0, (step - start) / (steps - start)), 1.0) if steps > start else 0.0
    height = SCHEDULES[schedule](progress)
    return height + final_rate * (1.0 - height)
