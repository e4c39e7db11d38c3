"""MAML and related methods: gradient steps that adapt a module to a task, with learned initial weights and rates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from mesascope.errors import (
    NumericalError,
    refuse,
    require_callable,
    require_choice,
    require_count,
    require_instance,
    require_number,
    shown,
)
from mesascope.meta.copies import (
    BATCH_STATS,
    Copies,
    check_task,
    copies_of,
    in_words,
    plain_tensors,
    recording,
    tasks_of,
)
from mesascope.meta.modulation import MODULATIONS, Modulation, binary
from mesascope.modes import guarded
from mesascope.modules import names_of, require_initialised
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode
from mesascope.training.finite import check_data

# Parameters by name.
Parameters = Mapping[str, Tensor]
_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class MAML(nn.Module):
    """Model-agnostic meta-learning: gradient steps on the loss of a task's context, from learned weights theta.

    phi_0 = theta, phi_{k+1} = phi_k - inner_lr * grad L(phi_k, context), for K = ``steps``. The outer loop minimises
    the loss of phi_K on the task's queries by gradient descent on theta.

    Args:
        inner_lr: learning rate of the inner steps.
        steps: number of inner steps.
        order: 2 differentiates through the inner loop; 1 treats its gradients as constants (memory does not grow).
        adapt: parameters that inner steps change: "all"; "head" (of the module with the last parameter); "body" (all
            others); or a function from a parameter's name to True or False.
        norms: False if inner steps do not change the parameters of normalisation layers.
        batch_stats: statistics used by BatchNorm. "transductive": those of each batch, including queries; "support":
            those of the context, also for queries; "running": the module's running averages, which do not change.
        loss: inner and outer loss, a function of predictions and targets.

    Source: Finn et al. (2017); von Oswald (2024), section 4.2.

    >>> model = nn.Linear(2, 3)
    >>> context = Context(torch.eye(2), torch.eye(3)[:2])
    >>> adapted = MAML(0.1, steps=2).adapt(model, context)
    >>> sorted(adapted), adapted["weight"].shape
    (['bias', 'weight'], torch.Size([3, 2]))
    """

    modulation: Modulation | None = None

    def __init__(
        self, inner_lr: float, steps: int, *, order: int = 1, adapt: str | Callable[[str], bool] = "all",
        norms: bool = True, batch_stats: str = "transductive", loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    ) -> None:  # fmt: skip
        super().__init__()
        self.inner_lr = require_number("inner_lr", inner_lr, above=0)
        self.steps, self.order = require_count("steps", steps, least=0), require_count("order", order)
        if self.order > 2:
            refuse("order", "be 1 or 2", order, "choose one of them")
        if not callable(adapt):
            require_choice("adapt", adapt, ("all", "head", "body"))
        require_choice("batch_stats", batch_stats, BATCH_STATS)
        require_callable("loss", loss)
        if isinstance(loss, type):
            refuse("loss", "be a function or a module", f"the class {loss.__name__}", f"pass {loss.__name__}()")
        require_instance("norms", norms, bool)
        self.which, self.norms, self.batch_stats, self.loss = adapt, norms, batch_stats, loss
        self.numbers = nn.ParameterDict()
        self.names: tuple[str, ...] | None = None
        """Names of the adapted parameters; None before `start`."""
        self.shapes: dict[str, torch.Size] = {}
        self._classes = False  # True once targets were seen to be classes

    def start(self, model: nn.Module, generator: torch.Generator) -> None:
        """Set the initial values of the learned numbers for the parameters of a model.

        Raises:
            ArgumentError: the method already belongs to a model.
        """
        if self.names is not None:
            refuse("method", "be new", f"in use with {len(self.names)} parameters", "make one per model")
        parameters = self.adapted(model)
        self.names, self.shapes = tuple(parameters), {name: one.shape for name, one in parameters.items()}
        for name, one in parameters.items():
            self._start(name, one.detach(), generator)

    def _start(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        """Set the initial learned numbers of one parameter."""
        if self.modulation is not None:
            self.numbers[key_of(name)] = nn.Parameter(self.modulation.start(parameter, self.inner_lr, generator))

    def adapted(self, model: nn.Module) -> Parameters:
        """Parameters that inner steps change, chosen from those that require gradients, or from all if none does.

        After `start`, the choice is fixed, except that parameters that no longer require gradients stay as they are.
        """
        require_initialised("model", model)
        every = dict(model.named_parameters())
        if self.names is not None:
            for name, shape in self.shapes.items():
                if name not in every or every[name].shape != shape:
                    rule = f"have the parameter {name} {tuple(shape)} that the method began with"
                    has = {name: tuple(one.shape) for name, one in every.items()}
                    refuse("model", rule, has, "make a method per model")
            chosen = {name: every[name] for name in self.names if every[name].requires_grad}
            if not chosen and any(one.requires_grad for one in every.values()):
                refuse("model", "not freeze all parameters that inner steps change", shown([*self.names]), "free some")
            return chosen or {name: every[name] for name in self.names}
        parameters = {name: one for name, one in every.items() if one.requires_grad} or every
        if not parameters:
            refuse("model", "have parameters", type(model).__name__, "pass another model")
        names = names_of(model)
        *_, last = (name for name, _ in model.named_parameters(remove_duplicate=False))
        head = layer_of(last)
        layers = model.get_submodule(head)
        if self.which in ("head", "body") and isinstance(layers, nn.ParameterList | nn.ParameterDict):
            rule = "be a function of names for a model that ends in a ParameterList or ParameterDict"
            refuse("adapt", rule, self.which, "pass one")
        fixed = set() if self.norms else {id(one) for part in model.modules() if isinstance(part, _NORMS)
                                          for one in part.parameters(recurse=False)}  # fmt: skip
        found = {name: one for name, one in parameters.items()
                 if id(one) not in fixed and self._chooses(names[name], head)}  # fmt: skip
        if not found:
            refuse("adapt", "choose at least one parameter", self.which, f"the model has {shown(sorted(parameters))}")
        return found

    def _chooses(self, names: list[str], head: str) -> bool:
        """True if inner steps change the parameter with these names; ``head`` is the name of the last module."""
        if callable(self.which):
            return any(map(self.which, names))
        in_head = any(layer_of(name) == head for name in names)
        return {"all": True, "head": in_head, "body": not in_head}[self.which]

    def factors(self, model: nn.Module) -> dict[str, Tensor | float]:
        """Factor on the gradient of each adapted parameter, including the inner learning rate."""
        names = self.adapted(model)
        if self.modulation is None:
            return dict.fromkeys(names, self.inner_lr)
        if self.names is None:
            self.start(model, stream(0, "modulation", device=next(iter(names.values())).device))
        rate = self.inner_lr if self.modulation.times_rate else 1.0
        return {name: rate * self.modulation.factor(one) for name, one in self.underlying(names).items()}

    def underlying(self, parameters: Parameters) -> Parameters:
        """Learned numbers m of these parameters, which the modulation maps to factors."""
        return {name: self.numbers[key_of(name)] for name in parameters}

    @guarded
    def adapt(self, model: nn.Module, context: Context, start: Parameters | None = None) -> Parameters:
        """Adapted parameters of ``model`` after the inner steps on one task's context ``x (n, dx)``, ``y (n, dy)``.

        They are differentiable, up to the method's order, in the model's parameters and the modulation's m.

        Args:
            start: adapted parameters to start from, instead of the model's.

        Raises:
            NumericalError: the context is not finite, or the steps diverge.
        """
        require_instance("model", model, nn.Module)
        check_task(context)
        check_data(None, context, False)
        own = {name: one.shape for name, one in self.adapted(model).items()}
        if start is not None and {name: getattr(one, "shape", None) for name, one in start.items()} != own:
            refuse("start", f"be the parameters {shown(sorted(own))}", sorted(start), "pass what adapt returned")
        found = self.adapted_to(model, context, start)
        for name, one in found.items():
            if not one.isfinite().all():
                raise NumericalError(
                    f"inner steps must stay finite, but {name} does not within {self.steps} steps: lower inner_lr."
                )
        return found

    def adapted_to(self, model: nn.Module, context: Context, start: Parameters | None = None) -> Parameters:
        """Same as `adapt`, without its checks, which read values and so wait for the device."""
        x, y = context
        with copies_of(model, 1, self.batch_stats, self.order == 2) as copies, recording():
            found = self._steps(model, copies, Context(*plain_tensors(x[None], y[None])), start)
        return {name: one[0] for name, one in found.items()}

    def outer_loss(self, model: nn.Module, episode: Episode) -> Float[Tensor, ""]:
        """Mean over tasks of the adapted model's loss on queries.

        To first order (von Oswald 2024, eqs. 4.8 and 4.9), its gradient for theta is grad L(phi_K, queries). For m,
        it is -grad L(phi_K, queries) o sum_k grad L(phi_k, context) times the derivative of `factors` by m.
        """
        require_instance("episode", episode, Episode)
        (context, xq), lead = tasks_of(episode.context, episode.xq), episode.xq.ndim - 2
        if episode.yq.shape[: lead + 1] != episode.xq.shape[:-1] or not xq.shape[-2]:
            shapes = tuple(episode.yq.shape), tuple(episode.xq.shape)
            refuse("yq", "have one row for each query, and xq at least one", shapes, "pass a target for each query")
        yq = episode.yq.reshape(len(xq), *episode.yq.shape[lead:])
        if not len(xq):
            refuse("episode", "have at least one task", tuple(episode.xq.shape), "draw some")
        return self.losses(self.predicted(model, context, xq), *plain_tensors(yq)).mean()

    def predicted(self, model: nn.Module, context: Context, xq: Tensor) -> Float[Tensor, "tasks m dy"]:
        """Predictions of each task's queries after ``model`` has adapted to its context."""
        with copies_of(model, len(xq), self.batch_stats, self.order == 2) as copies, recording():
            x, y, xq = plain_tensors(*context, xq)
            phi = self._steps(model, copies, Context(x, y))
            return copies.after(phi, x, xq) if self.batch_stats == "support" else copies(phi, xq)

    def losses(self, scores: Tensor, y: Tensor) -> Float[Tensor, " tasks"]:
        """Loss of each task; the targets ``y`` have the shape of ``scores``, or are indices of classes."""
        if scores.shape != y.shape and (scores.shape[:-1] != y.shape or y.is_floating_point()):
            rule = f"return predictions of the shape {tuple(y.shape)} of the targets of all tasks"
            refuse("model", rule, tuple(scores.shape), "build it for this many classes, or pass other targets")
        if self.compares_classes and y.is_floating_point() and (scores.ndim < 3 or scores.shape[-1] == 1):
            refuse(
                "loss", "not be cross_entropy for a single target, as it is always 0", "cross_entropy", "pass mse_loss"
            )
        if self.compares_classes and y.is_floating_point() and not self._classes:  # reads values, once
            self._classes = bool(are_classes(y))
            if not self._classes:
                refuse("loss", "not be cross_entropy for targets other than classes", "cross_entropy", "pass mse_loss")
        words = f"loss must take predictions {tuple(scores.shape[1:])} and targets {tuple(y.shape[1:])} of {y.dtype}"
        with in_words(self.loss, lambda: words):
            each = [self.loss(*pair) for pair in zip(scores, y, strict=True)]
        if not isinstance(each[0], Tensor) or each[0].numel() != 1:
            found = tuple(each[0].shape) if isinstance(each[0], Tensor) else type(each[0]).__name__
            refuse("loss", "return a tensor with one number", found, "average it")
        return torch.stack(each)

    @property
    def compares_classes(self) -> bool:
        return self.loss is cross_entropy or isinstance(self.loss, nn.CrossEntropyLoss)

    def sparsity_by_parameter(self, model: nn.Module) -> dict[str, float]:
        """Share of each parameter's entries that inner steps do not change."""
        generator = stream(0, "sparsity")  # random gradients, whose products with matrices do not cancel
        drawn = {name: torch.randn(one.shape, generator=generator).to(one) for name, one in self.adapted(model).items()}
        with torch.no_grad():
            change = self.changes(self.factors(model), drawn)
        still = torch.stack([(one == 0).float().mean() for one in change.values()]).tolist()  # one transfer
        return dict.fromkeys((name for name, _ in model.named_parameters()), 1.0) | dict(
            zip(change, still, strict=True)
        )

    def _steps(self, model: nn.Module, copies: Copies, context: Context, start: Parameters | None = None) -> Parameters:
        """Parameters after the inner steps, ``(tasks, ...)`` each."""
        theta, factors = self.adapted(model), self._factors_of_tasks(model, len(context.x))
        starts = {name: one.expand(len(context.x), *one.shape) for name, one in (start or theta).items()}
        if self.order == 2:
            phi = {n: one if one.requires_grad else one.clone().requires_grad_() for n, one in starts.items()}
            for _ in range(self.steps):
                inner = self._gradients(copies, phi, context, create_graph=True)
                change = self.changes(factors, self.regularised(inner, _moved(phi, theta)))
                phi = {name: one - change[name] for name, one in phi.items()}
            return phi
        # To first order, gradients are constants: theta minus the change by their sum has the correct derivatives.
        phi = {name: one.detach().clone() for name, one in starts.items()}
        sums, paths = ({name: torch.zeros_like(one) for name, one in phi.items()} for _ in range(2))
        for _ in range(self.steps):
            inner = self._gradients(copies, {name: one.requires_grad_() for name, one in phi.items()}, context)
            phi = {name: one.detach() for name, one in phi.items()}
            with torch.no_grad():
                moved = _moved(phi, theta)
                change = self.changes(factors, self.regularised(inner, moved))
            for name, one in phi.items():
                sums[name] += inner[name]
                paths[name] += moved[name]
                one -= change[name]
        change = self.changes(factors, self.regularised(sums, paths))
        return {name: one - change[name] for name, one in starts.items()}

    def changes(self, factors: Mapping[str, Tensor | float], gradients: Parameters) -> Parameters:
        """Changes of parameters in an inner step, linear in the gradients, which may have a first axis of tasks."""
        return {name: factors[name] * one for name, one in gradients.items()}

    def _factors_of_tasks(self, model: nn.Module, tasks: int) -> Mapping[str, Tensor | float]:
        """`factors` of each task, or shared by all tasks."""
        return self.factors(model)

    def _gradients(self, copies: Copies, phi: Parameters, context: Context, create_graph: bool = False) -> Parameters:
        """Gradients of each task's inner loss at ``phi``, without a regularisation term."""
        total = self.losses(copies(phi, context.x), context.y).sum()
        if not total.requires_grad:
            refuse("loss", "depend on the model's parameters", "constant", "detach neither it nor the predictions")
        found = torch.autograd.grad(total, list(phi.values()), create_graph=create_graph, materialize_grads=True)
        return dict(zip(phi, found, strict=True))

    def regularised(self, gradients: Parameters, moved: Parameters) -> Parameters:
        """Add the gradients of the method's regularisation term, if it has one: linear in ``moved``, phi - theta."""
        return gradients


