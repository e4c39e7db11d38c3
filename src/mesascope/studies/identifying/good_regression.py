"""Does regressing well in context imply gradient descent?

The blog post "Interpreting In-Context Learning in Language Models" (December 2024) takes four steps: layers can be
built that descend, tokens then follow the path of descent layer by layer, loss falls with depth as it does with steps,
and so a model that regresses well may be descending. The first three hold exactly of constructed networks. For the
last, learners that regress no worse are put beside the gradient descent, and the GD++, that is nearest to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, tasks
from mesascope.errors import require_count
from mesascope.evidence import Arrays, Claim, above, below, ours, printed, stage
from mesascope.reports import Figure, Level, Line, Lines
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

BLOG = 'blog post "Interpreting In-Context Learning in Language Models" (2024)'
N_CONTEXT, D_IN = 20, 5
LAYERS, ETA = 12, 0.6
RIVALS = ("ridge", "newton", "kernel-ridge")
LABELS = {"ridge": "ridge regression", "newton": "six Newton steps", "kernel-ridge": "kernel ridge regression"}
# The candidates that stand for descent.
DESCENTS = ("gradient-descent", "gradient-descent-plus-plus")


@dataclass(frozen=True)
class GoodRegression:
    """Settings of the study."""

    tasks: int = 20_000
    """Tasks that losses are measured on."""
    budget: int = 6000
    """Predictions that each rival is asked for."""
    seeds: int = 20
    """Sets of tasks."""

    def __post_init__(self) -> None:
        for name in ("tasks", "budget", "seeds"):
            require_count(name, getattr(self, name))


def _rivals() -> dict[str, Any]:
    return {
        "ridge": learners.LeastSquares(0.09),
        "newton": learners.Newton(6),
        "kernel-ridge": learners.KernelRidge("gaussian", 1e-3, 20.0),
    }


def measure(lab: Lab, settings: GoodRegression) -> None:
    """Follow a constructed network from layer to layer, and look for the descent nearest to each rival."""
    lab.stage("path", lambda: _path(lab, settings))
    lab.stage("rivals", lambda: _beside_descent(lab, settings))


def _family() -> tasks.LinearRegression:
    return tasks.LinearRegression(N_CONTEXT, D_IN, noise=0.3)


def _episode(lab: Lab, seed: int, settings: GoodRegression) -> Any:
    import torch

    from mesascope.streams import stream

    return _family().sample(settings.tasks, stream(seed, "good-regression")).to(torch.float64)


def _path(lab: Lab, settings: GoodRegression) -> Arrays:
    from mesascope.constructions import gradient_descent

    network, descent = gradient_descent(D_IN, 1, ETA, N_CONTEXT, LAYERS)
    found: dict[str, list[np.ndarray]] = {"apart": [], "network": [], "descent": []}
    for seed in lab.seeds:
        episode = _episode(lab, seed, settings)
        both: list[Any] = [network, descent]
        layers, steps = (one.trajectory(episode.context, episode.xq).detach() for one in both)
        scale = steps.square().mean().sqrt()
        found["apart"].append(((layers - steps).abs().amax((1, 2, 3)) / scale).numpy())
        for name, path in (("network", layers), ("descent", steps)):
            found[name].append((path - episode.yq).square().mean((1, 2, 3)).numpy() / 2)
    return Arrays({name: np.stack(rows) for name, rows in found.items()}, **dict.fromkeys(found, "seed layer"))


def _beside_descent(lab: Lab, settings: GoodRegression) -> Arrays:
    from mesascope.identification import candidates, identify

    descents = [one for one in candidates(_family(), sklearn=False) if one.name in DESCENTS]
    losses, low, distances = [], [], []
    for seed in lab.seeds:
        episode = _episode(lab, seed, settings)
        answers = [one(episode.context, episode.xq).detach() for one in _rivals().values()]
        losses.append([(one - episode.yq).square().mean().item() / 2 for one in answers])
        rows = [identify(one, _family(), descents, settings.budget, seed).rows for one in _rivals().values()]
        far = [[max(row.differences.values(), key=lambda one: one.low) for row in own] for own in rows]
        low.append([min(one.low for one in own) for own in far])
        distances.append([min(one.mean.value for one in own) for own in far])
    arrays = {"loss": losses, "low": low, "distance": distances}
    return Arrays(arrays, **dict.fromkeys(arrays, "seed rival"))


def _steps(r: Any) -> np.ndarray:
    """Each layer's loss over that of the layer before, ``(seeds, layers)``."""
    losses = r["path"]["network"]
    return losses[:, 1:] / losses[:, :-1]


