"""Loss and accuracy on the same tasks before and after a training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, accuracy
from mesascope.tasks.calling import copied, takes
from mesascope.training.plan import Training
from mesascope.training.randomness import drawing_from, generator_states, load_generators

# A model is worse if the change exceeds this many standard errors, and this share of the initial value.
_ERRORS, _SHARE = 4.0, 0.02


def evaluate(model: Any, loss: Callable[[Any, Any], Tensor], batch: Any) -> dict[str, Float[Tensor, " members"]]:
    """Loss, and accuracy for classes, of a model or each member; empty unless the batch is tasks or real sequences."""
    if not isinstance(batch, Episode) and not (isinstance(batch, Tensor) and batch.is_floating_point()):
        return {}
    module = getattr(model, "module", model)  # the module of an ensemble
    generators, device = generator_states(module), next(module.parameters()).device
    with drawing_from(0, "judged", 0, device):
        own = batch.map(copied) if isinstance(batch, Episode) else copied(batch)  # a model may overwrite its inputs
        found = {"loss": loss(model, own).detach().flatten()}
        if isinstance(batch, Episode) and _one_hot(batch.yq) and takes(model, (batch.context, batch.xq)):
            own = batch.map(copied)
            answers = model(own.context, own.xq)
            if answers.shape == batch.yq.shape:
                right = accuracy(answers.detach(), batch.yq)
                found["accuracy"] = right.reshape(len(found["loss"]), -1).mean(1)
    load_generators(module, generators)
    return found


class BeforeAndAfter:
    """Evaluate the model on the batches of the first 5 to 10 steps, before and after the training.

    The training uses these same batches. Nothing is evaluated if ``state`` has no method ``evaluate``, or if the
    training has fewer than 100 steps or is resumed.
    """

    def __init__(self, state: Any, batch_at: Callable[[int], Any], plan: Training, done: int) -> None:
        self.state, self.draw, self.plan = state, batch_at, plan
        count = min(10, plan.steps // 20) if not done and hasattr(state, "evaluate") else 0
        self.batches = [batch_at(step) for step in range(count if count >= 5 else 0)]
        self.before: dict[str, Tensor] = {}
        with suppress(Exception):  # errors of the model and the loss are raised at the first step
            self.before = self._judged()

    def batch_at(self, step: int) -> Any:
        """The batch of a step, counted from 0."""
        return self.batches[step] if step < len(self.batches) else self.draw(step)

    def warn(self) -> None:
        """Warn if a model is significantly worse than before the training."""
        if not self.before:
            return
        after = self._judged()
        name = "accuracy" if "accuracy" in self.before else "loss"
        before, change = self.before[name], after[name] - self.before[name]
        error = change.std(0) / len(change) ** 0.5
        worse = change.mean(0) * (-1 if name == "accuracy" else 1)
        for member in (worse > (_ERRORS * error).maximum(_SHARE * before.mean(0).abs())).nonzero().flatten().tolist():
            who = "the model" if len(worse) == 1 else f"member {member}"
            warnings.warn(
                f"training has made {who} worse: on the tasks of the first {len(change)} steps the {name} was "
                f"{before.mean(0)[member]:.3g} before and is {after[name].mean(0)[member]:.3g} after (standard error "
                f"of the change {error[member]:.1g}); lower the learning rate of Training "
                f"({self.plan.learning_rate:g}), draw more tasks per step, or change inner_lr of a meta-learner.",
                stacklevel=3,
            )

    def _judged(self) -> dict[str, Tensor]:
        each = [self.state.evaluate(batch) for batch in self.batches]
        return {name: torch.stack([one[name] for one in each]).cpu().double() for name in (each[0] if each else ())}


def _one_hot(answers: Tensor) -> bool:
    return answers.shape[-1] > 1 and bool(((answers == 0) | (answers == 1)).all() and (answers.sum(-1) == 1).all())
