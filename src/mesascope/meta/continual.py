"""Methods that learn tasks one after another: each is one rule for what to do with a batch of a stream.

They work on the weights of several members at once; nothing couples members. Weights, gradients and rates are lists of
tensors ``(members, ...)``, one a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from scipy.optimize import nnls

from mesascope.errors import require_count, require_number
from mesascope.meta.gradients import Gradient, Tensors
from mesascope.meta.memory import Reservoir, TaskMemory
from mesascope.records import register
from mesascope.shapes import Float, Int, Tensor
from mesascope.training.optimizers import clip_factor

__all__ = [
    "GEM",
    "MER",
    "ContinualMethod",
    "ExperienceReplay",
    "LaMAML",
    "Learning",
    "OnlineSGD",
    "SparseLaMAML",
    "Sync",
]


@dataclass
class Learning:
    """What a method works on.

    Args:
        weights: of the network; changed in place.
        rates: what the method learns for each entry of the weights; changed in place.
        memory: what the method keeps of the past, where it does.
        gradient: of weights, x and y: the mean loss of each member and its gradient.
        generators: of all that is drawn for a batch, one a member.
    """

    weights: Tensors
    rates: Tensors
    memory: Reservoir | TaskMemory | None
    gradient: Gradient
    generators: Sequence[torch.Generator] = ()


@runtime_checkable
class ContinualMethod(Protocol):
    """A rule by which members learn from one batch of a stream."""

    def start(self, weights: Tensors) -> tuple[Tensors, Reservoir | TaskMemory | None]:
        """The rates and the memory that learning starts with."""
        ...

    def learn(
        self, at: Learning, x: Float[Tensor, "members n d"], y: Int[Tensor, "members n"], task: int
    ) -> Float[Tensor, " members"]:
        """Change the weights, and return a loss of the batch: of LaMAML and its kind the outer one."""
        ...

    def closed(self, rates: Tensors) -> list[Float[Tensor, " members"]]:
        """The share of each parameter's entries that learning does not change."""
        ...