def are_classes(y: Float[Tensor, "*batch n classes"]) -> Tensor:
    """True if each row is one-hot, or a distribution over classes."""
    return (y >= 0).all() & ((y.sum(-1) - 1).abs() < 1e-3).all()


def _refuse_adapt(options: Any, method: str, adapts: str) -> None:
    if "adapt" in options:
        refuse("adapt", f"be left out, as {method} adapts {adapts}", options["adapt"], "use MAML for other parameters")


class ANIL(MAML):
    """MAML whose inner steps change only the last layer (almost no inner loop). Source: Raghu et al. (2020)."""

    def __init__(self, inner_lr: float, steps: int, **options: Any) -> None:
        _refuse_adapt(options, "ANIL", "the last layer")
        super().__init__(inner_lr, steps, adapt="head", **options)


class BOIL(MAML):
    """MAML whose inner steps change all but the last layer (body-only inner loop). Source: Oh et al. (2021)."""

    def __init__(self, inner_lr: float, steps: int, **options: Any) -> None:
        _refuse_adapt(options, "BOIL", "all but the last layer")
        super().__init__(inner_lr, steps, adapt="body", **options)


class MetaSGD(MAML):
    """MAML with a learned rate for each entry; rates are initially ``inner_lr`` and may become negative.

    Source: Li et al. (2017); von Oswald (2024), eq. 4.2 with M diagonal.
    """

    modulation = MODULATIONS["identity"]


