"""The one training loop."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from mesascope.errors import ArgumentError, NumericalError, require_choice, require_count, require_number
from mesascope.shapes import Float, Tensor
from mesascope.training.ensemble import Ensemble, Module
from mesascope.training.schedules import SCHEDULES, schedule_factor

__all__ = ["Checkpoints", "Observer", "Training", "fit", "keep_freed_memory"]


@dataclass(frozen=True)
class Training:
    """How to train: everything that decides the result but the learner, the tasks and the seeds.

    Args:
        steps: optimiser steps.
        batch: tasks a step and member.
        learning_rate, schedule, decay_from: constant up to the share ``decay_from`` of all steps, then to 0 along
            ``"linear"`` or ``"cosine"``; ``"constant"`` ignores ``decay_from``.
        optimizer, betas, eps, weight_decay: `torch.optim.Adam` or `AdamW`.
        clip: bound on the norm of each member's gradient; none if None.
        average: the result is the mean of the weights over all steps, step t weighted by about t^average, so that
            the last 1/(average + 1) of the training counts most (polynomial-decay averaging); the last weights if None.
        evaluate_every, checkpoint_every: steps between evaluations, and between checkpoints.
    """

    steps: int = 2000
    batch: int = 2048
    learning_rate: float = 2e-3
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    decay_from: float = 0.5
    optimizer: Literal["adam", "adamw"] = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    average: float | None = None
    evaluate_every: int = 100
    checkpoint_every: int = 500

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "evaluate_every", "checkpoint_every"):
            require_count(name, getattr(self, name))
        require_number("learning_rate", self.learning_rate, above=0)
        require_choice("schedule", self.schedule, SCHEDULES)
        require_choice("optimizer", self.optimizer, _OPTIMIZERS)
        require_number("decay_from", self.decay_from, least=0, most=1)
        require_number("eps", self.eps, above=0)
        require_number("weight_decay", self.weight_decay, least=0)
        if self.average is not None:
            require_number("average", self.average, least=0)
        if self.clip is not None:
            require_number("clip", self.clip, above=0)
        object.__setattr__(self, "betas", tuple(self.betas))


@runtime_checkable
class Checkpoints(Protocol):
    """Where a training's tensors are kept between sessions."""

    def save(self, step: int, tensors: dict[str, Tensor]) -> None: ...
    def load(self) -> tuple[int, dict[str, Tensor]] | None: ...


@runtime_checkable
class Observer(Protocol):
    """Told of every step's losses, so as to show progress."""

    def __call__(self, step: int, losses: Float[Tensor, " members"]) -> None: ...


_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def fit(
    ensemble: Ensemble[Module],
    step: Callable[[Ensemble[Module], Any], Float[Tensor, " members"]],
    batches: Callable[[int], Any],
    training: Training,
    *,
    evaluate: Callable[[int, Ensemble], None] | None = None,
    checkpoints: Checkpoints | None = None,
    observe: Observer | None = None,
) -> Ensemble[Module]:
    """Train every member of ``ensemble`` at once, in place, and return it.

    Each step takes the gradient of ``step(ensemble, batch)``, one loss a member, clips it member by member, and
    hands it to the optimiser. Nothing couples the members: each ends as it would alone, up to rounding.

    A member whose loss or gradient stops being finite keeps its last finite weights, with a warning, while the others
    train on.

    Args:
        ensemble: the state.
        step: the losses of a batch; differentiated here.
        batches: ``batches(i)`` draws the batch of step i; it must depend on i alone, so that a resumed training
            repeats an uninterrupted one.
        training: the plan.
        evaluate: called with (steps done, ensemble) before the first step, every ``evaluate_every`` and at the end.
        checkpoints: saved to every ``checkpoint_every`` steps; if it holds a checkpoint, training goes on from there.
        observe: called after every step.

    Raises:
        NumericalError: every member has diverged; names the step. The last checkpoint stays.
    """
    keep_freed_memory()
    state = _State(ensemble, training)
    resumed = checkpoints.load() if checkpoints else None
    if resumed:
        state.restore(*resumed)
    elif evaluate:
        evaluate(0, ensemble)
    for index in range(state.done, training.steps):
        losses = step(ensemble, batches(index))
        state.update(losses)
        done, last = state.done, state.done == training.steps
        if observe:
            observe(done, losses.detach())
        if evaluate and (done % training.evaluate_every == 0 or last):
            evaluate(done, state.result())
        if checkpoints and (done % training.checkpoint_every == 0 or last):
            checkpoints.save(done, state.tensors())
    return state.result()


