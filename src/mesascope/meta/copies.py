"""One module as many copies, which tasks adapt each their own, and what BatchNorm normalises by meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from mesascope.errors import ArgumentError, MesascopeError
from mesascope.shapes import Float, Tensor
from mesascope.tasks.asking import label

__all__ = ["BATCH_STATS", "Copies", "copies_of", "in_words"]

BATCH_STATS = ("transductive", "support", "running")


class Copies:
    """A module with other parameters for each task, and buffers that its calls may write to.

    Tasks run at once, but for modules that vmap cannot run, and convolutions on CPU: with weights of each task's own,
    these are slower together.
    """

    def __init__(self, model: nn.Module, tasks: int, norms: list[_BatchNorm]) -> None:
        self.model, self.norms = model, norms
        self.buffers = {name: one.expand(tasks, *one.shape).clone() for name, one in model.named_buffers()}
        convolves = any(isinstance(part, _ConvNd) for part in model.modules())
        self.together = tasks > 1 and (next(model.parameters()).device.type != "cpu" or not convolves)

    def __call__(self, phi: Mapping[str, Tensor], x: Float[Tensor, "tasks n dx"]) -> Float[Tensor, "tasks n dy"]:
        """What each task's copy says, with parameters ``(tasks, ...)``."""
        state = {**phi, **self.buffers}
        if self.together:
            try:
                return vmap(lambda own, part: functional_call(self.model, own, (part,)), randomness="different")(
                    state, x
                )
            except RuntimeError:  # it looks at values, say; one after the other it says what else may be wrong
                self.together = False
        parts = {name: one.unbind() for name, one in state.items()}
        each = [{name: one[task] for name, one in parts.items()} for task in range(len(x))]
        with in_words(self.model, lambda: f"model must read inputs {tuple(x.shape[1:])} of a task"):
            return torch.stack([functional_call(self.model, own, (part,)) for own, part in zip(each, x, strict=True)])

    def alone(self, phi: Mapping[str, Tensor], x: Float[Tensor, "n dx"]) -> Float[Tensor, "n dy"]:
        """What the copy of a single task says."""
        return self({name: one[None] for name, one in phi.items()}, x[None])[0]

    def after(
        self, phi: Mapping[str, Tensor], x: Float[Tensor, "tasks n dx"], xq: Float[Tensor, "tasks m dx"]
    ) -> Tensor:
        """What each task's copy says of ``xq`` where BatchNorm normalises by the statistics of ``x``."""
        count = x.shape[1]
        hooks = [norm.register_forward_hook(_normalised_by(count)) for norm in self.norms]
        try:
            return self(phi, torch.cat([x, xq], 1))[:, count:]
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def in_words(module: nn.Module, rule: Callable[[], str]) -> Iterator[None]:
    """What torch says of a module that breaks a rule, as a sentence; ``rule`` is only then asked for its words."""
    try:
        yield
    except (MesascopeError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        raise ArgumentError(f"{rule()}, but {label(module)} does not ({error}): build it for these.") from error


@contextmanager
def copies_of(model: nn.Module, tasks: int, batch_stats: str) -> Iterator[Copies]:
    """Copies of ``model`` within, whose own buffers stay as they are; modes of BatchNorm are put back after."""
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
    if batch_stats == "running" and any(norm.running_mean is None for norm in norms):
        raise ArgumentError(
            "batch_stats must not be 'running' for a model whose BatchNorm keeps no running averages "
            "(track_running_stats=False): pass 'transductive' or 'support'."
        )
    before = [norm.training for norm in norms]
    for norm in norms:
        norm.training = batch_stats != "running"
    try:
        yield Copies(model, tasks, norms)
    finally:
        for norm, training in zip(norms, before, strict=True):
            norm.training = training


def _normalised_by(count: int) -> Callable[[_BatchNorm, tuple[Tensor], Tensor], Tensor]:
    """What BatchNorm says where it takes its statistics of the first ``count`` examples alone, with their gradient."""

    def hook(norm: _BatchNorm, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        (x,) = inputs
        over = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = torch.var_mean(x[:count], over, correction=0, keepdim=True)
        found = (x - mean) * (variance + norm.eps).rsqrt()
        if not norm.affine:
            return found
        shape = (1, -1, *[1] * (x.ndim - 2))
        return found * norm.weight.view(shape) + norm.bias.view(shape)

    return hook
