"""Several copies of one learner as one: their weights stacked along a leading axis and run at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from mesascope.errors import ArgumentError
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context

__all__ = ["Ensemble"]

Module = TypeVar("Module", bound=nn.Module)


class Ensemble(Generic[Module]):
    """A learner or predictor whose first axis is the member.

    ``ensemble(context, xq)`` takes x ``(members, *batch, n, dx)``, ``ensemble(sequence)`` ``(members, *batch, t, d)``.

    One small model leaves any machine idle, several at once do not. Works for any torch module that `torch.func.vmap`
    can run; the modules passed in are copied.

    Args:
        members: modules of one architecture.
    """

    def __init__(self, members: Sequence[Module]) -> None:
        if not members:
            raise ArgumentError("members must hold at least one module, but is empty: pass one a seed.")
        self._template = copy.deepcopy(members[0])
        weights, buffers = stack_module_state(list(members))  # type: ignore[arg-type]
        self.weights = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        self.buffers = {name: buffer.detach().clone() for name, buffer in buffers.items()}
        if not self.weights:
            raise ArgumentError(
                f"members must have parameters to train, but {members[0]} has none: pass another module."
            )

    def __len__(self) -> int:
        return next(iter(self.weights.values())).shape[0]

    def __call__(self, *inputs: Context | Tensor) -> Float[Tensor, "members *batch m dy"]:
        if len(self) == 1:  # no vmap for one member: anything a module does is allowed, and shapes stay what they are
            weights, buffers = ({name: t[0] for name, t in part.items()} for part in (self.weights, self.buffers))
            own = [Context(part.x[0], part.y[0]) if isinstance(part, Context) else part[0] for part in inputs]
            return self._call(weights, buffers, *own).unsqueeze(0)
        return vmap(self._call)(self.weights, self.buffers, *inputs)

    def member(self, index: int) -> Module:
        """A copy of member ``index`` as an ordinary module."""
        module = copy.deepcopy(self._template)
        state = {name: tensor[index].detach() for name, tensor in (self.weights | self.buffers).items()}
        module.load_state_dict(state, strict=False)
        return module.to(next(iter(self.weights.values())).device)

    def members(self) -> list[Module]:
        """Copies of all members."""
        return [self.member(index) for index in range(len(self))]

    def with_weights(self, weights: dict[str, Tensor]) -> Ensemble[Module]:
        """The same ensemble with other weights, which it holds without a copy."""
        other = copy.copy(self)
        other.weights = weights
        return other

    def to(self, device: torch.device | str) -> Ensemble[Module]:
        """Move all weights to ``device``, in place."""
        self.weights = {name: w.detach().to(device).requires_grad_() for name, w in self.weights.items()}
        self.buffers = {name: buffer.to(device) for name, buffer in self.buffers.items()}
        self._template.to(device)
        return self

    def _call(self, weights: dict, buffers: dict, *inputs: Context | Tensor) -> Tensor:
        return functional_call(self._template, (weights, buffers), inputs)
