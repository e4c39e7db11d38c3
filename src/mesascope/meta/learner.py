"""Meta-learners (a module and a method that adapts it), their config, and the outer loss of an ensemble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.modules.batchnorm import _BatchNorm

from mesascope.errors import ArgumentTypeError, refuse, require_choice, require_instance
from mesascope.meta.copies import in_words, normalising, operations, recording, tasks_of
from mesascope.meta.maml import ANIL, BOIL, MAML, ExpMAML, MetaSGD, SparseMAML, SparseReLUMAML
from mesascope.meta.preconditioning import MetaCurvature, MTNet, Shrinkage, SparseMAMLPlus
from mesascope.modules import run_with
from mesascope.nets import ClassifierConfig
from mesascope.nets.pretrained import Pretrained
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode
from mesascope.training import Ensemble
from mesascope.validate import Positive, Whole

METHODS: dict[str, type[MAML]] = {
    "maml": MAML, "anil": ANIL, "boil": BOIL, "meta-sgd": MetaSGD, "exp-maml": ExpMAML, "sparse-maml": SparseMAML,
    "sparse-maml-plus": SparseMAMLPlus, "sparse-relu-maml": SparseReLUMAML, "meta-curvature": MetaCurvature,
    "mt-net": MTNet, "shrinkage": Shrinkage,
}  # fmt: skip
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross-entropy": cross_entropy, "mean-squares": mse_loss}


class MetaLearner(Pretrained):
    """A torch module that a method adapts to each context before it predicts.

    `ModuleState` with `MetaLearner.loss` trains the module's parameters and the method's learned numbers.

    Args:
        model: a module from inputs ``(n, dx)`` to predictions ``(n, dy)``; it is neither subclassed nor patched.
        method: `MAML` or a subclass; one that has started for another model of these shapes shares its learned numbers.
        generator: draws the initial values of the method's learned numbers (see `Modulation`); with seed 0 if None.

    >>> from mesascope.meta import SparseMAML
    >>> from mesascope.streams import stream
    >>> from mesascope.tasks import FewShotImages
    >>> from mesascope.training import ModuleState, Training, fit
    >>> family = FewShotImages(ways=2, shots=5)
    >>> learner = MetaLearner(nn.Linear(64, 2), SparseMAML(1.0, steps=3), stream(0, "init"))
    >>> plan = Training(steps=100, learning_rate=0.01)
    >>> state = ModuleState(learner, MetaLearner.loss, plan)
    >>> trained = fit(state, lambda step: family.sample(4, stream(0, "train", step)), plan)
    >>> tasks = family.sample(20, stream(0, "test"))
    >>> (trained(tasks.context, tasks.xq).argmax(-1) == tasks.yq.argmax(-1)).float().mean() > 0.8
    tensor(True)
    """

    def __init__(self, model: nn.Module, method: MAML, generator: torch.Generator | None = None) -> None:
        super().__init__()
        require_instance("model", model, nn.Module)
        require_instance("method", method, MAML)
        require_instance("generator", generator, torch.Generator | None, "pass stream(0, 'init'), say")
        self.model, self.method = model, method
        if generator is not None or method.names is None:  # learned numbers must exist before training
            method.start(model, stream(0, "modulation") if generator is None else generator)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        """Predictions of each task's queries, with gradients in train() mode, or if the tasks require them."""
        tasks, queries = tasks_of(context, xq)
        if not queries.shape[0] * queries.shape[1]:
            return queries.new_zeros(*xq.shape[:-1], context.y.shape[-1])
        answers = self.method.predicted(self.model, tasks, queries)
        found = answers.reshape(*xq.shape[:-2], *answers.shape[1:])
        asked = torch.is_grad_enabled() and any(one.requires_grad for one in (*context, xq))
        return found if self.training or asked else found.detach()

    @property
    def trains_by(self) -> str:
        """Name of the loss that `train` needs for a classifier; its default compares scores by squares."""
        return "mesascope.meta.outer_loss" if self.method.compares_classes else ""

    def loss(self, episode: Episode) -> Float[Tensor, ""]:
        require_instance("learner", self, MetaLearner, "pass outer_loss for an ensemble")
        return self.method.outer_loss(self.model, episode)

    def clone(self) -> TaskCopy:
        """Return a copy of the module for one task, to adapt with your own losses.

        >>> from mesascope.meta import SparseMAML
        >>> learner, x, y = MetaLearner(nn.Linear(3, 1), SparseMAML(0.1, steps=5)), torch.randn(8, 3), torch.randn(8, 1)
        >>> task = learner.clone()
        >>> for _ in range(2):
        ...     task.adapt(mse_loss(task(x), y))
        >>> mse_loss(task(x), y).backward()  # the outer loss: gradients for the module and the method
        >>> all(one.grad is not None for one in learner.parameters())
        True
        """
        return TaskCopy(self.model, self.method)

    def sparsity_by_parameter(self) -> dict[str, float]:
        return self.method.sparsity_by_parameter(self.model)

    def sparsity(self) -> float:
        """Share of all entries that inner steps do not change."""
        shares, sizes = self.sparsity_by_parameter(), {name: one.numel() for name, one in self.model.named_parameters()}
        return sum(shares[name] * size for name, size in sizes.items()) / sum(sizes.values())


