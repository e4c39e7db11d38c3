"""Learning a stream whose task switches at times that nobody tells: each batch is judged before it is learned from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mesascope.errors import refuse, require_count, require_instance, require_number
from mesascope.meta.config import MetaLearnerConfig, require_config
from mesascope.meta.copies import copies_of
from mesascope.meta.learner import MetaLearner
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, accuracy
from mesascope.training import Metrics, ModuleState, ParameterGroup, Training
from mesascope.training.randomness import drawing_from

__all__ = ["ContinualMAML", "ContinualMAMLState", "OnlineDescent", "OnlineDescentState"]


@register("method", "online-descent", of="batches")
@dataclass(frozen=True)
class OnlineDescent:
    """Steps of an optimiser on each batch as it comes: online SGD or Adam, or fine-tuning from weights of before.

    Args:
        net: the registered config of the network.
        training: optimiser and learning rate, which stays: a stream has no last step.
        steps: on each batch.
    """

    net: Any
    training: Training = field(default_factory=lambda: Training(learning_rate=1e-3, schedule="constant"))
    steps: int = 1

    def __post_init__(self) -> None:
        require_config("net", self.net)
        _check(self)
        require_count("steps", self.steps)

    def state(
        self, seed: int, start: Mapping[str, Tensor] | None = None, device: torch.device | str = "cpu"
    ) -> OnlineDescentState:
        """The state of a seed on ``device``, from weights of ``start`` if there are any."""
        network = self.net.build(stream(seed, "init")).to(device)
        if start is not None:
            network.load_state_dict(start)
        return OnlineDescentState(network, self, seed)


class OnlineDescentState:
    """A network that is judged on each batch and then learns from it; BatchNorm normalises by batches throughout."""

    def __init__(self, network: nn.Module, settings: OnlineDescent, seed: int = 0) -> None:
        self.settings = settings
        self._outer = ModuleState(network, _batch_loss, settings.training, seed=seed)

    def update(self, batch: Context) -> Metrics:
        """Judge a batch, and learn from it: ``accuracy`` and ``loss`` are of before."""
        network = self._outer.result()
        with torch.no_grad(), copies_of(network, 1, "transductive") as copies:
            judged = _judged(copies.alone(dict(network.named_parameters()), batch.x), batch)
        for _ in range(self.settings.steps):
            self._outer.update(batch)
        return judged

    def result(self) -> nn.Module:
        """The network, in eval() mode."""
        return self._outer.result()

    def tensors(self) -> dict[str, Tensor]:
        """All that changes, by name, for a checkpoint."""
        return self._outer.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        self._outer.load(tensors)


@register("method", "continual-maml", of="batches")
@dataclass(frozen=True)
class ContinualMAML:
    """MAML on a stream: fast weights learn from each batch, and slow ones where a task is found to have ended.

    A batch begins a new task where weights adapted to it from the slow ones lose less on it than the fast ones by
    ``threshold`` or more. Then what was kept of the old task gives one outer step: the slow weights adapt to its first
    batch, and learn from their loss on the others, weighed by 1 - exp(-``modulation`` * loss); the fast weights start
    again from the slow ones. Otherwise they go on.

    With a learner of method "sparse-maml" it is sparse continual MAML, with "sparse-relu-maml" the one of rectified
    rates.

    Args:
        learner: the network and the method of its inner steps.
        training: of the outer steps.
        mask_lr: of what the method learns besides.
        threshold: gamma.
        modulation: lambda.
        kept: batches of a task that are kept.

    Source: Caccia et al. (2020); thesis, section 4.4.2.
    """

    learner: MetaLearnerConfig
    training: Training = field(default_factory=lambda: Training(learning_rate=1e-3, schedule="constant"))
    mask_lr: float = 0.0075
    threshold: float = 1.5
    modulation: float = 1.0
    kept: int = 4

    def __post_init__(self) -> None:
        require_instance("learner", self.learner, MetaLearnerConfig)
        _check(self)
        for name in ("mask_lr", "modulation"):
            require_number(name, getattr(self, name), above=0)
        require_number("threshold", self.threshold, least=0)
        require_count("kept", self.kept, least=2)

    def state(
        self, seed: int, start: Mapping[str, Tensor] | None = None, device: torch.device | str = "cpu"
    ) -> ContinualMAMLState:
        """The state of a seed on ``device``, from a learner's weights and masks of ``start`` if there are any."""
        learner = self.learner.build(stream(seed, "init")).to(device)
        if start is not None:
            learner.load_state_dict(start)
        return ContinualMAMLState(learner, self, seed)


