"""Continual-learning methods (rules for learning from one batch of a stream of tasks), and memories of examples.

Several independent members learn at once. Weights, gradients and rates are lists of tensors ``(members, ...)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from scipy.optimize import nnls

from mesascope.errors import refuse, require_count
from mesascope.meta.gradients import Gradient, Tensors, add_
from mesascope.records import register
from mesascope.shapes import Float, Int, Tensor
from mesascope.training.optimizers import clip, member_norms
from mesascope.validate import Count, Positive


class Reservoir:
    """Reservoir sampling: a uniform sample of all examples so far.

    Args:
        size: number of examples kept for each member.

    >>> memory = Reservoir(2)
    >>> memory.add(torch.zeros(1, 5, 3), torch.arange(5)[None], [torch.Generator()])
    >>> memory.draw(10, [torch.Generator()])[0].shape, memory.seen
    (torch.Size([1, 2, 3]), 5)
    """

    def __init__(self, size: int) -> None:
        self.size, self.seen = require_count("size", size), 0
        self.x, self.y = torch.empty(0), torch.empty(0)

    def add(
        self, x: Float[Tensor, "members n d"], y: Int[Tensor, "members n"], generators: Sequence[torch.Generator]
    ) -> None:
        """Add ``n`` examples of each member, one after another."""
        if not self.seen:
            self.x, self.y = x.new_zeros(len(x), self.size, x.shape[2]), y.new_zeros(len(y), self.size)
        chance = torch.stack([torch.rand(x.shape[1], generator=generator) for generator in generators])
        for index in range(x.shape[1]):
            self.seen += 1
            full = self.seen > self.size
            slots = (chance[:, index] * self.seen).int().tolist() if full else [self.seen - 1] * len(x)
            for member, slot in enumerate(slots):
                if slot < self.size:
                    self.x[member, slot], self.y[member, slot] = x[member, index], y[member, index]

    def draw(
        self, count: int, generators: Sequence[torch.Generator]
    ) -> tuple[Float[Tensor, "members m d"], Int[Tensor, "members m"]]:
        """Draw ``count`` different examples of each member, or all if fewer are kept."""
        kept = min(self.seen, self.size)
        rows = torch.stack([torch.randperm(kept, generator=generator)[:count] for generator in generators])
        members = torch.arange(len(rows))[:, None]
        return self.x[members, rows], self.y[members, rows]

    def tensors(self) -> dict[str, Tensor]:
        """Contents for a checkpoint; none before the first examples."""
        return {"x": self.x, "y": self.y, "seen": torch.tensor(self.seen)} if self.seen else {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.seen = int(tensors.get("seen", 0))
        if self.seen and tensors["x"].shape[1] != self.size:
            refuse("memory", f"have {self.size} examples of each member", tensors["x"].shape[1], "load into its method")
        if self.seen:
            self.x, self.y = tensors["x"].clone(), tensors["y"].clone()


class TaskMemory:
    """The last examples of each task.

    Args:
        size: number of examples kept of each task, for each member.
    """

    def __init__(self, size: int) -> None:
        self.size = require_count("size", size)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def add(self, x: Float[Tensor, "members n d"], y: Int[Tensor, "members n"], task: int) -> None:
        if task in self.kept:
            x, y = torch.cat([self.kept[task][0], x], 1), torch.cat([self.kept[task][1], y], 1)
        self.kept[task] = x[:, -self.size :].contiguous(), y[:, -self.size :].contiguous()

    def before(self, task: int) -> list[tuple[Tensor, Tensor]]:
        """Examples of each task other than ``task``."""
        return [pairs for other, pairs in self.kept.items() if other != task]

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{task}/{part}": one for task, pairs in self.kept.items() for part, one in zip("xy", pairs, strict=True)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        tasks = sorted({int(name.split("/")[0]) for name in tensors})
        self.kept = {task: (tensors[f"{task}/x"].clone(), tensors[f"{task}/y"].clone()) for task in tasks}


@dataclass
class Learning:
    """State that a method changes.

    Args:
        weights: the network's weights; changed in place.
        rates: numbers that the method learns, one for each entry of the weights; changed in place.
        memory: past examples, if the method keeps any.
        gradient: computes the mean loss of each member and its gradient from weights, x and y.
        generators: random generators of the current batch, one for each member.
    """

    weights: Tensors
    rates: Tensors
    memory: Any
    gradient: Gradient
    generators: Sequence[torch.Generator] = ()


@runtime_checkable
class ContinualMethod(Protocol):
    """A rule for learning from one batch of a stream."""

    def start(self, weights: Tensors) -> tuple[Tensors, Reservoir | TaskMemory | None]:
        """Return the initial rates and memory."""
        ...

    def learn(
        self, at: Learning, x: Float[Tensor, "members n d"], y: Int[Tensor, "members n"], task: int
    ) -> Float[Tensor, " members"]:
        """Change the weights, and return the loss before any step (LaMAML: after its first inner steps)."""
        ...

    def sparsity_by_parameter(self, rates: Tensors) -> list[Float[Tensor, " members"]]:
        """Share of entries with rate 0, for each parameter; an empty list for methods without rates."""
        ...


@register("method", "online-sgd", of="tasks")
@dataclass(frozen=True)
class OnlineSGD:
    """Gradient descent with ``glances`` steps on each batch.

    >>> OnlineSGD(learning_rate=0.1)
    OnlineSGD(learning_rate=0.1, glances=1)
    """

    learning_rate: Positive = 0.03
    glances: Count = 1

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [], None

    def sparsity_by_parameter(self, rates: Tensors) -> list[Tensor]:
        return []

    def learn(self, at: Learning, x: Tensor, y: Tensor, task: int) -> Tensor:
        losses = []
        for _ in range(self.glances):
            loss, gradient = at.gradient(at.weights, *self._with_past(at, x, y))
            losses.append(loss)
            add_(at.weights, self._direction(at, gradient, task), -self.learning_rate)
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
    """Gradient descent on each batch together with ``replay`` examples drawn from a `Reservoir` of size ``memory``.

    Source: Chaudhry et al. (2019).
    """

    memory: Count = 200
    replay: Count = 10

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [], Reservoir(self.memory)

    def _with_past(self, at: Learning, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return _with_past(at, x, y, self.replay)

    def _keep(self, at: Learning, x: Tensor, y: Tensor, task: int) -> None:
        at.memory.add(x, y, at.generators)


@register("method", "gem", of="tasks")
@dataclass(frozen=True)
class GEM(OnlineSGD):
    """Gradient episodic memory: descent along the gradient, changed as little as needed to raise no past task's loss.

    G has a row per past task: the gradient on up to ``memory`` examples. If G g >= 0, the direction is the gradient g.
    Otherwise it is g + G^T v, where v >= ``margin`` minimises |g + G^T v|^2 + 1e-3 |v|^2, so G (g + G^T v) >= -1e-3 v.

    Source: Lopez-Paz and Ranzato (2017).
    """

    learning_rate: Positive = 0.01
    memory: Count = 10
    margin: Positive = 0.5

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [], TaskMemory(self.memory)

    def _direction(self, at: Learning, gradient: Tensors, task: int) -> Tensors:
        past = [at.gradient(at.weights, *pairs)[1] for pairs in at.memory.before(task)]
        if not past:
            return gradient
        own = _flat(gradient)
        rows = torch.stack([_flat(one) for one in past], 1)  # (members, tasks, entries)
        products = [torch.cat([r @ r.mT, (r @ g)[:, None]], 1) for r, g in zip(rows, own, strict=True)]
        duals = [_dual(one[:, :-1], one[:, -1], self.margin) for one in torch.stack(products).cpu()]  # one transfer
        moved = own + torch.stack([
            r.mT @ v.to(r) if v.any() else torch.zeros_like(g) for r, g, v in zip(rows, own, duals, strict=True)
        ])  # fmt: skip
        parts = moved.split([one[0].numel() for one in gradient], 1)
        return [part.view_as(one) for part, one in zip(parts, gradient, strict=True)]

    def _keep(self, at: Learning, x: Tensor, y: Tensor, task: int) -> None:
        at.memory.add(x, y, task)


@register("method", "mer", of="tasks")
@dataclass(frozen=True)
class MER:
    """Meta-experience replay: steps on single examples, followed by interpolation with the previous weights.

    For each example, ``batches`` times: take a step on each of ``replay`` past examples and on the example, then set
    theta <- theta_before + ``within`` (theta - theta_before). After all repetitions, do the same with ``across`` and
    the weights before the example.

    Source: Riemer et al. (2019), algorithm 1.
    """

    learning_rate: Positive = 0.1
    within: Positive = 0.01
    across: Positive = 1.0
    batches: Count = 5
    memory: Count = 200
    replay: Count = 9

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [], Reservoir(self.memory)

    sparsity_by_parameter = OnlineSGD.sparsity_by_parameter

    def learn(self, at: Learning, x: Tensor, y: Tensor, task: int) -> Tensor:
        first, _ = at.gradient(at.weights, x, y)
        for index in range(x.shape[1]):
            example = x[:, index : index + 1], y[:, index : index + 1]
            start = [one.clone() for one in at.weights]
            for _ in range(self.batches):
                before = [one.clone() for one in at.weights]
                at.gradient.descend(at.weights, *_with_past(at, *example, self.replay), self.learning_rate)
                torch._foreach_lerp_(at.weights, before, 1 - self.within)  # type: ignore[attr-defined]
            torch._foreach_lerp_(at.weights, start, 1 - self.across)  # type: ignore[attr-defined]
            at.memory.add(*example, at.generators)
        return first


@register("method", "la-maml", of="tasks")
@dataclass(frozen=True)
class LaMAML:
    """Look-ahead MAML: a learned rate alpha for each entry; inner and outer steps use alpha_+ = max(alpha, 0).

    For each batch, ``glances`` times: starting from phi = theta, take one step phi <- phi - alpha_+ o grad L(phi) on
    each example. The outer loss L is the loss on the batch and ``replay`` past examples, averaged over the phi after
    each step. To first order, alpha <- alpha - ``learning_rate`` dL/dalpha and theta <- theta - alpha_+ o g, with g the
    mean of L's gradients at each phi. A rate below 0 stays below 0.

    von Oswald (2024) defines L at the last phi only, but the results there, as in Gupta et al., use the mean.

    Args:
        rate: initial alpha.
        clip: bound on the norms of dL/dalpha and of g.

    Source: Gupta et al. (2020); von Oswald (2024), eqs. 4.6 and 4.7.
    """

    learning_rate: Positive = 0.3
    rate: Positive = 0.15
    memory: Count = 200
    replay: Count = 10
    glances: Count = 5
    clip: Positive = 2.0

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [torch.full_like(one, self.rate) for one in weights], Reservoir(self.memory)

    def sparsity_by_parameter(self, rates: Tensors) -> list[Tensor]:
        return [(one == 0).reshape(len(one), -1).float().mean(1) for one in self._applied(rates)]

    def learn(self, at: Learning, x: Tensor, y: Tensor, task: int) -> Tensor:
        losses, members = [], torch.arange(len(x))[:, None]
        for _ in range(self.glances):
            order = torch.stack([torch.randperm(x.shape[1], generator=one) for one in at.generators])
            losses.append(self._glance(at, x[members, order], y[members, order]))
        at.memory.add(x, y, at.generators)
        return losses[0]

    def _glance(self, at: Learning, x: Tensor, y: Tensor) -> Tensor:
        past = _with_past(at, x, y, self.replay)
        found = at.gradient.look_ahead(at.weights, self._applied(at.rates), *past, steps=x.shape[1])
        for rate, one in zip(at.rates, found.by_rates, strict=True):
            one.mul_(self._derivative(rate))
        for gradients in (found.by_rates, found.by_weights):
            clip(gradients, member_norms(gradients), self.clip)
        add_(at.rates, found.by_rates, -self.learning_rate)
        self._step(at, found.by_weights)
        return found.losses

    def _applied(self, rates: Tensors) -> Tensors:
        return [one.clamp(min=0) for one in rates]

    def _derivative(self, rate: Tensor) -> Tensor | float:
        return (rate > 0).to(rate)

    def _step(self, at: Learning, outer: Tensors) -> None:
        torch._foreach_addcmul_(at.weights, self._applied(at.rates), outer, value=-1.0)  # type: ignore[attr-defined]


@register("method", "sync", of="tasks")
@dataclass(frozen=True)
class Sync(LaMAML):
    """La-MAML with one rate ``outer_rate`` for all weights in outer steps; inner steps use the learned rates.

    Source: Gupta et al. (2020).
    """

    outer_rate: Positive = 0.1

    def _step(self, at: Learning, outer: Tensors) -> None:
        add_(at.weights, outer, -self.outer_rate)


@register("method", "sparse-la-maml", of="tasks")
@dataclass(frozen=True)
class SparseLaMAML(LaMAML):
    """La-MAML with rates ``rate`` 1[m >= 0]. Masks are learned straight through, so a mask of 0 can become 1 again.

    Args:
        start_at: initial m; all masks are then 1.

    Source: von Oswald (2024), section 4.4.1.
    """

    start_at: Positive = 0.1

    def start(self, weights: Tensors) -> tuple[Tensors, Any]:
        return [torch.full_like(one, self.start_at) for one in weights], Reservoir(self.memory)

    def _applied(self, rates: Tensors) -> Tensors:
        return [self.rate * (one >= 0).to(one) for one in rates]

    def _derivative(self, rate: Tensor) -> Tensor | float:
        return self.rate


def _with_past(at: Learning, x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``count`` past examples, followed by ``x`` and ``y``."""
    if not at.memory.seen:
        return x, y
    past_x, past_y = at.memory.draw(count, at.generators)
    return torch.cat([past_x, x], 1), torch.cat([past_y, y], 1)


def _flat(gradient: Tensors) -> Float[Tensor, "members entries"]:
    return torch.cat([one.reshape(len(one), -1) for one in gradient], 1)


def _dual(
    products: Float[Tensor, "tasks tasks"], own: Float[Tensor, " tasks"], margin: float
) -> Float[Tensor, " tasks"]:
    """Return v of `GEM`'s direction, given G G^T and G g; 0 if no entry of G g is negative."""
    if not bool((own < 0).any()):
        return torch.zeros_like(own)
    gram = products.double().numpy() + 1e-3 * np.eye(len(products))
    linear = own.double().numpy() + gram.sum(1) * margin
    root = np.linalg.cholesky(gram).T
    free, _ = nnls(root, -np.linalg.solve(root.T, linear))
    return torch.as_tensor(free + margin)
