"""What the studies of linear dynamics share: settings, networks, references and how losses are shown."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses, nets, tasks
from mesascope.errors import require_choice, require_count
from mesascope.evidence import Claim, above, ours
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.common import plan, values
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

__all__ = [
    "ONE_LAYER",
    "QUICK",
    "THESIS",
    "USUAL",
    "Constructed",
    "Dynamics",
    "Sequences",
    "along",
    "around",
    "best_ridge",
    "channels",
    "compared",
    "each_with_each",
    "least_squares",
    "losses",
    "one_step",
    "single_layer",
    "times",
    "tuned_ridge",
    "tuned_steps",
]

THESIS = "von Oswald, thesis (2024), chapter 3"
LOSS = "half squared error a step"
# The regulariser of the limit, the noise's variance over the mean square of W's entries; others must not be better.
RIDGES = {"orthogonal": 1e-3, "contracting": 2.6e-3}
FACTORS = {"a-third": 1 / 3, "threefold": 3.0}
# So must step sizes that differ from the tuned ones by these factors.
STEPS = {"shorter": 0.9, "longer": 1.1}
# Regularisers that are tried where theory picks none.
TRIED = (1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


# How networks on constructed tokens train, and one linear layer at the paper preset.
USUAL: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.1}
ONE_LAYER = plan(2500, 1e-3, batch=256, **USUAL)
# Settings of the quick preset of one layer.
QUICK: dict[str, Any] = {
    "training": plan(300, 5e-3, batch=32, **USUAL),
    "tasks": 2_000,
    "tune_tasks": 1_000,
    "watch_tasks": 500,
    "mesa": plan(120, 5e-2, batch=32, **USUAL),
}


@dataclass(frozen=True)
class Sequences:
    """Settings of a study of networks that predict sequences."""

    training: Training
    """How the networks train."""
    seeds: int = 5
    """Networks trained, one a seed."""
    tasks: int = 20_000
    """Fresh sequences that networks and algorithms are compared on."""
    tune_tasks: int = 10_000
    """Sequences that references are tuned on."""
    watch_tasks: int = 2_000
    """Sequences of an evaluation while training."""

    def __post_init__(self) -> None:
        require_count("seeds", self.seeds)
        for name in ("tasks", "tune_tasks", "watch_tasks"):
            require_count(name, getattr(self, name), least=2)


@dataclass(frozen=True)
class Dynamics(Sequences):
    """Settings of a study of linear dynamics: sequences of 51 elements of width 10, and how networks train on them."""

    dynamics: str = "orthogonal"
    """What sequences follow: orthogonal or contracting maps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("dynamics", self.dynamics, RIDGES)

    def family(self) -> tasks.LinearDynamics:
        """The sequences: 50 steps to predict each, first elements uniform as in the authors' code."""
        return tasks.LinearDynamics(length=51, dynamics=self.dynamics, start="uniform")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Constructed(Dynamics):
    """Settings of a study of networks on tokens put together from elements."""

    init_scale: float = 0.006
    """Variance of the initial weights, times depth and fan-in."""
    mesa: Training = field(default_factory=lambda: plan(2000, 1e-2, batch=128, **USUAL))
    """How mesa layers train."""


def channels(
    *names: str,
    n_layers: int = 1,
    attention: Any = "linear",
    token_clip: float | None = None,
    d: int = 10,
    **heads: Any,
) -> Any:
    """The config of a network on tokens put together from these channels."""
    own = nets.AttentionConfig(len(names) * d, **heads)
    transformer = nets.CausalTransformerConfig(own, n_layers, attention, token_clip=token_clip)
    return nets.SequencePredictorConfig(transformer, d, names)


def single_layer(settings: Constructed, n_heads: int, attention: str) -> Any:
    """The config of one layer on tokens (0, s_t, s_{t-1})."""
    return channels(
        "blank", "now", "before", attention=attention, n_heads=n_heads, key_size=20, init_scale=settings.init_scale
    )


def one_step(lab: Lab, settings: Dynamics) -> Any:
    """Tuned gradient descent of one step."""
    start = learners.OnlineGradientDescent(1, 0.03)
    return learners.tune(start, settings.family(), tasks=settings.tune_tasks, seed=lab.seed).learner


def around(name: str, descent: Any) -> dict[str, list[Any]]:
    """Online gradient descent, as tuned and with shorter and longer steps."""
    found = {name: [descent]}
    for word, factor in STEPS.items():
        other = copy.deepcopy(descent)
        other.eta.data.mul_(factor)
        found[f"{name}-{word}"] = [other]
    return found


