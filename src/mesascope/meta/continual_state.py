"""Continual learning of a stream of tasks, as a training state for `fit`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple

import torch
from torch import nn

from mesascope.errors import ArgumentTypeError, refuse, require_count, require_instance
from mesascope.meta.continual import ContinualMethod, Learning
from mesascope.meta.copies import in_words
from mesascope.meta.gradients import Gradient, MLPGradient, losses_of
from mesascope.modes import guarded
from mesascope.modules import names_of
from mesascope.nets import MLP
from mesascope.nets.points import is_hooked
from mesascope.shapes import Float, Int, Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, accuracy
from mesascope.training import Ensemble, Metrics
from mesascope.training.ensemble import Module
from mesascope.training.finite import check_data
from mesascope.training.optimizers import load_tensors, trainable
from mesascope.training.randomness import drawing_from


class ContinualBatch(NamedTuple):
    """The next examples of each member's stream, and the index of their task."""

    x: Float[Tensor, "members n d"]
    y: Int[Tensor, "members n"]
    task: int


class ContinualState(Generic[Module]):
    """State of members that learn from a stream batch by batch, with a continual-learning method.

    BatchNorm uses the statistics of each batch during learning, and running averages in the result.

    Args:
        members: classifiers from ``(n, d)`` to ``(n, classes)``, or their ensemble, which is trained in place.
        method: a `ContinualMethod`, such as `LaMAML`.
        seeds: seed of each member's random draws. Dropout of all members draws from the first.

    >>> from mesascope.meta import OnlineSGD
    >>> from mesascope.nets import ClassifierConfig
    >>> from mesascope.tasks import RotatedDigits
    >>> from mesascope.training import Training, fit
    >>> tasks = RotatedDigits(samples=500, queries=100).sample(2, stream(0, "tasks")).map(lambda part: part[None])
    >>> net = ClassifierConfig("mlp", width=50, size=8, classes=10).build(stream(0, "init"))
    >>> state = ContinualState([net], OnlineSGD(0.1), [0])
    >>> learned = fit(state, lambda step: batch_of(tasks, step, 10), Training(steps=100, batch=10))
    >>> retained_accuracy(learned, tasks).shape
    torch.Size([1, 2])
    """

    @guarded
    def __init__(
        self, members: Sequence[Module] | Ensemble[Module], method: ContinualMethod, seeds: Sequence[int]
    ) -> None:
        require_instance("method", method, ContinualMethod)
        if isinstance(method, type):
            raise ArgumentTypeError(f"method must be a method, but is the class {method.__name__}: pass an instance.")
        self.ensemble = members if isinstance(members, Ensemble) else Ensemble(members)
        require_instance("seeds", seeds, Sequence, "pass [0], say")
        seeds = [require_count("a seed", seed, least=0) for seed in seeds]
        if len(seeds) != len(self.ensemble):
            refuse("seeds", f"have one entry per member ({len(self.ensemble)})", seeds, "pass as many")
        self.method, self.seeds, self.step = method, seeds, 0
        self.ensemble.module.train()
        self._learned = trainable(self.ensemble.weights)
        with torch.no_grad():
            rates, memory = method.start(list(self._learned.values()))
        names = [name for each in names_of(self.ensemble.module).values() for name in each]
        whole = _is_plain(self.ensemble.module) and list(self._learned) == names
        gradient = MLPGradient() if whole else Gradient(self._gradient)
        self._at = Learning([one.detach() for one in self._learned.values()], rates, memory, gradient)
        self._diverged = [0] * len(self.ensemble)

    @guarded
    def update(self, batch: ContinualBatch) -> Metrics:
        """Learn from a batch, and return the ``loss`` that the method's ``learn`` returns."""
        self._check(batch)
        if batch.x.device.type == "cpu":  # on other devices, reading values before learning would wait for them
            check_data(self.step + 1, batch, True)
        self._at.generators = [stream(seed, "continual", self.step) for seed in self.seeds]
        rule = "members must learn examples of {} numbers in classes {} to {}, also one at a time"
        words = in_words(self.ensemble.module, lambda: rule.format(batch.x.shape[-1], *map(int, batch.y.aminmax())))
        with drawing_from(self.seeds[0], "model", self.step, batch.x.device), words:
            losses = self.method.learn(self._at, *batch).cpu()  # one transfer from the device
        self.step += 1
        if not math.isfinite(losses.sum()):
            check_data(self.step, batch, True)
        for member, loss in enumerate(losses.tolist()):
            if not math.isfinite(loss) and not self._diverged[member]:
                self._diverged[member] = self.step
                warnings.warn(f"member {member} diverged at step {self.step}; the others continue.", stacklevel=2)
        return {"loss": losses}

    def sparsity_by_parameter(self) -> list[dict[str, float]]:
        """Share of entries with rate 0, for each member and parameter; empty for methods without rates."""
        shares = dict(zip(self._learned, self.method.sparsity_by_parameter(self._at.rates), strict=False))
        return [{name: float(one[member]) for name, one in shares.items()} for member in range(len(self.seeds))]

    def result(self) -> Ensemble[Module]:
        found = self.ensemble.with_weights(self._parts()["weights"])
        found.diverged = tuple(self._diverged)
        found.module.eval()
        return found

    def tensors(self) -> dict[str, Tensor]:
        parts = self._parts() | {"memory": {} if self._at.memory is None else self._at.memory.tensors()}
        named = {f"{kind}/{name}": one for kind, part in parts.items() for name, one in part.items()}
        return named | {"step": torch.tensor(self.step), "diverged": torch.tensor(self._diverged)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for kind, part in self._parts().items():
            load_tensors(part, kind, tensors)
        if self._at.memory is not None:
            device = self._at.weights[0].device
            memory = {name: one for name, one in tensors.items() if name.startswith("memory/")}
            kept = {name.removeprefix("memory/"): one.to(device) for name, one in memory.items()}
            self._at.memory.load(kept)
        self.step = int(tensors["step"])
        self._diverged = tensors.get("diverged", torch.zeros(len(self.ensemble), dtype=torch.long)).tolist()

    def _check(self, batch: ContinualBatch) -> None:
        require_instance("batch", batch, ContinualBatch, "make one with batch_of, say")
        x, y, task = batch
        if x.ndim < 3 or not x.numel() or y.shape != x.shape[:2] or len(x) != len(self.seeds) or y.dtype != torch.int64:
            rule = f"have examples x ({len(self.seeds)}, n, d) and their classes y ({len(self.seeds)}, n) as int64"
            shapes = f"x {tuple(x.shape)}, y {tuple(y.shape)} {y.dtype}"
            refuse("batch", rule, shapes, "pass a batch of each member's stream")
        if not isinstance(task, int):
            refuse("task", "be the index of the batch's task", task, "pass a whole number", ArgumentTypeError)

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        weights = self.ensemble.weights | dict(zip(self._learned, self._at.weights, strict=True))
        rates = dict(zip(self._learned, self._at.rates, strict=False))  # some methods have no rates
        return {"weights": weights, "rates": rates, "buffers": self.ensemble.buffers}

    def _gradient(self, weights: Sequence[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        leaves = [one.detach().requires_grad_() for one in weights]
        self.ensemble.module.train()
        members = self.ensemble.with_weights(self.ensemble.weights | dict(zip(self._learned, leaves, strict=True)))
        scores, replaced = members.in_turn(x)
        self.ensemble.buffers.update({name: buffer.detach() for name, buffer in replaced.items()})
        losses = losses_of(scores, y)
        return losses.detach(), torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)


def _is_plain(module: nn.Module) -> bool:
    """True for an `MLP` of unchanged linear layers without hooks, for which `MLPGradient` is right."""
    plain = type(module) is MLP and all(type(one) is nn.Linear and one.bias is not None for one in module.layers)
    return plain and not any(map(is_hooked, module.modules()))


def batch_of(tasks: Episode, step: int, size: int, passes: int = 1) -> ContinualBatch:
    """Batch at one step of streams ``(members, tasks, n, d)``; each task is repeated ``passes`` times before the next.

    Args:
        tasks: stacked episodes, one for each member.
        step: counted from 0; below tasks * passes * n / size.
        size: number of examples of each member; must divide n.
    """
    size, passes = require_count("size", size), require_count("passes", passes)
    require_instance("tasks", tasks, Episode)
    if tasks.context.x.ndim != 4:
        refuse("tasks", "be (members, tasks, n, d)", tuple(tasks.context.x.shape), "add a first axis of members")
    count = tasks.context.x.shape[2]
    if count % size:
        refuse("size", f"divide the {count} examples of a task", size, "pass another")
    step = require_count("step", step, least=0)
    steps = tasks.context.x.shape[1] * passes * count // size
    if step >= steps:
        refuse("step", f"be below the {steps} batches of the stream", step, "draw more tasks, or take fewer steps")
    task, place = divmod(step, passes * count // size)
    rows = slice(place * size % count, place * size % count + size)
    return ContinualBatch(tasks.context.x[:, task, rows], tasks.context.y[:, task, rows].argmax(-1), task)


def retained_accuracy(ensemble: Ensemble, tasks: Episode) -> Float[Tensor, "members tasks"]:
    """Accuracy of each member on the queries of each task of its stream ``(members, tasks, n, d)``."""
    with torch.no_grad():
        found = [accuracy(ensemble(tasks.xq[:, task]), tasks.yq[:, task]) for task in range(tasks.xq.shape[1])]
    return torch.stack(found, 1)
