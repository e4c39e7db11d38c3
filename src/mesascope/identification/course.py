"""Identification along training steps or network layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mesascope.errors import ArgumentError, ArgumentTypeError, require_count, require_instance
from mesascope.evidence.tables import Table
from mesascope.identification.answer import Answer, Identification, in_percent
from mesascope.identification.candidate import Candidate, require_candidates
from mesascope.identification.catalogue import candidates as catalogue
from mesascope.identification.comparing import Levels
from mesascope.identification.conditions import OWN, battery
from mesascope.identification.naming import affordable, identified
from mesascope.identification.seen import placed
from mesascope.identification.verdict import Share, quantile
from mesascope.lenses.needs import HasTrajectory, predict_in_eval
from mesascope.measurement import Measurement
from mesascope.modes import guarded
from mesascope.progress import tracked
from mesascope.reports import Figure, Line, Lines
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Family, Learner
from mesascope.tasks.calling import display_name, label, takes
from mesascope.text import percent_text

# Number of tasks per condition and part, and number of fully compared members per family.
_TASKS, _MEMBERS = 100, 2
# Colours in charts, for the families that explain most.
_COLOURS = ("trained", "gd", "centred", "gd++", "other", "limit")


@dataclass(frozen=True)
class Transition:
    """A change of the nearest family.

    Args:
        after: last step at which the family ``before`` was the nearest.
        step: first step at which ``family`` is significantly nearer than ``before``.
        behind: unexplained variance of ``before`` minus that of ``family`` at ``step``, on the same tasks, as a share
            of the variance of predictions.
    """

    after: int
    step: int
    before: str
    family: str
    behind: Measurement


@dataclass(frozen=True, repr=False)
class Course(Answer):
    """Results of `identify` along training steps or layers.

    Args:
        learner: name of the learner.
        over: unit of ``steps``, step or layer.
        answers: one result per step.
    """

    _kind = "a course"

    learner: str
    over: str
    seed: int
    steps: tuple[int, ...]
    answers: tuple[Identification, ...]

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """Steps at which the nearest family changes.

        At such a step, the paired difference between the old and the new family has a lower confidence bound above 0.
        All bounds hold together with probability 1 - ``level``.
        """
        found: list[Transition] = []
        last, family = self.steps[0], self.answers[0].shares[0].family
        for step, answer in zip(self.steps, self.answers, strict=True):
            nearest = answer.shares[0].family
            if nearest == family:
                last = step
                continue
            behind = next((one.behind for one in answer.shares if one.family == family), None)
            level = answer.level / len(self.steps)
            if behind and behind.value > quantile(level, behind.n - 1) * behind.stderr:
                found.append(Transition(last, step, family, nearest, behind))
                last, family = step, nearest
        return tuple(found)

    @property
    def sentences(self) -> list[str]:
        """Sentence about the nearest family along the steps, and the last result."""
        first = self.answers[0].shares[0].family
        changes = "".join(
            f", from {self.over} {one.step} on {one.family} ({self.over} {one.after} was the last of {one.before})"
            for one in self.transitions
        )
        return [
            f"{self.learner} is nearest to {first} at {self.over} {self.steps[0]}{changes}. At {self.over} "
            f"{self.steps[-1]}: {self.answers[-1].like}"
        ]

    def table(self) -> Table:
        """One row per step: the nearest family, the mixture, and the verdict."""
        return Table(
            {self.over: step, "nearest family": one.shares[0].family, "candidate": one.shares[0].candidate,
             "variance unexplained, %": in_percent(one.shares[0].unexplained),
             "mixture": _mixed(one), "mixture unexplained, %": one.mixture and in_percent(one.mixture.unexplained),
             "verdict": f"{one.standing.kind} {one.names[0]}" if one.names else one.standing.kind}
            for step, one in zip(self.steps, self.answers, strict=True)
        )  # fmt: skip

    def tables(self) -> dict[str, Table]:
        """All measurements, by title."""
        rows = [*zip(self.steps, self.answers, strict=True)]
        found = {
            f"By {self.over}": self.table(),
            "Transitions": Table(vars(one) for one in self.transitions),
            "Variance that each family leaves unexplained, %": Table(
                {self.over: step, **{share.family: in_percent(share.unexplained) for share in one.shares}}
                for step, one in rows
            ),
            "Weights of the mixture": Table({self.over: step, **_weights(one)} for step, one in rows),
        }
        return {title: table for title, table in found.items() if table}

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python numbers, strings, lists and dicts, with the verdict in words."""
        return super().to_dict() | {"answers": [one.to_dict() for one in self.answers]}