class ContinualMAMLState:
    """The slow and the fast weights of a `ContinualMAML`, and what it keeps of the current task."""

    def __init__(self, learner: MetaLearner, settings: ContinualMAML, seed: int = 0) -> None:
        self.settings, self.learner = settings, learner
        groups = [ParameterGroup(("method.*",), learning_rate=settings.mask_lr)] if learner.method.numbers else []
        self._outer = ModuleState(learner, self._outer_loss, settings.training, parameter_groups=groups, seed=seed)
        self.seed, self.step = seed, 0
        self.fast: dict[str, Tensor] = {}
        self.task: list[Context] = []

    def update(self, batch: Context) -> Metrics:
        """Judge a batch, and learn from it: ``accuracy`` and ``loss`` are of before, ``switch`` is 1 at a new task."""
        self._outer.result()
        with drawing_from(self.seed, "online", self.step, batch.x.device):
            self.step += 1
            return self._updated(batch)

    def _updated(self, batch: Context) -> Metrics:
        before = _judged(self._scores(self.fast, batch.x), batch)
        switch = bool(self.fast) and self._is_new(batch, before["loss"])
        if switch:
            self._learn()
            self.task = []
        self.fast = self._adapted(batch, None if switch or not self.fast else self.fast)
        self.task = [*self.task, batch][: self.settings.kept]
        return {**before, "switch": float(switch), "closed": self.learner.closed()}

    def result(self) -> MetaLearner:
        """The learner with its slow weights, in eval() mode."""
        return self._outer.result()

    def tensors(self) -> dict[str, Tensor]:
        """All that changes, by name, for a checkpoint."""
        named = self._outer.tensors() | {f"fast/{name}": one for name, one in self.fast.items()}
        named |= {"batches": torch.tensor(self.step)}
        for place, one in enumerate(self.task):
            named |= {f"task/{place}/x": one.x, f"task/{place}/y": one.y}
        return named

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        own = ("fast", "task", "batches")
        self._outer.load({key: one for key, one in tensors.items() if key.split("/")[0] not in own})
        self.step = int(tensors["batches"])
        self.fast = {key.removeprefix("fast/"): one.clone() for key, one in tensors.items() if key.startswith("fast/")}
        kept = range(sum(key.startswith("task/") for key in tensors) // 2)
        self.task = [Context(*(tensors[f"task/{place}/{part}"].clone() for part in "xy")) for place in kept]

    def _is_new(self, batch: Context, loss: float) -> bool:
        """Whether fresh weights lose less by the threshold, which takes as much to lose."""
        if loss < self.settings.threshold:
            return False
        fresh = self._adapted(batch, None)
        return float(cross_entropy(self._scores(fresh, batch.x), batch.y)) + self.settings.threshold <= loss

    def _learn(self) -> None:
        """One outer step on the task that has ended, if more than its first batch was kept."""
        if len(self.task) > 1:
            first, *rest = self.task
            x, y = (torch.cat([getattr(one, part) for one in rest]) for part in "xy")
            self._outer.update(Episode(Context(first.x[None], first.y[None]), x[None], y[None]))

    def _outer_loss(self, learner: MetaLearner, episode: Episode) -> Float[Tensor, ""]:
        loss = learner.loss(episode)
        return loss * (1 - torch.exp(-self.settings.modulation * loss.detach()))

    def _adapted(self, batch: Context, start: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        found = self.learner.method.adapt(self.learner.model, batch, start)
        return {name: one.detach() for name, one in found.items()}

    def _scores(self, phi: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """BatchNorm normalises by running averages where the method says so, and else by what is judged."""
        with torch.no_grad(), copies_of(self.learner.model, 1, self.learner.method.batch_stats) as copies:
            return copies.alone(phi, x)


def _check(settings: OnlineDescent | ContinualMAML) -> None:
    require_instance("training", settings.training, Training)
    if settings.training.schedule != "constant":
        refuse("schedule", "be constant, as a stream has no last step", settings.training.schedule, "pass constant")


def _batch_loss(network: nn.Module, batch: Context) -> Float[Tensor, ""]:
    return cross_entropy(network(batch.x), batch.y)


def _judged(scores: Tensor, batch: Context) -> dict[str, float]:
    return {"loss": float(cross_entropy(scores, batch.y)), "accuracy": float(accuracy(scores, batch.y))}