class TaskCopy:
    """The module of a `MetaLearner` with the parameters phi of one task.

    Calls run the module with phi. BatchNorm uses the statistics of each call's batch, or its running averages if
    `MAML`'s ``batch_stats`` is "running"; "support" is refused, as calls do not tell a context from queries. Gradients
    flow to the learner's parameters, up to the method's order. The module and its buffers do not change.
    """

    def __init__(self, model: nn.Module, method: MAML) -> None:
        if method.batch_stats == "support" and any(isinstance(part, _BatchNorm) for part in model.modules()):
            remedy = "choose transductive or running, or call the learner with a context"
            refuse("batch_stats", "not be support for a copy, whose calls do not tell queries", "support", remedy)
        self._model, self._method, self._factors = model, method, method.factors(model)
        self._buffers = {name: one.clone() for name, one in model.named_buffers()}
        with recording():  # views, so that only losses of this copy depend on them
            self.parameters: dict[str, Tensor] = {
                name: one.view_as(one) if one.requires_grad else one.detach().clone().requires_grad_()
                for name, one in method.adapted(model).items()
            }
        """Adapted parameters phi by name; other parameters are the module's own."""

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        words = in_words(self._model, lambda: "model must read the inputs of this call")
        modes = normalising(self._model, self._method.batch_stats)
        with words, operations(self._model, self._method.order == 2), modes:
            answer, replaced = run_with(self._model, {**self.parameters, **self._buffers}, inputs, named)
        self._buffers |= {name: one.detach() for name, one in replaced.items()}
        return answer

    def adapt(self, loss: Float[Tensor, ""]) -> None:
        """Take an inner step on a loss of this copy's predictions: phi <- phi - factor o grad loss.

        Raises:
            ArgumentError: the loss has several entries, is not finite, or does not depend on this copy.
        """
        require_instance("loss", loss, Tensor)
        if loss.numel() != 1:
            refuse("loss", "be one number", tuple(loss.shape), "average it")
        if not loss.isfinite():
            refuse("loss", "be finite", loss.item(), "check the task, or lower the inner learning rate")
        phi, found = self.parameters, ()
        if not loss.requires_grad and not torch.is_grad_enabled():
            refuse("loss", "be computed while gradients are recorded", "without", "leave torch.no_grad()")
        if loss.requires_grad:
            second = self._method.order == 2
            found = torch.autograd.grad(loss, list(phi.values()), create_graph=second, allow_unused=True)
        if all(one is None for one in found):
            refuse("loss", "depend on predictions of this copy", loss.item(), "compute it from what the copy returns")
        steps = [torch.zeros_like(one) if own is None else own for one, own in zip(phi.values(), found, strict=True)]
        theta, fixed = self._method.adapted(self._model), self._method.order == 1
        moved = {name: (one - theta[name]).detach() if fixed else one - theta[name] for name, one in phi.items()}
        inner = self._method.regularised(dict(zip(phi, steps, strict=True)), moved)
        change = self._method.changes(self._factors, inner)
        self.parameters = {name: one - change[name] for name, one in phi.items()}


