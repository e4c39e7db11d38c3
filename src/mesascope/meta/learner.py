"""A module and the method that adapts it, as one learner."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mesascope.errors import require_instance
from mesascope.meta.maml import MAML
from mesascope.nets.layers import module_text
from mesascope.nets.pretrained import Pretrained
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, check_inputs

__all__ = ["MetaLearner"]


class MetaLearner(Pretrained):
    """A torch module that a method adapts to each context before it predicts.

    `ModuleState` with `MetaLearner.loss` trains the module's parameters and the method's numbers.

    Args:
        model: from inputs ``(n, dx)`` to predictions ``(n, dy)``; it is neither subclassed nor patched.
        method: `MAML` or a subclass.
        generator: draws the method's initial numbers; see `Modulation`.

    >>> from mesascope.meta import SparseMAML
    >>> from mesascope.streams import stream
    >>> from mesascope.tasks import FewShotImages
    >>> from mesascope.training import ModuleState, Training, fit
    >>> family = FewShotImages(ways=2, shots=5)
    >>> learner = MetaLearner(nn.Linear(64, 2), SparseMAML(1.0, steps=3), stream(0, "init"))
    >>> plan = Training(steps=100, learning_rate=0.01)
    >>> state = ModuleState(learner, MetaLearner.loss, plan)
    >>> trained = fit(state, lambda step: family.sample(4, stream(0, "train", step)), plan)
    >>> tasks = family.sample(20, stream(0, "test"))
    >>> (trained(tasks.context, tasks.xq).argmax(-1) == tasks.yq.argmax(-1)).float().mean() > 0.8
    tensor(True)
    """

    config: Any = None

    def __init__(self, model: nn.Module, method: MAML, generator: torch.Generator | None = None) -> None:
        super().__init__()
        require_instance("model", model, nn.Module)
        require_instance("method", method, MAML)
        self.model, self.method = model, method
        if generator is not None or method.names is None:  # its numbers must exist before training
            method.start(model, stream(0, "modulation") if generator is None else generator)

    def __repr__(self) -> str:
        return super().__repr__() if self.config is None else module_text(self)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        """Predictions of each task's queries, with gradients in train() mode."""
        check_inputs(context, xq)
        lead = xq.shape[:-2]
        x, y, queries = (part.reshape(-1, *part.shape[-2:]) for part in (*context, xq))
        if not len(queries):
            return queries.new_zeros(*lead, xq.shape[-2], context.y.shape[-1])
        answers = self.method.predicted(self.model, Context(x, y), queries)
        found = answers.reshape(*lead, *answers.shape[1:])
        return found if self.training else found.detach()

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        """Outer loss of a batch of tasks."""
        return self.method.outer_loss(self.model, episode)

    def gradient_sparsity(self) -> dict[str, float]:
        """Share of each parameter's entries that inner steps do not change."""
        return self.method.gradient_sparsity(self.model)

    def closed(self) -> float:
        """Share of all entries that inner steps do not change."""
        shares, sizes = self.gradient_sparsity(), {name: one.numel() for name, one in self.model.named_parameters()}
        return sum(shares[name] * size for name, size in sizes.items()) / sum(sizes.values())