@guarded
def along(
    learners: Mapping[int, Learner], family: Family, candidates: Iterable[Candidate] | None = None,
    budget: int | None = None, seed: int = 0, *, tolerance: float = 0.01, level: float = 0.01, name: str | None = None,
    over: str = "step", device: torch.device | str | None = None,
) -> Course:  # fmt: skip
    """Identify several learners, such as the checkpoints of a training, on the same tasks.

    A first comparison selects the two nearest members of each family of algorithms. Only these are compared fully: see
    `identify`.

    Args:
        learners: learners by step, or by layer from `by_layer`.
        candidates: candidates to compare. If None, the catalogue without scikit-learn and without preconditioners that
            have more entries than there are tasks per condition.
        budget: maximum number of predictions per learner; if None, 100 tasks per condition to fit and 100 to test.
        seed, tolerance, level, device: see `identify`.
        name: name of the learner in the result; the name of each if None.
        over: unit of the keys, step or layer.

    >>> from mesascope.learners import GradientDescent, Mean
    >>> from mesascope.tasks import LinearRegression
    >>> few = [one for one in catalogue(sklearn=False) if one.name in ("gradient-descent", "mean")]
    >>> along({0: Mean(), 100: GradientDescent(2, 1.0)}, LinearRegression(), few, name="net").transitions[0].family
    'descent'
    """
    seed = require_count("seed", seed, least=0)
    require_instance("over", over, str, "pass 'step', say")
    require_instance("learners", learners, Mapping, "pass {step: learner}")
    if not learners:
        raise ArgumentError("learners must hold at least one learner, but hold none: pass {step: learner}.")
    steps = sorted(require_count("a key of learners", step, least=0) for step in learners)
    size = battery(family, 1, 0, "size")
    count = _TASKS if budget is None else affordable(size, budget)
    chosen = require_candidates(_small(catalogue(family, sklearn=False), count) if candidates is None else candidates)
    levels = Levels.of(tolerance, level, len(chosen))
    tasks = {part: battery(family, count, seed, part) for part in ("fit", "test")}
    names = {step: name or display_name(learners[step]) for step in steps}
    answers = [
        identified(
            learners[step], placed(learners[step], device), chosen, tasks, f"{names[step]} at {over} {step}", seed,
            levels, _MEMBERS,
        )
        for step in tracked(steps, f"{over}s")
    ]  # fmt: skip
    return Course(names[steps[-1]], over, seed, tuple(steps), tuple(answers))


def by_layer(network: Learner, family: Family) -> dict[int, Learner]:
    """Learners that predict after the first 0, 1, ... layers of ``network``, for `along`.

    Args:
        network: a network with ``trajectory(context, xq)``, such as `InContextRegressor`.
        family: family of the network's tasks.
    """
    if not (isinstance(network, HasTrajectory) and takes(network.trajectory, ("context", "xq"))):
        raise ArgumentTypeError(
            f"network must have predictions after each layer, trajectory(context, xq), but is {label(network)}: build "
            "it from mesascope.nets, or write that method."
        )
    weight = next(iter(network.parameters()), None) if isinstance(network, nn.Module) else None
    task = battery(family, 1, 0, "size")[OWN]
    task = task if weight is None else task.to(weight.dtype).to(weight.device)
    count = len(predict_in_eval(_Layer(network, slice(None)), task.context, task.xq))
    return {layer: _Layer(network, layer) for layer in range(count)}


