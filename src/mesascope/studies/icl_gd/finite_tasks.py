"""How many training tasks does a layer need to find gradient descent?

ICML paper: Figure 16. Tasks are noiseless linear regression with N = d = 10. Each seed trains one
linear layer on its own fixed set of B tasks, with all B in every step. The layer is compared with one step of gradient
descent on fresh tasks and on its training tasks.

The loss on the training tasks has one minimum, which a converged layer reaches from any initial weights. The layer
differs from gradient descent because of the sampling error of its tasks, not because of its training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mesascope import constructions, lenses, study
from mesascope.studies.common import converged, plan, watch_loss
from mesascope.studies.icl_gd import bugs, regression, shared
from mesascope.studies.icl_gd.regression import Regression
from mesascope.study import Bound, Claim, Level, Line, Lines, Reading, StageReading, Study, above, below, printed, stage

POOLS = (128, 512, 2048, 8192)
PREMISES = ("converged", "references-as-predicted")

away = stage("tasks-8192-input-scale")


def measure(lab: study.Lab, settings: Regression) -> None:
    gd = regression.best_step(settings.family())
    lab.stage("predicted", regression.predicted, lab, settings, {"gd": gd})
    for pool in POOLS:
        _pool(lab, settings, pool, gd)


def _pool(lab: study.Lab, settings: Regression, pool: int, gd: Any) -> None:
    family = settings.family()
    fixed = settings.family(pool=pool)
    own = [fixed.seeded(seed).sample(pool, lab.stream("pool")) for seed in lab.seeds]
    aligned = regression.watch_alignment({"gd": gd}, lab.draw(family, settings.sweep_tasks, "watch"))
    looks = [watch_loss(**{"own mse": one}) for one in own]
    trained = lab.train(
        f"tasks-{pool}", regression.network(settings), fixed, dataclasses.replace(settings.training, batch=pool),
        watch=[lambda net, look=look: aligned(net) | look(net) for look in looks],
    )  # fmt: skip
    built = constructions.gradient_descent(10, 1, gd.eta.item(), 10).network.float().to(lab.device)
    groups = {"trained": trained, "gd": [gd], "middle": regression.midpoints(trained, [built] * len(trained))}
    fresh = lab.draw(family, settings.tasks, "eval")
    lab.stage(f"tasks-{pool}-comparison", lenses.measure_learners, groups, ["gd"], fresh)
    lab.stage(f"tasks-{pool}-input-scale", regression.sweep, lab, settings, groups, "input-scale")
    lab.stage(f"tasks-{pool}-own", lambda: {
        "trained": [look(net)["own mse"] for net, look in zip(trained, looks, strict=True)],
        "gd": [look(gd)["own mse"] for look in looks],
    })  # fmt: skip


def _compared(pool: int) -> StageReading:
    return stage(f"tasks-{pool}-comparison")


def _cosine(pool: int) -> Reading:
    return _compared(pool)["cosine", "trained", "gd"]


def _curves(y: str, quantity: str, factor: float = 1.0, levels: Sequence[Level] = (), log: str = "") -> Lines:
    """A logged quantity by training step, one line per number of tasks."""
    runs, shades = [stage(f"tasks-{pool}") for pool in POOLS], np.linspace(0, 1, len(POOLS))
    lines = [
        Line(run["step"], factor * run[quantity], shade, f"{pool} tasks")
        for run, shade, pool in zip(runs, shades, POOLS, strict=True)
    ]
    return Lines("", "training step", y, [*lines, *levels], log)


def _away(pool: int) -> Lines:
    swept = stage(f"tasks-{pool}-input-scale")
    shown = {
        swept.ratio("trained", "gd"): ("trained", "trained layers"),
        swept.ratio("middle", "gd"): ("interpolated", "halfway to the construction"),
    }
    return study.sweep(
        shared.RELATIVE, "loss / of gradient descent", shared.relative(swept, "x_scale"), shown, [Level(1.0, "limit")],
        title=f"{pool} tasks",
    )  # fmt: skip


# Claim about sets of tasks, by default about their median.
_over_pools = partial(Claim, over="pools", quantifier="median")

FINITE_TASKS = study.Figure(
    "finite-tasks", "Layers trained on fixed sets of tasks, on fresh tasks; line and band: mean and range over "
    "sets. Paper: Fig. 16.", (
        _curves(shared.SENSITIVITIES, "gd cosine"),
        _curves(
            f"{shared.HALF_MSE}, fresh tasks", "mse", 0.5,
            [Level(stage("tasks-128")["gd mse"] / 2, "gd", "gradient descent")], "y",
        ),
    ), claims=(
        _over_pools("few-tasks", "trained on 128 tasks, layers have a median cosine below 0.95 with gradient descent",
                    _cosine(128), below(0.95), printed("Fig. 16")),
        _over_pools("8192-tasks", "trained on 8192 tasks, layers have a median cosine above 0.99 with gradient descent",
                    _cosine(8192), above(0.99), printed("Fig. 16d")),
        _over_pools("2048-tasks", "trained on 2048 tasks, layers have a median cosine between 0.95 and 0.99 with "
                    "gradient descent", _cosine(2048), Bound(0.95, 0.99), study.ours("the bounds; Fig. 16c"),
                    former="printed, with a bound > 0.99, failed"),
        _over_pools("one-over-tasks", "1 minus the median cosine is inversely proportional to the number of tasks: "
                    "with 2048 tasks it is 3 to 5 times as large as with 8192",
                    lambda r: (_cosine(2048)(r), _cosine(8192)(r)), study.two_sided(1.0, around=4.0),
                    study.derived("the minimiser's variance is inversely proportional to the number of tasks"),
                    measures="(1 - cosine at 2048) / (1 - cosine at 8192), of medians over pools",
                    quantifier="bootstrap",
                    statistic=lambda fewer, more, axis=-1: (1 - np.median(fewer, axis)) / (1 - np.median(more, axis)),
                    former="of means over pools, held"),
        _over_pools("rising", "the median cosine with gradient descent rises from each number of tasks to the next",
                    study.beside(map(_cosine, POOLS), "").map(partial(np.diff, axis=1), "rise of the cosine"),
                    above(0.0), printed("Fig. 16")),
        _over_pools("own-tasks", "on its own tasks the median layer has a smaller loss than gradient descent, for each "
                    "number of tasks",
                    study.beside([own["trained"] / own["gd"] for own in (stage(f"tasks-{pool}-own") for pool in POOLS)],
                                 "loss of trained / of gradient descent on the same tasks"), below(1.0),
                    study.derived("no layer has a lower loss on its tasks than the minimum")),
        _over_pools("fresh-tasks", "on fresh tasks each layer has a larger loss than gradient descent, for each number "
                    "of tasks",
                    study.beside([_compared(pool).ratio("trained", "gd") for pool in POOLS],
                                 "loss of trained / of gradient descent"), above(1.0),
                    study.ours("its own tasks would give a smaller loss"), quantifier="every",
                    premises=(*PREMISES, "own-tasks")),
    ),
)  # fmt: skip

AWAY = study.Figure(
    "away", "Loss of trained layers, and of those halfway to the construction, over gradient descent's on the "
    "same tasks, mean and range over sets: on inputs of other scales, and on fresh tasks. Paper: Fig. 16.",
    tuple(map(_away, POOLS)), columns=2, claims=(
        _over_pools("input-scale", "trained on 8192 tasks, the median layer has a loss within 10 % of gradient "
                    "descent's on inputs scaled by 0.5 to 2",
                    away.ratio("trained", "gd"), study.two_sided(0.1), printed("Fig. 16d right")),
        _over_pools("interpolation", "halfway to the construction, layers trained on 2048 or 8192 tasks have a smaller "
                    "loss on fresh tasks than the trained layers",
                    study.beside([_compared(pool).ratio("middle", "trained") for pool in POOLS[2:]],
                                 "loss at the midpoint / of trained"), below(1.0),
                    study.ours("whether averaging with the construction helps"), quantifier="every",
                    former="printed, held"),
        _over_pools("interpolated-input-scale", "halfway between layers trained on 8192 tasks and the construction, "
                    "median losses are within 5 % of gradient descent's on inputs scaled by 0.5 to 2",
                    away.ratio("middle", "gd"), study.two_sided(0.05), printed("Fig. 16d right")),
    ),
)  # fmt: skip


def _seen_tasks(draw: Any) -> Any:
    """Replace the fresh tasks by the 2,048 training tasks of the first network."""

    def wrong(self: Any, family: Any, tasks: int, name: str) -> Any:
        if name != "eval":
            return draw(self, family, tasks, name)
        return dataclasses.replace(family, pool=2048).seeded(self.seed).sample(2048, self.stream(name))

    return wrong


STUDY = Study(
    name="finite-tasks",
    source=f"{regression.PAPER}: Fig. 16",
    presets={
        "quick": Regression(plan(800, 4e-3), init_scale=0.02, seeds=10),
        "paper": Regression(plan(5000, 1e-3, clip=0.001), seeds=20),
    },
    measure=measure,
    trainings=4,
    premises=PREMISES,
    claims=(
        converged(*(f"tasks-{pool}" for pool in POOLS), quantity="own mse", most=0.1, log=True, each=False,
                  former="of the losses themselves, for each network, held"),
        shared.as_predicted(("gd",)),
    ),
    figures=(FINITE_TASKS, AWAY),
    deviations=(
        "Twenty seeds train, each on a set of tasks of its own: these sets differ too much for five to decide.",
        shared.AVERAGED, shared.CLIPPED, shared.INPUTS, shared.INITIAL,
    ),
    mutations=(
        study.Mutation("fresh tasks are those that the first network was trained on",
                       "mesascope.studies.lab:Lab.draw", _seen_tasks),
        study.Mutation("each network's own tasks are those of the next seed",
                       "mesascope.tasks.regression:LinearRegression.seeded",
                       lambda seeded: lambda self, seed: seeded(self, seed + 1)),
        bugs.HALF_STEP, bugs.SHIFTED_TARGETS, bugs.LEAK, bugs.FIRST_END,
    ),
    mutated={"training": plan(300, 1.2e-2), "tasks": 6000, "sweep_tasks": 300, "tune_tasks": 5000, "seeds": 12},
)  # fmt: skip