def tuned_steps(name: str, *stages: str, least: float = 0.999) -> Claim:
    """A step size that is not the best would flatter every network.

    Args:
        least: what others' losses are of that of the tuned one.
    """
    return Claim(
        f"{name}-at-its-optimum",
        f"gradient descent with steps of nine or eleven tenths of the tuned size loses no less than {least:g} of it",
        lambda r: np.concatenate([r[stage].ratio(f"{name}-{word}", name) for stage in stages for word in STEPS]),
        above(least),
        ours("premise"),
        measures="loss of each other / of the tuned one",
        over="algorithms",
        at_least=len(STEPS) * len(stages),
        about="algorithms",
    )


def least_squares(settings: Dynamics) -> dict[str, list[Any]]:
    """Ridge regression on all known pairs: ``limit``, with the regulariser that theory picks, and with others."""
    ridge = RIDGES[settings.dynamics]
    named = {f"limit-{word}": [learners.RecursiveLeastSquares(factor * ridge)] for word, factor in FACTORS.items()}
    return {"limit": [learners.RecursiveLeastSquares(ridge)], **named}


def tuned_ridge(
    lab: Lab, settings: Sequences, family: Any, features: Any = None, times: Sequence[int] | None = None
) -> Any:
    """Ridge regression, on elements or features, with the regulariser that is best on sequences of its own.

    Args:
        times: numbers of elements known at which it is judged; all if None.
    """
    drawn = lab.draw(family, settings.tune_tasks, "tune")
    known = {f"{ridge:g}": learners.RecursiveLeastSquares(ridge, features=features) for ridge in TRIED}
    errors = lenses.errors_by_time({name: [learner] for name, learner in known.items()}, drawn, times)
    return known[min(known, key=lambda name: values(errors["mse", name]).sum())]


def best_ridge() -> Claim:
    """A limit with another regulariser than the best would flatter every network."""
    return Claim(
        "limit-at-its-optimum",
        "no other regulariser makes ridge regression better",
        lambda r: np.concatenate([r["comparison"].ratio(f"limit-{word}", "limit") for word in FACTORS]),
        above(0.9995),
        ours("premise"),
        measures="loss of each other ridge / of the limit",
        over="algorithms",
        at_least=len(FACTORS),
        about="algorithms",
    )


def each_with_each(found: Any, one: str, other: str) -> np.ndarray:
    """Loss of every network of one group over that of every one of the other, ``(seeds of the one, of the other)``."""
    return np.true_divide.outer(found["mse", one], found["mse", other])


def along(stage: str, title: str, shown: Mapping[str, tuple[Any, str]], d: int = 10) -> Lines:
    """Losses of a stage of `lenses.errors_by_time`; role and label of each group."""

    def read(r: Any) -> list[Line]:
        found = r[stage]
        return [Line(found.cases["t"], d / 2 * values(found["mse", name]), *line) for name, line in shown.items()]

    return Lines(title, "elements known", LOSS, read, "y")


def compared(
    lab: Lab,
    groups: Mapping[str, Sequence[Any]],
    against: Sequence[str],
    shown: Iterable[str],
    fresh: Any,
    kind: str = "",
) -> None:
    """Stage ``comparison`` of all groups and ``by-time`` of those that are shown, on the same sequences."""
    lab.stage(f"{kind}comparison", lambda: lenses.measure_predictors(groups, against, fresh))
    lab.stage(f"{kind}by-time", lambda: lenses.errors_by_time({name: groups[name] for name in shown}, fresh))


def losses(
    shown: Mapping[str, tuple[Any, str]], trained: Sequence[str], figure: str, claims: tuple[str, ...], d: int = 10
) -> Figure:
    """The losses of a study, from its trainings and from stage ``by-time``.

    Args:
        shown: role and label of each group.
        trained: those of them that are trained.
        figure: where a source has it, in words.
        d: width of an element.
    """

    def training(r: Any) -> list[Line]:
        return [Line(r[name]["step"], d / 2 * r[name]["mse"], *shown[name]) for name in trained]

    return Figure(
        "losses",
        "Loss of a step, while training and by the number of elements known; line and band: mean and range over seeds. "
        f"{figure}.",
        (Lines("", "training step", LOSS, training, "y"), along("by-time", "", shown, d)),
        columns=2,
        shared_legend=True,
        claims=claims,
    )


def times(found: Any, chosen: Sequence[int]) -> Any:
    """The part of `lenses.errors_by_time` at these numbers of known elements."""
    return found.where(np.isin(found.cases["t"], chosen))