class _State:
    """Everything that changes while training: weights, their average, the optimiser's moments, who has diverged."""

    def __init__(self, ensemble: Ensemble, training: Training) -> None:
        self.ensemble, self.training = ensemble, training
        self.done = 0
        weights = list(ensemble.weights.values())
        self.optimizer = _OPTIMIZERS[training.optimizer](
            weights,
            lr=training.learning_rate,
            betas=training.betas,
            eps=training.eps,
            weight_decay=training.weight_decay,
            fused=all(weight.is_floating_point() for weight in weights),
        )
        self.average = (
            None
            if training.average is None
            else {name: weight.detach().clone() for name, weight in ensemble.weights.items()}
        )
        # The step at which each member diverged, 0 for those that have not.
        self.diverged = torch.zeros(len(ensemble), dtype=torch.int64, device=weights[0].device)
        self.frozen: dict[str, Tensor] = {}

    def update(self, losses: Tensor) -> None:
        """One optimiser step from one loss a member."""
        if losses.shape != self.diverged.shape:
            raise ArgumentError(
                f"step must return one loss a member, shape ({len(self.ensemble)},), but returned "
                f"{tuple(losses.shape)}: average over the other axes."
            )
        self.optimizer.zero_grad()
        losses.sum().backward()
        gradients = [w.grad for w in self.ensemble.weights.values() if w.grad is not None]
        norms = torch.stack([gradient.reshape(len(self.ensemble), -1).norm(dim=1) for gradient in gradients]).norm(
            dim=0
        )
        self._note_divergence(losses.detach(), norms)
        if self.training.clip is not None:
            self._scale(gradients, (self.training.clip / norms.clamp_min(1e-30)).clamp_max(1.0))
        factor = schedule_factor(self.training.schedule, self.done, self.training.steps, self.training.decay_from)
        self.optimizer.param_groups[0]["lr"] = self.training.learning_rate * factor
        self.optimizer.step()
        self.done += 1
        self._hold_diverged()
        if self.average is not None and self.training.average is not None:
            share = (self.training.average + 1) / (self.training.average + self.done)
            for name, mean in self.average.items():
                mean.lerp_(self.ensemble.weights[name].detach(), share)

    def result(self) -> Ensemble:
        """What training has reached: the averaged weights where an average is kept."""
        return self.ensemble if self.average is None else self.ensemble.with_weights(self.average)

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, for a checkpoint."""
        tensors = {f"weights/{name}": weight.detach() for name, weight in self.ensemble.weights.items()}
        for name, weight in self.ensemble.weights.items():
            tensors |= {f"optimizer/{key}/{name}": value for key, value in self.optimizer.state[weight].items()}
        tensors |= {f"average/{name}": mean for name, mean in (self.average or {}).items()}
        return tensors | {"diverged": self.diverged}

    def restore(self, done: int, tensors: dict[str, Tensor]) -> None:
        """Go on from what `tensors` gave at step ``done``."""
        self.done = done
        with torch.no_grad():
            for name, weight in self.ensemble.weights.items():
                weight.copy_(tensors[f"weights/{name}"])
                keys = [
                    key.split("/")[1] for key in tensors if key.startswith("optimizer/") and key.endswith(f"/{name}")
                ]
                # Fused optimisers count steps on the weights' device.
                moments = {key: tensors[f"optimizer/{key}/{name}"].to(weight.device) for key in keys}
                self.optimizer.state[weight].update(moments)
            for name, mean in (self.average or {}).items():
                mean.copy_(tensors[f"average/{name}"])
            self.diverged.copy_(tensors["diverged"])
        self._freeze()

    def _note_divergence(self, losses: Tensor, norms: Tensor) -> None:
        """Mark members whose loss or gradient is not finite; stop when no member is left."""
        healthy = torch.isfinite(losses) & torch.isfinite(norms)
        if bool(healthy.all()):
            return
        new = ~healthy & (self.diverged == 0)
        self.diverged[new] = self.done + 1
        if bool((self.diverged > 0).all()):
            raise NumericalError(
                f"the training loss must stay finite, but the last of {len(self.ensemble)} members diverged at step "
                f"{self.done + 1} (losses {losses.tolist()}, gradient norms {norms.tolist()}): lower the learning rate "
                "or set clip or token_clip."
            )
        if bool(new.any()):
            members = new.nonzero().flatten().tolist()
            warnings.warn(
                f"members {members} diverged at step {self.done + 1} and keep their weights; the others train on.",
                stacklevel=2,
            )
        self._freeze()

    def _freeze(self) -> None:
        if bool((self.diverged > 0).any()):
            self.frozen = {name: weight.detach().clone() for name, weight in self.ensemble.weights.items()}

    def _hold_diverged(self) -> None:
        """Put diverged members back to their last finite weights, and their moments to zero."""
        if not self.frozen:
            return
        gone = self.diverged > 0
        with torch.no_grad():
            for name, weight in self.ensemble.weights.items():
                weight[gone] = self.frozen[name][gone]
                for moment in self.optimizer.state[weight].values():
                    if moment.ndim == weight.ndim:
                        moment[gone] = 0.0

    @staticmethod
    def _scale(gradients: list[Tensor], factors: Float[Tensor, " members"]) -> None:
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next step rather than hand it back and fault it in again.

    `fit` calls it; so should a training loop of your own, on Linux and CPU. It holds for the whole process, which from
    then on keeps the memory of its peak. A step allocates and frees the same few megabytes: five seeds of five layers
    took 17,000 page faults a step, a third of its time; with this they take none.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            trim_threshold, mmap_threshold = -1, -3
            mallopt(trim_threshold, 2**31 - 1)
            mallopt(mmap_threshold, 2**30)
