"""Access to learners: protocols that lenses need, and functions that check which of them a learner provides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch

from mesascope.errors import ArgumentTypeError
from mesascope.modes import guarded
from mesascope.nets import HookedModule, Products, Tokens
from mesascope.records import facts
from mesascope.shapes import Tensor
from mesascope.tasks import Context, Episode
from mesascope.tasks.calling import check_tasks, copied, label, predict
from mesascope.training import Ensemble
from mesascope.training.modes import evaluating

# Tasks that a family draws: an episode, or sequences (tasks, t, d).
Tasks = Episode | Tensor

Access = Literal[
    "prediction", "gradient", "products", "channels", "activations", "points", "tokens", "rule", "trajectory"
]


@runtime_checkable
class HasProducts(Protocol):
    """A network whose weights can be read and set as W_KQ and W_PV. A token's last ``d_out`` entries are its target.

    ``linear`` is true if layers compute with these products alone: no softmax, MLP or LayerNorm; ``token_clip`` is
    allowed.
    """

    @property
    def d_out(self) -> int: ...
    @property
    def linear(self) -> bool: ...
    @property
    def token_clip(self) -> float | None: ...
    def products(self) -> list[Products]: ...
    def with_products(self, products: Sequence[Products]) -> Any: ...


@runtime_checkable
class HasChannels(Protocol):
    """A linear-attention predictor on tokens of `nets.predictor.Channel`; only W_KQ and W_PV change its output."""

    @property
    def config(self) -> Any: ...
    @property
    def on_channels(self) -> bool: ...
    def products(self) -> list[Products]: ...
    def with_products(self, products: Sequence[Products]) -> Any: ...


@runtime_checkable
class HasActivations(Protocol):
    """A predictor that returns the tokens of a sequence before the first layer and after each layer."""

    def activations(self, sequence: Tensor) -> list[Tensor]: ...


@runtime_checkable
class HasTokens(Protocol):
    """A network that returns its tokens before the first and after each layer, and can start from given tokens."""

    def tokens(self, context: Context, xq: Tensor) -> list[Tokens]: ...
    def tokens_from(self, start: Tokens) -> list[Tokens]: ...


@runtime_checkable
class HasRule(Protocol):
    """A one-step learner whose step can be repeated, with each update multiplied by ``damping``."""

    def repeated(self, steps: int, damping: float = 1.0) -> Any: ...


@runtime_checkable
class HasTrajectory(Protocol):
    """A learner that returns its predictions after 0, 1, ... steps, ``(k, *batch, m, dy)``."""

    def trajectory(self, context: Context, xq: Tensor) -> Tensor: ...


_PREDICTIONS = "use a lens that needs predictions only, such as agreement or sweep"

# Protocol, description and remedy of each kind of access.
_NEEDS: dict[str, tuple[Any, str, str]] = {
    "prediction": (
        Callable, "a learner that can be called as learner(context, xq)",
        "pass a module or a function, or an estimator of scikit-learn through from_sklearn",
    ),
    "gradient": (
        Callable, "a learner that torch can differentiate by xq",
        f"write it in torch, with predictions that change smoothly with xq, or {_PREDICTIONS}",
    ),
    "products": (HasProducts, "a network with products() and with_products(products)", _PREDICTIONS),
    "channels": (
        HasChannels, "a predictor on tokens of channels, of linear attention without gates, MLPs, norms or positions",
        "use probe, which needs activations only",
    ),
    "activations": (
        HasActivations, "a predictor with activations(sequence)", "write one that returns tensors (*batch, t, width)",
    ),
    "points": (HookedModule, "a network with hook points", "build it from mesascope.nets, or use probe"),
    "tokens": (HasTokens, "a network with tokens(context, xq) and tokens_from(start)", _PREDICTIONS),
    "rule": (
        HasRule, "a learner with repeated(steps, damping)", "pass a one-layer network, a descent learner, or write it",
    ),
    "trajectory": (
        HasTrajectory, "a learner with a trajectory of predictions", "pass a network, a descent learner, or a rollout",
    ),
}  # fmt: skip


def require_access(lens: str, learner: Any, tasks: Tasks | None = None) -> Any:
    """Return ``learner``; raise unless it provides the access that the lens called ``lens`` needs."""
    if isinstance(learner, Ensemble):
        raise ArgumentTypeError(
            f"{lens} must be given one learner, but is given an ensemble of {len(learner)}: pass one of its members()."
        )
    need = facts("lens", lens)["needs"]
    if not _gives(learner, need, tasks):
        _, what, remedy = _NEEDS[need]
        raise ArgumentTypeError(f"{lens} must be given {what}, but is given {label(learner)}: {remedy}.")
    return learner


@guarded
def access_of(learner: Any, tasks: Tasks) -> frozenset[Access]:
    """Kinds of access that ``learner`` provides to lenses.

    >>> from mesascope.learners import Mean
    >>> from mesascope.streams import stream
    >>> from mesascope.tasks import LinearRegression
    >>> sorted(access_of(Mean(), LinearRegression().sample(2, stream(0, "doc"))))
    ['gradient', 'prediction']
    """
    check_tasks(tasks)
    return frozenset(need for need in get_args(Access) if _gives(learner, need, tasks))


def _gives(learner: Any, need: str, tasks: Tasks | None) -> bool:
    if not isinstance(learner, _NEEDS[need][0]):
        return False
    if need == "gradient":
        return isinstance(tasks, Episode) and _differentiable(learner, tasks)
    return need != "channels" or learner.on_channels


def _differentiable(learner: Callable, episode: Episode) -> bool:
    xq = episode.xq[:1].detach().clone().requires_grad_()
    try:
        with torch.enable_grad():
            prediction = predict_in_eval(learner, episode.part(0, 1).map(copied).context, xq)
    except RuntimeError as error:
        if "requires grad" in str(error):  # raised by `Tensor.numpy` in a learner not written in torch
            return False
        raise
    if not isinstance(prediction, Tensor) or not prediction.requires_grad or prediction.is_complex():
        return False
    return torch.autograd.grad(prediction.sum(), xq, allow_unused=True)[0] is not None


def predict_in_eval(learner: Callable, *inputs: Context | Tensor) -> Any:
    """Predictions of a learner in evaluation mode."""
    with evaluating(learner):
        return predict(learner, *inputs)
