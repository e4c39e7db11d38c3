"""Copies of a module, one for each task, and the statistics that their BatchNorm uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from mesascope.errors import ArgumentError, MesascopeError, refuse, require_instance
from mesascope.modules import at_once, hooks_count, out_of_memory, require_initialised, run_with
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs
from mesascope.tasks.calling import label, require_tensor

BATCH_STATS = ("transductive", "support", "running")


class Copies:
    """A module with separate parameters and buffers for each task.

    vmap runs the tasks in parallel. Modules that vmap cannot run, or would slow down (convolutions on CPU), run task by
    task. Calls that are differentiated ``twice`` use slower `operations`.
    """

    def __init__(self, model: nn.Module, tasks: int, norms: list[_BatchNorm], twice: bool) -> None:
        self.model, self.norms, self.twice = model, norms, twice
        self.buffers = {name: one.expand(tasks, *one.shape).clone() for name, one in model.named_buffers()}
        convolves = any(isinstance(part, _ConvNd) for part in model.modules())
        self.together = tasks > 1 and (next(model.parameters()).device.type != "cpu" or not convolves)

    def __call__(self, phi: Mapping[str, Tensor], x: Float[Tensor, "tasks n dx"]) -> Float[Tensor, "tasks n dy"]:
        """Predictions of each task's copy, with parameters ``(tasks, ...)``."""
        words = in_words(self.model, lambda: f"model must read inputs {tuple(x.shape[1:])} of a task")
        with words, operations(self.model, self.twice):
            if not self.together:
                return self._in_turn(phi, x)
            state = {**phi, **{name: one.clone() for name, one in self.buffers.items()}}
            answers, self.buffers = at_once(
                self.model, self._call, (state, x.clone()), lambda: (self._in_turn(phi, x), self.buffers)
            )
            return answers

    def _in_turn(self, phi: Mapping[str, Tensor], x: Tensor) -> Tensor:
        parts = {name: one.unbind() for name, one in {**phi, **self.buffers}.items()}
        each = [{name: one[task] for name, one in parts.items()} for task in range(len(x))]
        found = [self._call(own, part.clone()) for own, part in zip(each, x, strict=True)]
        self.buffers = {name: torch.stack([own[name] for _, own in found]) for name in self.buffers}
        return torch.stack([answer for answer, _ in found])

    def _call(self, state: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Prediction of one copy, and its buffers after the call."""
        answer, replaced = run_with(self.model, state, (x,))
        after = {name: one.detach() for name, one in (state | replaced).items() if name in self.buffers}
        return require_tensor(self.model, answer), after

    def alone(self, phi: Mapping[str, Tensor], x: Float[Tensor, "n dx"]) -> Float[Tensor, "n dy"]:
        """Predictions of the copy of a single task."""
        return self({name: one[None] for name, one in phi.items()}, x[None])[0]

    def after(self, phi: Mapping[str, Tensor], x: Tensor, xq: Tensor) -> Float[Tensor, "tasks m dy"]:
        """Predictions of each task's copy for ``xq``, with BatchNorm using the statistics of ``x``."""
        count = x.shape[1]
        hooks = [norm.register_forward_hook(_normalised_by(count, count + xq.shape[1])) for norm in self.norms]
        try:
            with hooks_count():
                return self(phi, torch.cat([x, xq], 1))[:, count:]
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def operations(model: nn.Module, twice: bool) -> Iterator[None]:
    """Within this context, calls of ``model`` can be differentiated, with ``twice`` two times.

    Then attention, recurrent layers and weight norm use slower operations: torch's fused ones have no second derivative
    or a wrong one.
    """
    if not twice:
        yield
        return
    recurs = any(isinstance(part, nn.RNNBase) for part in model.modules())
    before = torch.backends.cudnn.enabled  # cudnn.flags would also read TF32, which studies set in another way
    torch.backends.cudnn.enabled = before and not recurs
    try:
        with sdpa_kernel(SDPBackend.MATH), _WeightNormByFormula():
            yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def in_words(model: Any, rule: Callable[[], str]) -> Iterator[None]:
    """Reword torch's errors within this context as an `ArgumentError` that starts with ``rule()``, or is about memory.

    Args:
        model: module or function that is named in the sentence.
    """
    try:
        yield
    except MesascopeError:
        raise
    except (RuntimeError, IndexError, ValueError, MemoryError) as error:
        if out_of_memory(error):
            raise ArgumentError(
                f"the tasks must fit into memory, but {label(model)} ran out of it: pass fewer tasks or examples at "
                "once, or smaller ones."
            ) from error
        raise ArgumentError(f"{rule()}, but {label(model)} does not ({error}): build it for these.") from error


@contextmanager
def copies_of(model: nn.Module, tasks: int, batch_stats: str, twice: bool = False) -> Iterator[Copies]:
    """Yield copies of ``model``; its buffers do not change, and BatchNorm modes are restored after the context."""
    require_initialised("model", model)
    with normalising(model, batch_stats) as norms:
        yield Copies(model, tasks, norms, twice)


@contextmanager
def normalising(model: nn.Module, batch_stats: str) -> Iterator[list[_BatchNorm]]:
    """Within this context, BatchNorm layers use these statistics; yields the layers, whose modes are restored."""
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
        yield norms
    finally:
        for norm, training in zip(norms, before, strict=True):
            norm.training = training


def check_task(context: Context) -> None:
    """Raise unless a context is one task's: inputs ``(n, ...)`` and as many targets ``(n,)`` or ``(n, dy)``, n > 0."""
    require_instance("context", context, Context, "pass Context(x, y)")
    for part in context:
        require_instance("context", part, Tensor, "pass tensors")
    x, y = context
    if x.ndim < 2 or y.ndim not in (1, 2) or not 0 < len(x) == len(y):
        refuse("context", "be (n, dx) and (n, dy)", (tuple(x.shape), tuple(y.shape)), "pass one task's")


def tasks_of(context: Context, xq: Tensor) -> tuple[Context, Tensor]:
    """Contexts and queries with any leading axes, or none, as a batch with one first axis of tasks."""
    check_inputs(context, xq)
    lead = xq.ndim - 2
    if not context.x.shape[-2]:
        refuse("context", "have at least one pair", tuple(context.x.shape), "pass a longer one")
    x, y, xq = (one.reshape(math.prod(one.shape[:lead]), *one.shape[lead:]) for one in (*context, xq))
    return Context(x, y), xq


@contextmanager
def recording() -> Iterator[None]:
    """Record gradients within this context, in any of torch's modes."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def plain_tensors(*tensors: Tensor) -> list[Tensor]:
    """Tensors that autograd can save: copies of inference-mode tensors, other tensors unchanged."""
    return [one.clone() if one.is_inference() else one for one in tensors]


def _normalised_by(count: int, examples: int) -> Callable[[_BatchNorm, tuple[Tensor], Tensor], Tensor]:
    """BatchNorm hook that normalises by differentiable statistics of only the first ``count`` of all examples.

    An input may have several rows for each example, in the order of examples.
    """

    def hook(norm: _BatchNorm, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        (x,) = inputs
        if len(x) % examples:
            rule = f"see as many rows of each of {examples} examples for batch_stats='support'"
            refuse("BatchNorm", rule, f"{len(x)} rows", "choose other batch_stats")
        over = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = torch.var_mean(x[: count * len(x) // examples], over, correction=0, keepdim=True)
        found = (x - mean) * (variance + norm.eps).rsqrt()
        if not norm.affine:
            return found
        shape = (1, -1, *[1] * (x.ndim - 2))
        return found * norm.weight.view(shape) + norm.bias.view(shape)

    return hook


class _WeightNormByFormula(TorchFunctionMode):
    """Weight norm computed as v g / |v|; torch's own second derivative wrongly treats |v| as a constant."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._weight_norm:  # type: ignore[attr-defined]
            v, g, *dim = args
            return v * (g / torch.norm_except_dim(v, 2, *dim))  # type: ignore[attr-defined]
        return func(*args, **(kwargs or {}))