class _Layer(nn.Module):
    """Predictions of a network after a number of layers."""

    def __init__(self, network: HasTrajectory, layer: int | slice) -> None:
        super().__init__()
        self.network, self.layer, self.__name__ = network, layer, display_name(network)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Tensor:
        return self.network.trajectory(context, xq)[self.layer]


def figures_along(found: Course) -> list[Figure]:
    """Charts over equally spaced steps: shares of families, and weights of the mixture."""
    places = range(len(found.steps))
    by_family = [{share.family: share for share in one.shares} for one in found.answers]
    best: dict[str, float] = {}
    for one in found.answers:
        best |= {share.family: max(_explained(share), best.get(share.family, 0.0)) for share in one.shares}
    colour = dict(zip(sorted(best, key=lambda family: -best[family]), _COLOURS, strict=False))
    changes = [Line([found.steps.index(one.step) - 0.5] * 2, [0, 100], "limit") for one in found.transitions]
    explained = []
    for family, role in colour.items():
        rows = [one[family] for one in by_family]
        errors = [100 * row.unexplained.stderr if _explained(row) else 0.0 for row in rows]
        explained.append(Line(places, [*map(_explained, rows)], role, family, marks="o-", error=errors))
    parts, mixed = [_weights(one) for one in found.answers], []
    for family in dict.fromkeys(family for one in parts for family in one):
        weights = [in_percent(one.get(family, Measurement(0.0, 0.0, 1))) for one in parts]
        values, errors = [one.value for one in weights], [one.stderr for one in weights]
        mixed.append(Line(places, values, colour.get(family, 1.0), family, marks="o-", error=errors))
    together = [100 * (1 - one.mixture.unexplained.value) if one.mixture else math.nan for one in found.answers]
    mixed.append(Line(places, together, 0.5, "variance explained by the mixture"))
    axis = {"xticks": places, "xticklabels": [*map(str, found.steps)], "ylim": (-3, 103)}
    between = f"Dotted: between {found.over}s where the nearest family changes." if changes else ""
    return [
        Figure(
            "families", "Variance of predictions explained by the nearest member of each family of algorithms, on "
            f"tasks like those of training, with standard errors, by {found.over}; 0 if it explains none. {between}",
            (Lines("", found.over, "variance explained, %", [*explained, *changes], limits=axis),),
            size=(8, 4), shared_legend=True,
        ),
        Figure(
            "mixture", f"Weights of the best mixture of candidates, with standard errors, by {found.over}, and the "
            f"variance of predictions that it explains (without marks). {between}",
            (Lines("", found.over, "weight, %", [*mixed, *changes], limits=axis),),
            size=(8, 4), shared_legend=True,
        ),
    ]  # fmt: skip


def _explained(share: Share) -> float:
    return max(100 * (1 - share.unexplained.value), 0.0)


def _weights(found: Identification) -> dict[str, Measurement]:
    """Weights of the mixture by family; each family has at most one part."""
    return {part.family: part.weight for part in found.mixture.parts} if found.mixture else {}


def _mixed(found: Identification) -> str:
    parts = sorted(found.mixture.parts, key=lambda one: -one.weight.value) if found.mixture else ()
    return " + ".join(f"{percent_text(one.weight.value)} {one.candidate}" for one in parts)


def _small(chosen: Iterable[Candidate], tasks: int) -> list[Candidate]:
    """Candidates, without those that have ``own_sizes`` and more parameters than there are tasks."""

    def numbers(one: Candidate) -> int:
        learner = one.learner({name: free.low for name, free in one.free.items()})
        return sum(value.numel() for value in learner.parameters()) if isinstance(learner, nn.Module) else 0

    return [one for one in chosen if not one.own_sizes or numbers(one) <= tasks]