def _as_good(r: Any) -> np.ndarray:
    """The loss of each rival over that of the deepest network."""
    return r["rivals"]["loss"] / r["path"]["network"][:, -1:]


ROUNDING = "both are computed on the same tasks in double precision"

CLAIMS = (
    Claim(
        "constructed", "a network of layers built for it predicts what as many steps of gradient descent do",
        lambda r: r["path"]["apart"][:, -1], below(1e-12), printed(BLOG),
        measures="largest difference of predictions / their size", over="draws", quantifier="exact", about="algorithms",
        exact_because=ROUNDING,
    ),
    Claim(
        "layer-by-layer", "so it does after each of its layers", lambda r: r["path"]["apart"][:, 1:], below(1e-12),
        printed(BLOG), measures="the same after each layer", over="draws", quantifier="exact", about="algorithms",
        exact_because=ROUNDING,
    ),
    Claim(
        "depth", "its loss falls with each of twelve layers", _steps, below(1.0), printed(BLOG),
        measures="loss after a layer / before it", over="draws", quantifier="mean", about="algorithms",
    ),
    Claim(
        "as-good", "ridge regression, Newton's iteration and kernel ridge regression lose no more than that network",
        _as_good, below(1.0), ours("premise"), measures="loss / of the network of twelve layers", over="draws",
        quantifier="mean", about="algorithms",
    ),
    Claim(
        "implies-descent", "and so they are within 1 % of some gradient descent or GD++ under all conditions",
        stage("rivals")["distance"], below(0.01), printed(f"{BLOG}: conclusion"), over="draws", quantifier="mean",
        premises=("as-good",), about="algorithms",
    ),
    Claim(
        "told-apart", "each is told from descent at the level that an answer states", stage("rivals")["low"],
        above(0.01), ours("identify"), over="draws", quantifier="mean", about="algorithms",
    ),
)  # fmt: skip


def _paths(r: Any) -> list[Line]:
    layers = np.arange(LAYERS + 1)
    return [
        Line(layers, r["path"]["descent"].mean(0), "gd", "gradient descent, by step"),
        Line(layers, r["path"]["network"].mean(0), "trained", "constructed network, by layer", marks="o"),
        *(
            Line(layers[-4:], np.repeat(r["rivals"]["loss"][:, index].mean(), 4), index / 3, LABELS[name])
            for index, name in enumerate(RIVALS)
        ),
    ]


def _distances(r: Any) -> list[Line | Level]:
    found = r["rivals"]["distance"]
    rivals = [
        Line(np.full(len(found), index), found[:, index], index / 3, LABELS[name], marks="o")
        for index, name in enumerate(RIVALS)
    ]
    return [*rivals, Level(0.01, "limit", "1 %")]


FIGURES = (
    Figure(
        "losses", "Left, half squared errors along the layers of a network built to descend, and of learners that are "
        "no worse than it. Right, how far each of these is from the gradient descent or GD++ nearest to it, for each "
        "set of tasks.",
        (
            Lines("", "layers, or steps", "half squared error", _paths, log="y"),
            Lines("", "", "squared difference from descent", _distances, log="y",
                  limits={"xticks": [], "ylim": (1e-3, 2)}),
        ),
        columns=2, claims=("constructed", "layer-by-layer", "depth", "as-good", "implies-descent", "told-apart"),
    ),
)  # fmt: skip

STUDY = Study(
    name="good-regression",
    source=BLOG,
    presets={"quick": GoodRegression(tasks=5000, seeds=5), "paper": GoodRegression()},
    measure=measure,
    claims=CLAIMS,
    figures=FIGURES,
)
