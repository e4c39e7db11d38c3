"""What BatchNorm normalises by while a module adapts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mesascope.shapes import Tensor

__all__ = ["BATCH_STATS", "Buffers", "batch_statistics"]

BATCH_STATS = ("transductive", "support", "running")


class Buffers:
    """Copies of a module's buffers, which its forward passes may write to."""

    def __init__(self, model: nn.Module, layers: list[_BatchNorm]) -> None:
        self.layers = layers
        self.tensors: dict[str, Tensor] = {name: one.clone() for name, one in model.named_buffers()}

    def taken_from(self, forward: Callable[[], object]) -> None:
        """The statistics of one batch, that of a forward pass, from here on."""
        momenta = [layer.momentum for layer in self.layers]
        for layer in self.layers:
            layer.momentum = 1.0
        with torch.no_grad():
            forward()
        for layer, momentum in zip(self.layers, momenta, strict=True):
            layer.momentum = momentum
            layer.training = False


@contextmanager
def batch_statistics(model: nn.Module, kind: str) -> Iterator[Buffers]:
    """Buffers for calls of ``model`` within, whose own stay as they are; modes of BatchNorm are put back after."""
    layers = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    before = [layer.training for layer in layers]
    for layer in layers:
        layer.training = kind != "running"
    try:
        yield Buffers(model, layers)
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.training = training