@register("net", "meta-learner", of="learner")
@dataclass(frozen=True)
class MetaLearnerConfig:
    """Config of a `MetaLearner`.

    Args:
        model: the registered config of the adapted network.
        method: one of `METHODS`.
        inner_lr, steps, order, norms, batch_stats: see `MAML`.
        closed: share of mask entries that are initially 0, for sparse-maml only; a half if None.
        loss: name of the inner and outer loss in `LOSSES`.
    """

    model: Any = field(default_factory=ClassifierConfig)
    method: str = "sparse-maml"
    inner_lr: Positive = 0.1
    steps: Whole = 5
    order: int = 1
    norms: bool = True
    batch_stats: str = "transductive"
    closed: float | None = None
    loss: str = "cross-entropy"

    def __post_init__(self) -> None:
        require_config("model", self.model)
        require_choice("method", self.method, METHODS)
        require_choice("loss", self.loss, LOSSES)
        if self.closed is not None and self.method != "sparse-maml":
            refuse("closed", f"be None for {self.method}", self.closed, "leave it out, or choose sparse-maml")
        self._made()

    def build(self, generator: torch.Generator | None = None) -> MetaLearner:
        """Build the network and its method, with initial weights and masks from ``generator``."""
        learner = MetaLearner(self.model.build(generator), self._made(), generator)
        learner.config = self
        return learner

    def _made(self) -> MAML:
        options: dict[str, Any] = {name: getattr(self, name) for name in ("order", "norms", "batch_stats")}
        options |= {} if self.closed is None else {"closed": self.closed}
        return METHODS[self.method](self.inner_lr, self.steps, loss=LOSSES[self.loss], **options)


def require_config(argument: str, config: object) -> None:
    """Raise `ArgumentTypeError` unless ``config`` has a method ``build``, as configs of networks do."""
    if not callable(getattr(config, "build", None)):
        refuse(argument, "be the config of a network", config, "pass ClassifierConfig(), say", ArgumentTypeError)


def outer_loss(ensemble: Ensemble[MetaLearner], batch: Episode) -> Float[Tensor, " members"]:
    """Outer loss of each member of an ensemble of meta-learners, for `train`; one learner has `MetaLearner.loss`.

    >>> from mesascope.tasks import FewShotImages
    >>> from mesascope.training import ParameterGroup, Training, train
    >>> learner = MetaLearnerConfig(ClassifierConfig("mlp", width=16, size=8, classes=2), steps=3)
    >>> family = FewShotImages(ways=2, shots=5)
    >>> masks = ParameterGroup(("method.*",), learning_rate=0.0075)
    >>> trained = train(learner.build, family, Training(50, 4), [0, 1], loss=outer_loss, parameter_groups=[masks])
    >>> sorted(trained[0].sparsity_by_parameter())
    ['layers.0.bias', 'layers.0.weight', 'layers.1.bias', 'layers.1.weight', 'layers.2.bias', 'layers.2.weight']
    """
    require_instance("ensemble", ensemble, Ensemble, "call its method loss for one learner")
    scores, _ = ensemble.in_turn(batch.context, batch.xq)
    losses = [ensemble.module.method.losses(*pair).mean() for pair in zip(scores, batch.yq, strict=True)]
    return torch.stack(losses)