class ExpMAML(MAML):
    """MAML with learned rates exp(m) > 0, initially ``inner_lr``. Source: von Oswald (2024), section 4.3.3."""

    modulation = MODULATIONS["exp"]


class SparseMAML(MAML):
    """MAML with a learned mask on inner steps: phi <- phi - inner_lr 1[m >= 0] o grad L (eq. 4.3).

    The mask is learned straight through: the step function is differentiated as if it were m (eq. 4.4).

    Args:
        closed: share of m that is initially below 0.

    Source: von Oswald (2024), section 4.2; von Oswald et al. (2021).
    """

    def __init__(self, inner_lr: float, steps: int, *, closed: float = 0.5, **options: Any) -> None:
        super().__init__(inner_lr, steps, **options)
        self.modulation = binary(require_number("closed", closed, least=0, most=1))


class SparseReLUMAML(MAML):
    """MAML with rates max(m, 0), initially ``inner_lr``; learned straight through, so they can grow from 0 again.

    Source: von Oswald (2024), section 4.3.3.
    """

    modulation = MODULATIONS["relu"]


def _moved(phi: Parameters, theta: Parameters) -> Parameters:
    return {name: one - theta[name] for name, one in phi.items()}


def layer_of(name: str) -> str:
    """Name of the module that a parameter belongs to; parts of a parametrised weight belong to its layer.

    >>> layer_of("2.bias"), layer_of("2.parametrizations.weight.original0"), layer_of("weight")
    ('2', '2', '')
    """
    return re.sub(r"(^|\.)parametrizations\.\w+$", "", name.rpartition(".")[0])


def key_of(name: str) -> str:
    """Key for a ParameterDict, which does not allow dots or the names of its methods."""
    key = name.replace(".", "/")
    return f"{key}/" if hasattr(nn.ParameterDict, key) else key
