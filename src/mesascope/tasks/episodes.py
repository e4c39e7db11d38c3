"""Contexts, queries, episodes and sequences, and the protocols of families, learners and predictors."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, require_instance
from mesascope.shapes import Float, Tensor
from mesascope.streams import generator_on


class Context(NamedTuple):
    """The pairs to learn from: inputs ``x (*batch, n, dx)`` and targets ``y (*batch, n, dy)``."""

    x: Float[Tensor, "*batch n dx"]
    y: Float[Tensor, "*batch n dy"]

    def __repr__(self) -> str:
        return f"Context({_sizes(x=self.x, y=self.y)})"


class Episode(NamedTuple):
    """A batch of tasks: a context, queries ``xq (*batch, m, dx)`` and their targets ``yq (*batch, m, dy)``."""

    context: Context
    xq: Float[Tensor, "*batch m dx"]
    yq: Float[Tensor, "*batch m dy"]

    def to(self, target: torch.dtype | torch.device | str) -> Episode:
        """The same episode with every tensor converted to a dtype or moved to a device."""
        if not isinstance(target, torch.dtype):
            target = generator_on(target).device
        return self.map(lambda tensor: tensor.to(target))

    def map(self, function) -> Episode:
        """Apply ``function`` to each of the four tensors."""
        return Episode(Context(*map(function, self.context)), function(self.xq), function(self.yq))

    def __repr__(self) -> str:
        return f"Episode({_sizes(x=self.context.x, y=self.context.y, xq=self.xq, yq=self.yq)})"

    def part(self, start: int, stop: int | None) -> Episode:
        """The tasks from ``start`` up to ``stop``, or to the end, along the first axis."""
        return self.map(lambda tensor: tensor[start:stop])


def _sizes(**tensors: Any) -> str:
    return ", ".join(f"{name} {tuple(getattr(tensor, 'shape', ()))}" for name, tensor in tensors.items())


@runtime_checkable
class Learner(Protocol):
    """Any function from a context and queries to predictions ``(*batch, m, dy)``, for any leading axes."""

    def __call__(self, context: Context, xq: Tensor) -> Tensor: ...


@runtime_checkable
class Family(Protocol):
    """A distribution over tasks; ``sample`` draws on the generator's device, in float32."""

    def sample(self, batch: int, generator: torch.Generator) -> Episode: ...


@runtime_checkable
class Seeded(Protocol):
    """A family whose tasks depend on the training seed."""

    def seeded(self, seed: int) -> Family: ...


@runtime_checkable
class Predictor(Protocol):
    """Any function from a sequence ``(*batch, t, d)`` to predictions of each next element, of the same shape.

    The prediction at time t depends only on the elements up to t.
    """

    def __call__(self, sequence: Tensor) -> Tensor: ...


@runtime_checkable
class SequenceFamily(Protocol):
    """A distribution over sequences ``(batch, t, d)``; ``sample`` draws on the generator's device, in float32."""

    def sample(self, batch: int, generator: torch.Generator) -> Tensor: ...


def check_sequence(sequence: Tensor) -> None:
    """Raise unless ``sequence`` is a floating-point tensor ``(*batch, t, d)``."""
    require_instance("sequence", sequence, Tensor)
    if not sequence.is_floating_point():
        raise ArgumentTypeError(
            f"sequence must be of a floating-point dtype, but is {sequence.dtype}: convert it, e.g. with .float()."
        )
    if sequence.ndim < 2:
        raise ArgumentError(
            f"sequence must be (*batch, t, d), but is {tuple(sequence.shape)}: add the missing axes, with d = 1 for "
            "single numbers."
        )


def check_inputs(context: Context, xq: Tensor) -> None:
    """Raise if the shapes, dtypes or devices of a context and queries disagree. Reads no values."""
    require_instance("context", context, Context, "pass Context(x, y)")
    x, y = context
    for name, tensor in (("context.x", x), ("context.y", y), ("xq", xq)):
        require_instance(name, tensor, Tensor)
    if not x.is_floating_point() or y.dtype != x.dtype or xq.dtype != x.dtype:
        raise ArgumentTypeError(
            f"context and xq must share one floating-point dtype, but x is {x.dtype}, y {y.dtype} and xq {xq.dtype}: "
            "convert them, e.g. with .float(), and classes to one-hot rows with torch.nn.functional.one_hot."
        )
    if y.device != x.device or xq.device != x.device:
        raise ArgumentError(
            f"context and xq must be on one device, but x is on {x.device}, y on {y.device} and xq on {xq.device}: "
            "move them with .to(device)."
        )
    if x.ndim < 2 or y.ndim != x.ndim or xq.ndim != x.ndim:
        remedy = "add the missing axes, with dy = 1 for a single target"
        if x.ndim > y.ndim >= 2:
            remedy = "flatten each input to a row of numbers, which a model can reshape with torch.nn.Unflatten"
        raise ArgumentError(
            f"context and xq must be (*batch, n, dx), (*batch, n, dy) and (*batch, m, dx), but x is {tuple(x.shape)}, "
            f"y {tuple(y.shape)} and xq {tuple(xq.shape)}: {remedy}."
        )
    if x.shape[:-1] != y.shape[:-1]:
        raise ArgumentError(
            f"context.y must have one row for each row of context.x, but x is {tuple(x.shape)} and y "
            f"{tuple(y.shape)}: pass as many targets as inputs."
        )
    if xq.shape[-1] != x.shape[-1] or xq.shape[:-2] != x.shape[:-2]:
        raise ArgumentError(
            f"xq must agree with context.x in its leading axes and in its last one, but xq is {tuple(xq.shape)} and x "
            f"{tuple(x.shape)}: pass queries (*batch, m, {x.shape[-1]})."
        )


def check_episode(episode: Episode) -> None:
    """Raise if the shapes of an episode disagree or a number is not finite."""
    require_instance("episode", episode, Episode)
    check_inputs(episode.context, episode.xq)
    require_instance("yq", episode.yq, Tensor)
    if episode.yq.shape[:-1] != episode.xq.shape[:-1] or episode.yq.shape[-1] != episode.context.y.shape[-1]:
        raise ArgumentError(
            f"yq must have one answer of context.y's width for each query, but yq is {tuple(episode.yq.shape)} and xq "
            f"{tuple(episode.xq.shape)}: pass answers (*batch, m, {episode.context.y.shape[-1]})."
        )
    for name, tensor in zip(("context.x", "context.y", "xq", "yq"), (*episode.context, *episode[1:]), strict=True):
        if bad := int((~torch.isfinite(tensor)).sum()):
            raise ArgumentError(
                f"{name} must be finite, but {bad} of its {tensor.numel()} values {'is' if bad == 1 else 'are'} not: "
                "remove or impute them before comparing learners."
            )