@register("method", "online-sgd", of="tasks")
@dataclass(frozen=True)
class OnlineSGD:
    """Gradient descent on each batch as it comes, ``glances`` steps.

    >>> OnlineSGD(learning_rate=0.1)
    OnlineSGD(learning_rate=0.1, glances=1)
    """

    learning_rate: float = 0.03
    glances: int = 1

    def __post_init__(self) -> None:
        _check(self)

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [], None

    def closed(self, rates: Tensors) -> list[Tensor]:
        return []

    def learn(self, at: Learning, x: Tensor, y: Tensor, task: int) -> Tensor:
        losses = []
        for _ in range(self.glances):
            loss, gradient = at.gradient(at.weights, *self._with_past(at, x, y))
            losses.append(loss)
            _add(at.weights, self._direction(at, gradient, task), -self.learning_rate)
        self._keep(at, x, y, task)
        return losses[0]

    def _with_past(self, at: Learning, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y

    def _direction(self, at: Learning, gradient: Tensors, task: int) -> Tensors:
        return gradient

    def _keep(self, at: Learning, x: Tensor, y: Tensor, task: int) -> None:
        pass


@register("method", "experience-replay", of="tasks")
@dataclass(frozen=True)
class ExperienceReplay(OnlineSGD):
    """Gradient descent on each batch together with ``replay`` examples of the past, drawn from a reservoir.

    Source: Chaudhry et al. (2019).
    """

    memory: int = 200
    replay: int = 10

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [], Reservoir(self.memory)

    def _with_past(self, at: Learning, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return _with_past(at, x, y, self.replay)

    def _keep(self, at: Learning, x: Tensor, y: Tensor, task: int) -> None:
        _reservoir(at).add(x, y, at.generators)


@register("method", "gem", of="tasks")
@dataclass(frozen=True)
class GEM(OnlineSGD):
    """Gradient descent along the nearest direction that raises the loss of no past task: gradient episodic memory.

    The direction is g + G^T v, with v >= ``margin`` the least that gives G (g + G^T v) >= 0, and G the gradients on
    ``memory`` examples of each past task.

    Source: Lopez-Paz and Ranzato (2017).
    """

    learning_rate: float = 0.01
    memory: int = 10
    margin: float = 0.5

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [], TaskMemory(self.memory)

    def _direction(self, at: Learning, gradient: Tensors, task: int) -> Tensors:
        assert isinstance(at.memory, TaskMemory)
        past = [at.gradient(at.weights, *pairs)[1] for pairs in at.memory.before(task)]
        if not past:
            return gradient
        own = _flat(gradient)
        rows = torch.stack([_flat(one) for one in past], 1)  # (members, tasks, entries)
        moved = own + torch.stack([
            torch.zeros_like(g) if not bool((r @ g < 0).any()) else r.mT @ _dual(r, g, self.margin)
            for r, g in zip(rows, own, strict=True)
        ])  # fmt: skip
        parts = moved.split([one[0].numel() for one in gradient], 1)
        return [part.view_as(one) for part, one in zip(parts, gradient, strict=True)]

    def _keep(self, at: Learning, x: Tensor, y: Tensor, task: int) -> None:
        assert isinstance(at.memory, TaskMemory)
        at.memory.add(x, y, task)


@register("method", "mer", of="tasks")
@dataclass(frozen=True)
class MER:
    """Steps on single examples, of which the weights go only a part of the way: meta-experience replay.

    For each example ``batches`` times: steps on it and on ``replay`` of the past, one by one, then
    theta <- theta_before + ``within`` (theta - theta_before); after all of them likewise with ``across``.

    Source: Riemer et al. (2019), algorithm 1.
    """

    learning_rate: float = 0.1
    within: float = 0.01
    across: float = 1.0
    batches: int = 5
    memory: int = 200
    replay: int = 9

    def __post_init__(self) -> None:
        _check(self)

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [], Reservoir(self.memory)

    def closed(self, rates: Tensors) -> list[Tensor]:
        return []

    def learn(self, at: Learning, x: Tensor, y: Tensor, task: int) -> Tensor:
        first, _ = at.gradient(at.weights, x, y)
        for index in range(x.shape[1]):
            example = x[:, index : index + 1], y[:, index : index + 1]
            start = [one.clone() for one in at.weights]
            for _ in range(self.batches):
                before = [one.clone() for one in at.weights]
                at.gradient.descend(at.weights, *_with_past(at, *example, self.replay), self.learning_rate)
                _go_back(at.weights, before, self.within)
            _go_back(at.weights, start, self.across)
            _reservoir(at).add(*example, at.generators)
        return first


@register("method", "la-maml", of="tasks")
@dataclass(frozen=True)
class LaMAML:
    """Look-ahead MAML: learned rates alpha of each entry, in inner steps and in the outer one alike.

    ``glances`` times a batch: from phi = theta one step phi <- phi - alpha_+ o grad L(phi) on each of its examples. The
    outer loss is that of the batch and of ``replay`` examples of the past, its mean over the phi after each step; to
    first order it moves the rates, alpha <- alpha - ``learning_rate`` dL/dalpha, and with the mean g of its gradients
    theta <- theta - alpha_+ o g. A rate that falls below 0 stays there.

    The thesis writes the loss at the last phi alone; its numbers, and Gupta et al.'s, are of the mean.

    Args:
        rate: alpha at the start.
        clip: bound on the norm of the gradients of the outer step.

    Source: Gupta et al. (2020); thesis, eqs. 4.6 and 4.7.
    """

    learning_rate: float = 0.3
    rate: float = 0.15
    memory: int = 200
    replay: int = 10
    glances: int = 5
    clip: float = 2.0

    def __post_init__(self) -> None:
        _check(self)

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [torch.full_like(one, self.rate) for one in weights], Reservoir(self.memory)

    def closed(self, rates: Tensors) -> list[Tensor]:
        return [(one == 0).flatten(1).float().mean(1) for one in self._applied(rates)]

    def learn(self, at: Learning, x: Tensor, y: Tensor, task: int) -> Tensor:
        losses, members = [], torch.arange(len(x))[:, None]
        for _ in range(self.glances):
            order = torch.stack([torch.randperm(x.shape[1], generator=one) for one in at.generators])
            losses.append(self._glance(at, x[members, order], y[members, order]))
        _reservoir(at).add(x, y, at.generators)
        return losses[0]

    def _glance(self, at: Learning, x: Tensor, y: Tensor) -> Tensor:
        found = at.gradient.look_ahead(
            at.weights, self._applied(at.rates), *_with_past(at, x, y, self.replay), steps=x.shape[1]
        )
        for rate, one in zip(at.rates, found.by_rates, strict=True):
            one.mul_(self._derivative(rate))
        _add(at.rates, _clipped(found.by_rates, self.clip), -self.learning_rate)
        self._step(at, _clipped(found.by_weights, self.clip))
        return found.losses

    def _applied(self, rates: Tensors) -> Tensors:
        """What gradients are multiplied by."""
        return [one.clamp(min=0) for one in rates]

    def _derivative(self, rate: Tensor) -> Tensor | float:
        """Of what gradients are multiplied by."""
        return (rate > 0).to(rate)

    def _step(self, at: Learning, outer: Tensors) -> None:
        _add_products(at.weights, self._applied(at.rates), outer, -1.0)


@register("method", "sync", of="tasks")
@dataclass(frozen=True)
class Sync(LaMAML):
    """La-MAML whose outer step has one rate for all weights, ``outer_rate``: rates serve the look ahead alone.

    Source: Gupta et al. (2020).
    """

    outer_rate: float = 0.1

    def _step(self, at: Learning, outer: Tensors) -> None:
        _add(at.weights, outer, -self.outer_rate)


@register("method", "sparse-la-maml", of="tasks")
@dataclass(frozen=True)
class SparseLaMAML(LaMAML):
    """La-MAML with rates ``rate`` 1[m >= 0]: masks that are learned straight through, so that entries open again.

    Args:
        start_at: m at the start: all entries are open.

    Source: thesis, section 4.4.1.
    """

    start_at: float = 0.1

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [torch.full_like(one, self.start_at) for one in weights], Reservoir(self.memory)

    def _applied(self, rates: Tensors) -> Tensors:
        return [self.rate * (one >= 0).to(one) for one in rates]

    def _derivative(self, rate: Tensor) -> Tensor | float:
        return self.rate


def _check(method: Any) -> None:
    """Numbers are above 0, and counts at least 1."""
    for field in fields(method):
        value = getattr(method, field.name)
        require_count(field.name, value) if field.type == "int" else require_number(field.name, value, above=0)


def _reservoir(at: Learning) -> Reservoir:
    assert isinstance(at.memory, Reservoir)
    return at.memory


def _with_past(at: Learning, x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Examples of the past, and then these."""
    memory = _reservoir(at)
    if not memory.seen:
        return x, y
    past_x, past_y = memory.draw(count, at.generators)
    return torch.cat([past_x, x], 1), torch.cat([past_y, y], 1)


def _add(to: Tensors, others: Tensors, factor: float = 1.0) -> None:
    for one, other in zip(to, others, strict=True):
        one.add_(other, alpha=factor)


def _add_products(to: Tensors, first: Tensors, second: Tensors, factor: float) -> None:
    for one, a, b in zip(to, first, second, strict=True):
        one.addcmul_(a, b, value=factor)


def _go_back(weights: Tensors, before: Tensors, share: float) -> None:
    """Leave weights a share of the way from where they were before."""
    for one, old in zip(weights, before, strict=True):
        one.lerp_(old, 1 - share)


def _clipped(gradients: Tensors, most: float) -> Tensors:
    """Each member's gradient brought to the norm ``most`` where it is longer, in place."""
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in gradients]).norm(dim=0)
    factors = clip_factor(norms, most)
    return [one.mul_(factors.view(-1, *[1] * (one.ndim - 1))) for one in gradients]


def _flat(gradient: Tensors) -> Float[Tensor, "members entries"]:
    return torch.cat([one.flatten(1) for one in gradient], 1)


def _dual(
    rows: Float[Tensor, "tasks entries"], own: Float[Tensor, " entries"], margin: float
) -> Float[Tensor, " tasks"]:
    """The v >= margin that minimises |own + rows^T v|."""
    gram = (rows @ rows.mT).double().cpu().numpy()
    gram += 1e-3 * np.eye(len(gram))
    linear = (rows @ own).double().cpu().numpy() + gram.sum(1) * margin
    root = np.linalg.cholesky(gram).T
    free, _ = nnls(root, -np.linalg.solve(root.T, linear))
    return torch.as_tensor(free + margin).to(own)
