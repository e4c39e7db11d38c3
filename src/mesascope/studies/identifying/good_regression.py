"""Does regressing well in context imply gradient descent?

The blog post "Interpreting In-Context Learning in Language Models" (December 2024) argues in four steps: layers can be
constructed to run gradient descent, their tokens follow its path layer by layer, the loss falls with depth as it does
with steps, and so a model that regresses well may run gradient descent. The first three hold exactly for constructed
networks. For the last, learners that regress equally well are compared with the nearest gradient descent and GD++.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mesascope import constructions, identification, learners, study, tasks
from mesascope.studies.icl_gd import bugs
from mesascope.studies.identifying.regressors import drawn, marks
from mesascope.study import Arrays, Claim, Count, Level, Line, Lines, Mutation, Study, above, below, frozen, ours, stage

BLOG = 'blog post "Interpreting In-Context Learning in Language Models" (2024)'
N_CONTEXT, D_IN = 20, 5
LAYERS, ETA = 12, 0.6
RIVALS = ("ridge regression", "six Newton steps", "kernel ridge regression")
# The candidates that count as descent.
DESCENTS = ("gradient-descent", "gradient-descent-plus-plus")
ROUNDING = "both are computed on the same tasks in double precision"
# Half the Bayes risk of the family, sigma^2 E[x^T (X^T X + sigma^2 I)^{-1} x] / 2, from a million contexts.
OPTIMUM = 0.014748

path = stage("path", apart="largest difference of predictions / their size", network="loss of the network")
rivals = stage(
    "rivals", loss="loss of each", distance="normalised squared difference from the nearest descent",
    low="lower bound on the difference from the nearest descent",
)  # fmt: skip


@frozen
class GoodRegression:
    tasks: Count = 20_000  # Tasks for measuring losses.
    budget: Count = 6000  # Predictions of each rival for `identify`.
    seeds: Count = 20  # Sets of tasks.


def measure(lab: study.Lab, settings: GoodRegression) -> None:
    lab.stage("path", _path, lab.seeds, settings.tasks)
    lab.stage("rivals", _beside_descent, lab.seeds, settings)


def _family() -> tasks.LinearRegression:
    return tasks.LinearRegression(N_CONTEXT, D_IN, noise=0.3)


def _path(seeds: Sequence[int], count: int) -> Arrays:
    network, descent = constructions.gradient_descent(D_IN, 1, ETA, N_CONTEXT, LAYERS)
    found: dict[str, list[np.ndarray]] = {"apart": [], "network": [], "descent": []}
    for seed in seeds:
        episode = drawn(_family(), count, seed, "good-regression")
        both: list[Any] = [network, descent]
        layers, steps = (one.trajectory(episode.context, episode.xq).detach() for one in both)
        scale = steps.square().mean().sqrt()
        found["apart"].append(((layers - steps).abs().amax((1, 2, 3)) / scale).numpy())
        for name, path in (("network", layers), ("descent", steps)):
            found[name].append((path - episode.yq).square().mean((1, 2, 3)).numpy() / 2)
    return Arrays(found, **dict.fromkeys(found, "seed layer"))


def _beside_descent(seeds: Sequence[int], settings: GoodRegression) -> Arrays:
    known = (learners.LeastSquares(0.09), learners.Newton(6), learners.KernelRidge("gaussian", 1e-3, 20.0))
    descents = [one for one in identification.candidates(_family(), sklearn=False) if one.name in DESCENTS]
    found: dict[str, list[list[float]]] = {"loss": [], "low": [], "distance": []}
    for seed in seeds:
        episode = drawn(_family(), settings.tasks, seed, "good-regression")
        answers = [one(episode.context, episode.xq).detach() for one in known]
        found["loss"].append([(one - episode.yq).square().mean().item() / 2 for one in answers])
        # A tolerance of 1 rules no descent out early, so each is compared on all tasks of all conditions.
        rows = [
            identification.identify(one, _family(), descents, settings.budget, seed, tolerance=1.0).rows
            for one in known
        ]
        found["low"].append([min(max(x.low for x in row.differences.values()) for row in own) for own in rows])
        found["distance"].append(
            [min(max(x.mean.value for x in row.differences.values()) for row in own) for own in rows]
        )
    return Arrays(found, **dict.fromkeys(found, "seed rival"))


def _losses() -> list[Line]:
    """Mean losses by step and by layer, and losses of the rivals at the right end."""
    layers = np.arange(LAYERS + 1)
    means = {name: path[name].map(lambda losses: losses.mean(0), "mean") for name in ("descent", "network")}
    ends = rivals["loss"].map(lambda losses: np.repeat(losses.mean(0)[:, None], 4, 1), "mean")
    return [
        Line(layers, means["descent"], "gd", "gradient descent, by step"),
        Line(layers, means["network"], "trained", "constructed network, by layer", marks="o"),
        *(Line(layers[-4:], ends.at(index, label), index / 3, label) for index, label in enumerate(RIVALS)),
    ]


def _distances(r: Any) -> list[Line | Level]:
    return [*marks(dict(zip(RIVALS, rivals(r)["distance"].T, strict=True))), Level(0.01, "limit", "1 %")]


STUDY = Study(
    name="good-regression",
    source=BLOG,
    presets={"quick": GoodRegression(tasks=5000, seeds=5), "paper": GoodRegression()},
    measure=measure, quantifier="median", claims=(),
    figures=(
        study.Figure("losses", "Left, half squared errors along the layers of a network built to descend, and of "
                     "learners that are no worse than it. Right, how far each of these is from the gradient descent "
                     "or GD++ nearest to it, for each set of tasks.", (
            Lines("", "layers, or steps", "half squared error", _losses(), log="y"),
            Lines("", "", "squared difference from descent", _distances, log="y",
                  limits={"xticks": [], "ylim": (1e-3, 2)}),
        ), claims=(
            Claim("constructed", "a network built for it makes the predictions of as many steps of gradient descent",
                  path["apart"].at((slice(None), -1), "after the last layer"), below(1e-12), study.printed(BLOG),
                  over="draws", quantifier="exact", about="algorithms", exact_because=ROUNDING),
            Claim("layer-by-layer", "after each of its layers, the built network makes the predictions of as many "
                  "steps of gradient descent",
                  path["apart"].at((slice(None), slice(1, None)), "after each layer"), below(1e-12),
                  study.printed(f"{BLOG}: composed to several steps"), over="draws", quantifier="exact",
                  about="algorithms", exact_because=ROUNDING),
            Claim("depth", "the built network's loss falls with each of twelve layers",
                  path["network"].map(lambda loss: loss[:, 1:] / loss[:, :-1], "loss after a layer / before it"),
                  below(1.0), study.derived(f"{BLOG}, on trained networks"), over="draws", about="algorithms",
                  former="printed, held"),
            Claim("as-good", "ridge regression, Newton's iteration and kernel ridge regression have losses at most "
                  "that of the built network",
                  rivals["loss"] / path["network"].at((slice(None), slice(-1, None)), "at its end"), below(1.0),
                  ours("premise"), over="draws", about="algorithms"),
            Claim("implies-descent", "ridge regression and kernel ridge regression, which have closed forms, are "
                  "within 1 % of some gradient descent or GD++ under all conditions",
                  rivals["distance"].at((slice(None), [0, 2]), "of ridge and kernel ridge regression"), below(0.01),
                  study.derived(f"{BLOG}: conclusion, which suggests it"),
                  over="draws", premises=("as-good",), about="algorithms", former="printed, also of Newton, failed"),
            Claim("optimum", "control: the loss of ridge regression is within 10 % of the Bayes risk",
                  rivals["loss"].map(lambda loss: loss[:, 0] / OPTIMUM, "loss of ridge regression / Bayes risk"),
                  study.two_sided(0.1), study.derived("control: the posterior mean of noisy linear tasks"),
                  over="draws", about="algorithms"),
            Claim("told-apart", "the lower confidence bound of the difference of each of these regressors from every "
                  "descent is above 1 % of the mean squared prediction",
                  rivals["low"], above(0.01), ours("identify"), over="draws", about="algorithms"),
        )),
    ),
    mutations=(
        bugs.HALF_STEP, bugs.SHIFTED_TARGETS,
        Mutation(bugs.LEAK.bug, f"{__name__}:drawn", bugs.LEAK.wrong),
        Mutation("all sets of tasks are equal", f"{__name__}:drawn",
                 lambda draw: lambda family, count, seed, name: draw(family, count, 0, name)),
        Mutation("candidates are compared on the family's own tasks alone",
                 "mesascope.identification.conditions:CONDITIONS", lambda conditions: {}),
    ),
    mutated={"tasks": 3000, "budget": 250, "seeds": 8},
)  # fmt: skip
