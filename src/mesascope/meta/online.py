"""Online learning of a stream with unannounced task switches; each batch is evaluated before it is learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mesascope.errors import ArgumentError, one_line, refuse, require_instance
from mesascope.meta.copies import check_task, copies_of, in_words
from mesascope.meta.learner import MetaLearner, MetaLearnerConfig, require_config
from mesascope.meta.maml import are_classes
from mesascope.modes import guarded
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import generator_on, stream
from mesascope.tasks import Context, Episode, accuracy
from mesascope.training import Metrics, ModuleState, ParameterGroup, Training
from mesascope.training.finite import check_data
from mesascope.training.randomness import drawing_from
from mesascope.validate import Count, NonNegative, Positive, Several

# A stream has no last step, so its learning rate must be constant.
_STEADY = Training(learning_rate=1e-3, schedule="constant")


@register("method", "online-descent", of="batches")
@dataclass(frozen=True)
class OnlineDescent:
    """Optimiser steps on each batch: online SGD or Adam, or fine-tuning of given weights.

    Args:
        net: the registered config of the network.
        training: optimiser and constant learning rate.
        steps: number of steps on each batch.
    """

    net: Any
    training: Training = _STEADY
    steps: Count = 1

    def __post_init__(self) -> None:
        _require_classifier(self.net)
        _check(self)

    def state(
        self, seed: int, start: Mapping[str, Tensor] | None = None, device: torch.device | str = "cpu"
    ) -> OnlineDescentState:
        """State for a seed on ``device``, with the weights ``start`` if given."""
        return OnlineDescentState(_network(self.net, seed, start, device), self, seed)


class OnlineDescentState:
    """A network that is evaluated on each batch and then learns from it; BatchNorm uses each batch's statistics."""

    def __init__(self, network: nn.Module, settings: OnlineDescent, seed: int = 0) -> None:
        self.settings = settings
        self._outer = ModuleState(network, _batch_loss, settings.training, seed=seed)

    @guarded
    def update(self, batch: Context) -> Metrics:
        """Evaluate on a batch, then learn from it; return ``accuracy`` and ``loss`` before learning."""
        check_task(batch)
        network = self._outer.result()
        with torch.no_grad(), copies_of(network, 1, "transductive") as copies:
            judged = _judged(network, copies.alone(dict(network.named_parameters()), batch.x), batch)
        for _ in range(self.settings.steps):
            self._outer.update(batch)
        return judged

    def result(self) -> nn.Module:
        return self._outer.result()

    def tensors(self) -> dict[str, Tensor]:
        return self._outer.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._outer.load(tensors)


@register("method", "bayesian-descent", of="batches")
@dataclass(frozen=True)
class BayesianDescent:
    """Bayesian gradient descent: the posterior of each weight, a normal distribution, is the next batch's prior.

    The step size of a weight is proportional to its variance sigma^2, so weights of small variance change little.
    With noise eps ~ N(0, 1) and the gradient g of the mean cross-entropy of a batch at mu + sigma eps, a step is

        mu <- mu - rate sigma^2 E[g],    sigma <- sigma sqrt(1 + a^2) - sigma a,    a = sigma E[g eps] / 2.

    Each batch is evaluated with the mean weights mu before learning. The result is the network with weights mu.

    Args:
        net: the registered config of the network.
        spread: initial sigma of each weight; mu starts at the network's initial weights.
        rate: eta in Zeno et al.; a weight's learning rate is at first ``rate * spread ** 2``.
        samples: number of draws of the weights for each step.
        steps: number of steps on each batch.

    Source: Zeno et al., Task agnostic continual learning using online variational Bayes (2018).
    """

    net: Any
    spread: Positive = 0.02
    rate: Positive = 500.0
    samples: Count = 2
    steps: Count = 1

    def __post_init__(self) -> None:
        _require_classifier(self.net)

    def state(
        self, seed: int, start: Mapping[str, Tensor] | None = None, device: torch.device | str = "cpu"
    ) -> BayesianDescentState:
        """State for a seed on ``device``, with the mean weights ``start`` if given."""
        return BayesianDescentState(_network(self.net, seed, start, device), self, seed)


