"""Subjects of the page: shipped networks, networks of runs, own learners; each with its tasks and its algorithm."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mesascope import learners, lenses, nets
from mesascope.errors import MesascopeError, one_line, refuse
from mesascope.lenses.needs import HasRule
from mesascope.records import from_record
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode
from mesascope.tasks.calling import check_answer, display_name, label, predict, sample_tasks

NETWORKS = Path(__file__).parent / "networks"
# Shipped regressors in the order of the menu, and predictors of sequences.
REGRESSORS = tuple(f"{kind}-{d}" for d in (1, 10) for kind in ("linear", "looped", "softmax"))
PREDICTORS = ("mesa-2", "softmax-2")


@dataclass(frozen=True)
class Subject:
    """A learner on the page.

    Args:
        title: name in menus.
        learner: takes contexts of ``family``.
        algorithm: descent that the learner is compared with; its step sizes are the sliders' first positions.
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

    def at_depth(self, depth: int) -> Any:
        """The learner with its layer applied ``depth`` times, if it has one layer; else the learner."""
        if depth == self.algorithm.steps or not isinstance(self.learner, HasRule):
            return self.learner
        try:
            return lenses.rollout(self.learner, depth)
        except MesascopeError:  # several layers of their own
            return self.learner

    def algorithm_at(self, depth: int, eta: float, gamma: float) -> Any:
        """The algorithm with other sizes."""
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
        """Name of the algorithm."""
        return "GD++" if self.has_gamma else "centred descent" if self.is_centred else "gradient descent"


def shipped(name: str) -> Subject:
    """A network of the package with its record.

    >>> shipped("linear-1").title
    'one linear layer, 1 input'
    """
    record = json.loads((NETWORKS / name / "record.json").read_text())
    network = nets.InContextRegressor.from_pretrained(NETWORKS / name).eval().double().requires_grad_(False)
    algorithm = record["algorithm"]
    descent = from_record(algorithm.get("centred", algorithm))
    d = record["family"]["d_in"]
    title = f"{record['title']}, {d} input{'s' if d > 1 else ''}"
    return Subject(title, network, from_record(record["family"]), descent, record)


def shipped_predictor(name: str) -> tuple[str, Any, Any]:
    """Title, network and family of a shipped predictor of sequences."""
    record = json.loads((NETWORKS / name / "record.json").read_text())
    network = nets.SequencePredictor.from_pretrained(NETWORKS / name).eval().requires_grad_(False)
    return record["title"], network, from_record(record["family"])


def own_subject(title: str, learner: Any, family: Any) -> Subject:
    """A learner of the user, beside one step of gradient descent.

    Raises:
        ArgumentError: the family draws no episodes of one target.
    """
    task = sample_tasks(family, 1, stream(0, "explore-shape"))
    if not isinstance(task, Episode) or task.yq.shape[-1] != 1:
        remedy = "choose one of contexts and queries with one target, such as linear-regression"
        refuse("--family", "draw tasks of one target", label(family), remedy)
    try:
        eta = learners.one_step_optimum(family).eta
    except MesascopeError:  # no closed form for these tasks
        eta = 1.0
    return Subject(title, learner, family, learners.GradientDescent(1, eta))


class InOwnDtype:
    """A learner that is called in the dtype of its weights, or float32; predictions return in that of the queries."""

    def __init__(self, learner: Callable[..., Any]) -> None:
        self.learner, self.__name__ = learner, display_name(learner)
        self._last: tuple[bytes, Tensor] | None = None  # a panel asks the same thing for each other learner
        weights = [one for one in getattr(learner, "parameters", tuple)() if one.is_floating_point()]
        self.dtype = weights[0].dtype if weights else torch.float32

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        asked = b"".join(part.numpy().tobytes() for part in (*context, xq))
        if self._last is None or self._last[0] != asked:
            own = Context(*(part.to(self.dtype) for part in context))
            found = predict(self.learner, own, xq.to(self.dtype))
            self._last = asked, check_answer(self.learner, found, (*xq.shape[:-1], context.y.shape[-1])).to(xq)
        return self._last[1].clone()


def sentence(error: Exception) -> str:
    """One sentence about an error, for the page."""
    if isinstance(error, MesascopeError):
        return str(error)
    return f"a learner must answer the tasks of the page, but raised {type(error).__name__} ({one_line(error)}): mend it."


def changed(family: Any, **fields: Any) -> Any:
    """The family with other values of those ``fields`` that it has."""
    own = {field.name for field in dataclasses.fields(family)} if dataclasses.is_dataclass(family) else set()
    return dataclasses.replace(family, **{name: value for name, value in fields.items() if name in own})
