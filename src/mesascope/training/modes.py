"""Modes of a module: train() in updates, eval() in evaluation."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import nn


class Modes:
    """Put a module into train() mode for updates and into eval() mode for everything else.

    A part in eval() mode within a module in train() mode, such as a frozen BatchNorm, stays in eval() mode in updates.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._held = [part for part in module.modules() if module.training and not part.training]
        self._updating = False

    def update(self) -> None:
        """Set the modes for updates."""
        if self._updating:
            return
        self._module.train()
        for part in self._held:
            part.training = False
        self._updating = True

    def evaluate(self) -> None:
        """Set eval() mode for the module and all its parts."""
        self._module.eval()
        self._updating = False


@contextmanager
def evaluating(learner: Any) -> Iterator[None]:
    """Put a module into eval() mode (dropout off, running averages used), and restore its modes at the end.

    ``learner`` may also be a method of one, a ``functools.partial``, or a wrapper with the attribute ``learner``, such
    as that of `mesascope.adapters.record`.
    """
    module = learner
    while isinstance(module, functools.partial | MethodType):
        module = module.func if isinstance(module, functools.partial) else module.__self__
    module = module if isinstance(module, nn.Module) else getattr(module, "learner", None)
    before = [(part, part.training) for part in module.modules()] if isinstance(module, nn.Module) else []
    try:
        if isinstance(module, nn.Module):
            module.eval()
        yield
    finally:
        for part, training in before:
            part.training = training
