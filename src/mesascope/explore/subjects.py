"""Subjects of the page: shipped networks and users' learners, each with its tasks and its algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mesascope import learners, lenses
from mesascope.errors import MesascopeError, refuse
from mesascope.explore.ranges import MOST_PAIRS
from mesascope.lenses.needs import HasRule
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode
from mesascope.tasks.calling import check_answer, display_name, label, predict, sample_tasks
from mesascope.training.modes import evaluating


@dataclass(frozen=True)
class Subject:
    """A learner on the page.

    Args:
        title: name in menus.
        learner: takes contexts of ``family``.
        algorithm: descent that the learner is compared with; its step sizes are the sliders' initial positions.
        record: record of a shipped network; empty for others.
    """

    title: str
    learner: Any
    family: Any
    algorithm: Any
    record: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def d_in(self) -> int:
        """Width of inputs."""
        return self.one_task.xq.shape[-1]

    @property
    def one_task(self) -> Episode:
        """A task of the family."""
        return sample_tasks(self.family, 1, stream(0, "explore-shape"))

    @property
    def most_pairs(self) -> int:
        """End of the slider of pairs."""
        return max(MOST_PAIRS, 2 * self.one_task.context.x.shape[-2])

    def at_depth(self, depth: int) -> Any:
        """The learner with its layer applied ``depth`` times, if it has one layer; else the learner."""
        if depth == self.algorithm.steps or not isinstance(self.learner, HasRule):
            return self.learner
        try:
            return lenses.rollout(self.learner, depth)
        except MesascopeError:  # several layers with different weights
            return self.learner

    def algorithm_at(self, depth: int, eta: float, gamma: float) -> Any:
        """The algorithm with ``depth`` steps and these step sizes."""
        if self.has_gamma:
            return learners.GradientDescentPlusPlus(depth, eta, gamma)
        descent = learners.GradientDescent(depth, eta)
        return learners.Centred(descent) if self.is_centred else descent

    @property
    def is_centred(self) -> bool:
        """True if the algorithm subtracts the mean of the context's inputs first."""
        return bool(self.record) and "centred" in self.record["algorithm"]

    @property
    def has_gamma(self) -> bool:
        """True if the algorithm is GD++, gradient descent that also changes the inputs."""
        return self.algorithm.gamma is not None

    @property
    def algorithm_title(self) -> str:
        return "GD++" if self.has_gamma else "centred descent" if self.is_centred else "gradient descent"


def own_subject(title: str, learner: Any, family: Any) -> Subject:
    """Subject for a user's learner, with a descent to compare it with, of as many steps as a looped network's loops.

    Raises:
        ArgumentError: the family does not draw episodes with one target.
    """
    task = sample_tasks(family, 1, stream(0, "explore-shape"))
    if not isinstance(task, Episode) or task.yq.shape[-1] != 1:
        remedy = "choose one of contexts and queries with one target, such as linear-regression"
        refuse("--family", "draw tasks of one target", label(family), remedy)
    return Subject(title, learner, family, _descent(learner, family, task.context.x.shape[-2]))


def _descent(learner: Any, family: Any, pairs: int) -> Any:
    """GD++ with step sizes read from the weights of a looped linear network; else gradient descent."""
    config = getattr(getattr(learner, "config", None), "transformer", None)
    steps = config.n_layers if config is not None and getattr(config, "shared", False) else 1
    if steps > 1 and getattr(learner, "linear", False):
        try:
            eta, gamma = (max(float(sizes[0]), 0.0) for sizes in lenses.step_sizes(learner, pairs))
            return learners.GradientDescentPlusPlus(steps, eta, gamma)
        except MesascopeError:  # weights without step sizes
            pass
    try:
        return learners.GradientDescent(steps, learners.one_step_optimum(family).eta)
    except MesascopeError:  # no closed form for these tasks
        return learners.GradientDescent(steps, 1.0)


class InOwnDtype:
    """Learner called in the dtype of its weights (float32 if it has none); predictions have the queries' dtype."""

    def __init__(self, learner: Callable[..., Any]) -> None:
        self.learner, self.__name__ = learner, display_name(learner)
        self._last: tuple[bytes, Tensor] | None = None  # panels repeat the same call for each learner that they compare
        weights = [one for one in getattr(learner, "parameters", tuple)() if one.is_floating_point()]
        self.dtype = weights[0].dtype if weights else torch.float32

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        asked = b"".join(part.numpy().tobytes() for part in (*context, xq))
        if self._last is None or self._last[0] != asked:
            own = Context(*(part.to(self.dtype) for part in context))
            with evaluating(self.learner):
                found = predict(self.learner, own, xq.to(self.dtype))
            self._last = asked, check_answer(self.learner, found, (*xq.shape[:-1], context.y.shape[-1])).to(xq)
        return self._last[1].clone()


def changed(family: Any, **fields: Any) -> Any:
    """The family with new values of ``fields``; fields that it does not have are ignored."""
    own = getattr(family, "__dataclass_fields__", {})
    known = {name: value for name, value in fields.items() if name in own}
    return dataclasses.replace(family, **known) if known else family