class BayesianDescentState:
    """A network of mean weights, and their standard deviations; BatchNorm uses each batch's statistics.

    Dropout is off, as weights are random. Running averages of BatchNorm are those of the mean weights.
    """

    def __init__(self, network: nn.Module, settings: BayesianDescent, seed: int = 0) -> None:
        self.settings, self.network, self.seed, self.step = settings, network.eval(), seed, 0
        self.means = {name: one for name, one in network.named_parameters() if one.requires_grad}
        if not self.means:
            refuse("network", "have parameters that require gradients", "frozen", "call requires_grad_()")
        self.spreads = {name: torch.full_like(one, settings.spread) for name, one in self.means.items()}

    @guarded
    def update(self, batch: Context) -> Metrics:
        """Evaluate the mean weights on a batch, then learn from it; return ``accuracy`` and ``loss`` from before."""
        check_task(batch)
        with drawing_from(self.seed, "online", self.step, batch.x.device):
            with torch.no_grad(), copies_of(self.network, 1, "transductive") as copies:
                judged = _judged(self.network, copies.alone(self.means, batch.x), batch)
                for name, one in self.network.named_buffers():
                    one.copy_(copies.buffers[name][0])
            for _ in range(self.settings.steps):
                self._learn(batch)
        self.step += 1
        return judged

    def result(self) -> nn.Module:
        return self.network

    def tensors(self) -> dict[str, Tensor]:
        parts = {"means": self.network.state_dict(), "spreads": self.spreads}
        named = {f"{kind}/{name}": one for kind, part in parts.items() for name, one in part.items()}
        return named | {"batches": torch.tensor(self.step)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.step = int(tensors["batches"])
        self.network.load_state_dict({name: tensors[f"means/{name}"] for name in self.network.state_dict()})
        for name, one in self.spreads.items():
            one.copy_(tensors[f"spreads/{name}"])

    def _learn(self, batch: Context) -> None:
        draws = self.settings.samples
        noise = {name: torch.randn_like(one.expand(draws, *one.shape)) for name, one in self.spreads.items()}
        drawn = {name: (one + self.spreads[name] * noise[name]).detach() for name, one in self.means.items()}
        phi = {name: one.requires_grad_() for name, one in drawn.items()}
        with copies_of(self.network, draws, "transductive") as copies:
            scores = copies(phi, batch.x.expand(draws, *batch.x.shape))
        # The loss is a mean over draws, so the gradients of the draws sum to E[g].
        loss = cross_entropy(scores.flatten(0, 1), batch.y.expand(draws, *batch.y.shape).flatten(0, 1))
        shares = torch.autograd.grad(loss, list(phi.values()), materialize_grads=True)
        with torch.no_grad():
            for (name, mean), share in zip(self.means.items(), shares, strict=True):
                spread = self.spreads[name]
                mean -= self.settings.rate * spread.square() * share.sum(0)
                # sqrt(1 + a^2) - a = exp(-asinh a), which stays above 0 when rounded
                spread *= torch.exp(-torch.asinh(spread * (share * noise[name]).sum(0) / 2))


@register("method", "continual-maml", of="batches")
@dataclass(frozen=True)
class ContinualMAML:
    """MAML on a stream: fast weights learn from each batch, slow weights at each detected task switch.

    A batch starts a new task if its loss after adaptation from the slow weights is ``threshold`` or more below its loss
    with the fast weights. Then the slow weights take one outer step on the old task: they adapt to its first stored
    batch, and the outer loss is the loss on its other stored batches, times 1 - exp(-``modulation`` * loss). The fast
    weights restart from the slow ones. If there is no new task, the fast weights adapt further.

    BatchNorm of an evaluation uses the statistics of its batch, or running averages if ``batch_stats`` is "running".
    With the learner's method "sparse-maml", this is sparse continual MAML; "sparse-relu-maml" gives rectified rates.

    Args:
        learner: config of the network and the method of its inner steps.
        training: optimiser of the outer steps.
        mask_lr: learning rate of the method's learned numbers.
        threshold: gamma in Caccia et al.
        modulation: lambda in Caccia et al.
        kept: number of stored batches of a task.

    Source: Caccia et al. (2020); von Oswald (2024), section 4.4.2.
    """

    learner: MetaLearnerConfig
    training: Training = _STEADY
    mask_lr: Positive = 0.0075
    threshold: NonNegative = 1.5
    modulation: Positive = 1.0
    kept: Several = 4

    def __post_init__(self) -> None:
        _check(self)

    def state(
        self, seed: int, start: Mapping[str, Tensor] | None = None, device: torch.device | str = "cpu"
    ) -> ContinualMAMLState:
        """State for a seed on ``device``, with the learner's weights and masks ``start`` if given."""
        return ContinualMAMLState(_network(self.learner, seed, start, device), self, seed)


class ContinualMAMLState:
    """Slow and fast weights of a `ContinualMAML`, and the stored batches of the current task."""

    def __init__(self, learner: MetaLearner, settings: ContinualMAML, seed: int = 0) -> None:
        self.settings, self.learner = settings, learner
        groups = [ParameterGroup(("method.*",), learning_rate=settings.mask_lr)] if learner.method.numbers else []
        self._outer = ModuleState(learner, self._outer_loss, settings.training, parameter_groups=groups, seed=seed)
        self.seed, self.step = seed, 0
        self.fast: dict[str, Tensor] = {}
        self.task: list[Context] = []
        self._closed: float | None = None  # the sparsity, which only outer steps change

    @guarded
    def update(self, batch: Context) -> Metrics:
        """Evaluate on a batch, then learn from it.

        Return ``accuracy`` and ``loss`` before learning, ``switch`` (0 or 1), and ``closed``, the learner's sparsity.
        """
        check_task(batch)
        self._outer.result()
        with drawing_from(self.seed, "online", self.step, batch.x.device):
            before = _judged(self.learner.model, self._scores(self.fast, batch.x), batch, self.learner.method.loss)
            switch = bool(self.fast) and self._is_new(batch, before["loss"])
            if switch:
                self._learn()
                self.task, self._closed = [], None
            self.fast = self._adapted(batch, None if switch or not self.fast else self.fast)
        self.step += 1
        self.task = [*self.task, batch][: self.settings.kept]
        if self._closed is None:
            self._closed = self.learner.sparsity()
        return {**before, "switch": float(switch), "closed": self._closed}

    def result(self) -> MetaLearner:
        return self._outer.result()

    def tensors(self) -> dict[str, Tensor]:
        named = self._outer.tensors() | {f"fast/{name}": one for name, one in self.fast.items()}
        named["batches"] = torch.tensor(self.step)
        for place, one in enumerate(self.task):
            named |= {f"task/{place}/x": one.x, f"task/{place}/y": one.y}
        return named

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        own = ("fast", "task", "batches")
        self._outer.load({key: one for key, one in tensors.items() if key.split("/")[0] not in own})
        self.step, self._closed = int(tensors["batches"]), None
        device = next(self.learner.parameters()).device
        tensors = {key: one.to(device, copy=True) for key, one in tensors.items() if key.startswith(("fast/", "task/"))}
        self.fast = {key.removeprefix("fast/"): one for key, one in tensors.items() if key.startswith("fast/")}
        kept = range(sum(key.startswith("task/") for key in tensors) // 2)
        self.task = [Context(*(tensors[f"task/{place}/{part}"] for part in "xy")) for place in kept]

    def _is_new(self, batch: Context, loss: float) -> bool:
        """True if the loss after adaptation from the slow weights is at least the threshold below ``loss``."""
        if loss < self.settings.threshold:
            return False
        fresh = self._adapted(batch, None)
        found = self.learner.method.loss(self._scores(fresh, batch.x), batch.y)
        return float(found) + self.settings.threshold <= loss

    def _learn(self) -> None:
        """Take one outer step on the old task, if it has at least two stored batches."""
        if len(self.task) > 1:
            first, *rest = self.task
            x, y = (torch.cat([getattr(one, part) for one in rest]) for part in "xy")
            self._outer.update(Episode(Context(first.x[None], first.y[None]), x[None], y[None]))

    def _outer_loss(self, learner: MetaLearner, episode: Episode) -> Float[Tensor, ""]:
        loss = learner.loss(episode)
        return loss * (1 - torch.exp(-self.settings.modulation * loss.detach()))

    def _adapted(self, batch: Context, start: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        found = self.learner.method.adapted_to(self.learner.model, batch, start)
        return {name: one.detach() for name, one in found.items()}

    def _scores(self, phi: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Predictions; BatchNorm uses the statistics of ``x``, or running averages if batch_stats is "running"."""
        with torch.no_grad(), copies_of(self.learner.model, 1, self.learner.method.batch_stats) as copies:
            return copies.alone(phi, x)


def _check(settings: OnlineDescent | ContinualMAML) -> None:
    if settings.training.schedule != "constant":
        refuse("schedule", "be constant, as a stream has no last step", settings.training.schedule, "pass constant")


def _require_classifier(config: Any) -> None:
    require_config("net", config)
    if isinstance(config, MetaLearnerConfig):
        refuse("net", "not be a meta-learner, which needs contexts", "MetaLearnerConfig", "pass ContinualMAML it")


def _network(config: Any, seed: int, start: Mapping[str, Tensor] | None, device: torch.device | str) -> Any:
    network = config.build(stream(seed, "init")).to(generator_on(device).device)
    if start is not None:
        require_instance("start", start, Mapping, "pass a state_dict")
        try:
            network.load_state_dict(start)
        except RuntimeError as error:
            raise ArgumentError(
                f"start must be weights of this network, but is not ({one_line(error)}): pass a state_dict."
            ) from None
    return network


def _batch_loss(network: nn.Module, batch: Context) -> Float[Tensor, ""]:
    return cross_entropy(network(batch.x), batch.y)


def _judged(
    model: nn.Module, scores: Tensor, batch: Context, loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
) -> dict[str, float]:
    """Loss and accuracy; raise if the loss is not finite and the batch is the cause."""
    words = f"net must return a score for each class of targets {tuple(batch.y.shape)} of {batch.y.dtype}"
    with in_words(model, lambda: words):
        found = [loss(scores, batch.y), accuracy(scores, batch.y)]
        if loss is cross_entropy and batch.y.is_floating_point():
            found.append(are_classes(batch.y).to(scores))
        lost, right, *valid = torch.stack(found).tolist()  # one transfer from the device
    if valid == [0.0]:
        refuse("batch.y", "hold classes", "other numbers", "pass indices, or one-hot rows")
    if not math.isfinite(lost):
        check_data(None, batch, False)
    return {"loss": lost, "accuracy": right}
