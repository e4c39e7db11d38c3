"""One module as many copies, which tasks adapt each their own, and what BatchNorm normalises by meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from mesascope.shapes import Float, Tensor

__all__ = ["BATCH_STATS", "Copies", "copies_of"]

BATCH_STATS = ("transductive", "support", "running")


class Copies:
    """A module with other parameters for each task, and buffers that its calls may write to.

    Tasks run at once, but for convolutions on CPU: with weights of each task's own, these are slower together.
    """

    def __init__(self, model: nn.Module, tasks: int, norms: list[_BatchNorm]) -> None:
        self.model, self.norms = model, norms
        self.buffers = {name: one.expand(tasks, *one.shape).clone() for name, one in model.named_buffers()}
        convolves = any(isinstance(part, _ConvNd) for part in model.modules())
        self.together = next(model.parameters()).device.type != "cpu" or not convolves

    def __call__(self, phi: Mapping[str, Tensor], x: Float[Tensor, "tasks n dx"]) -> Float[Tensor, "tasks n dy"]:
        """What each task's copy says, with parameters ``(tasks, ...)``."""
        state = {**phi, **self.buffers}
        if self.together:
            return vmap(lambda own, part: functional_call(self.model, own, (part,)), randomness="different")(state, x)
        parts = {name: one.unbind() for name, one in state.items()}
        each = [{name: one[task] for name, one in parts.items()} for task in range(len(x))]
        return torch.stack([functional_call(self.model, own, (part,)) for own, part in zip(each, x, strict=True)])

    def keep_statistics(self, forward: Callable[[], object]) -> None:
        """Normalise by the statistics of one batch, that of a forward pass, from here on."""
        momenta = [norm.momentum for norm in self.norms]
        for norm in self.norms:
            norm.momentum = 1.0
        with torch.no_grad():
            forward()
        for norm, momentum in zip(self.norms, momenta, strict=True):
            norm.momentum = momentum
            norm.training = False


@contextmanager
def copies_of(model: nn.Module, tasks: int, batch_stats: str) -> Iterator[Copies]:
    """Copies of ``model`` within, whose own buffers stay as they are; modes of BatchNorm are put back after."""
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    before = [norm.training for norm in norms]
    for norm in norms:
        norm.training = batch_stats != "running"
    try:
        yield Copies(model, tasks, norms)
    finally:
        for norm, training in zip(norms, before, strict=True):
            norm.training = training
