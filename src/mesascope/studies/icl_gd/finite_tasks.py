"""How many training tasks does a layer need to find gradient descent?

ICML paper: Figure 16. Tasks are noiseless linear regression with N = d = 10. One linear layer trains on a fixed set
of B tasks, all of them in every step and each seed on a set of its own, and is compared with one step of gradient
descent on fresh tasks and on its own.

Trained to the end, a layer reaches the one minimum of the loss on its tasks, whatever its initial weights: what
separates it from gradient descent is the sampling error of those tasks, not the training.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import constructions, learners, lenses
from mesascope.evidence import Bound, Claim, above, below, derived, ours, printed, stage, two_sided
from mesascope.reports import Figure, Level, Line, Lines
from mesascope.studies.common import converged, plan, values, watch_loss
from mesascope.studies.icl_gd.regression import PAPER, Regression, middles, network, predicted, sweep, watch
from mesascope.studies.icl_gd.shared_claims import as_predicted
from mesascope.studies.icl_gd.shared_figures import HALF_MSE, RELATIVE, SENSITIVITIES, old_relative
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

POOLS = (128, 512, 2048, 8192)
PREMISES = ("converged", "references-as-predicted")


def _cosines(r: Any) -> np.ndarray:
    return np.stack([r[f"tasks-{pool}-comparison"]["cosine", "trained", "gd"] for pool in POOLS], axis=1)


def _on_own(r: Any) -> np.ndarray:
    losses = [r[f"tasks-{pool}-own"] for pool in POOLS]
    return np.stack([own["trained"] / own["gd"] for own in losses], axis=1)


def _one_over(fewer: np.ndarray, more: np.ndarray) -> float:
    """How much nearer to a cosine of 1 four times as many tasks bring a layer."""
    return float((1 - fewer.mean()) / (1 - more.mean()))


CLAIMS = (
    converged(*(f"tasks-{pool}" for pool in POOLS), quantity="own mse"),
    as_predicted(("gd",)),
    Claim(
        "few-tasks", "trained on 128 tasks, layers fail to align with gradient descent: their cosine is below 0.95",
        lambda r: _cosines(r)[:, 0], below(0.95), printed("Fig. 16"),
        measures="mean cosine of dy/dx_q with gradient descent's, mean over pools", over="pools", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "8192-tasks", "trained on 8192 tasks, layers align with gradient descent: their cosine is above 0.99",
        lambda r: _cosines(r)[:, -1], above(0.99), printed("Fig. 16d"),
        measures="mean cosine of dy/dx_q with gradient descent's, mean over pools", over="pools", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "2048-tasks", "trained on 2048 tasks they do so less: their cosine is between 0.95 and 0.99",
        lambda r: _cosines(r)[:, -2], Bound(0.95, 0.99), ours("how much less Fig. 16c shows"),
        measures="mean cosine of dy/dx_q with gradient descent's, mean over pools", over="pools", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "one-over-tasks", "what the cosine lacks to 1 is inverse to the number of tasks: from 2048 to 8192 it falls "
        "to a quarter, within a quarter of that", lambda r: (_cosines(r)[:, -2], _cosines(r)[:, -1]),
        two_sided(1.0, around=4.0), derived("the minimiser's variance is inverse to the number of tasks"),
        measures="(1 - cosine at 2048) / (1 - cosine at 8192), of means over pools", over="pools",
        quantifier="bootstrap", premises=PREMISES, statistic=_one_over,
    ),
    Claim(
        "rising", "that cosine rises from each number of tasks to the next", lambda r: np.diff(_cosines(r), axis=1),
        above(0.0), printed("Fig. 16"), measures="rise of the cosine, mean over pools", over="pools", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "own-tasks", "on its own tasks a layer loses less than gradient descent, for each number of them", _on_own,
        below(1.0), derived("no layer has a lower loss on its tasks than the minimum"),
        measures="loss of trained / of gradient descent on the same tasks, mean over pools", over="pools",
        quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "fresh-tasks", "on fresh tasks every layer loses more than gradient descent, for each number of tasks",
        lambda r: np.stack([r[f"tasks-{pool}-comparison"].ratio("trained", "gd") for pool in POOLS], axis=1),
        above(1.0), ours("a layer judged by its own tasks would lose less"),
        measures="loss of trained / of gradient descent", over="pools", premises=(*PREMISES, "own-tasks"),
    ),
    Claim(
        "input-scale",
        "trained on 8192 tasks, layers lose within 10 % of gradient descent on inputs scaled " "by 0.5 to 2",
        stage("tasks-8192-input-scale").ratio("trained", "gd"), two_sided(0.1), printed("Fig. 16d right"), over="pools",
        quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "interpolation", "trained on 2048 or 8192 tasks, layers halfway to the construction lose less on fresh tasks "
        "than the trained ones",
        lambda r: np.stack([r[f"tasks-{pool}-comparison"].ratio("middle", "trained") for pool in POOLS[2:]], 1),
        below(1.0), printed("Fig. 16"), measures="loss at the midpoint / of trained", over="pools", premises=PREMISES,
    ),
    Claim(
        "interpolated-input-scale", "halfway between layers trained on 8192 tasks and the construction, losses are "
        "within 5 % of gradient descent's on inputs scaled by 0.5 to 2",
        stage("tasks-8192-input-scale").ratio("middle", "gd"), two_sided(0.05), printed("Fig. 16d right"), over="pools",
        quantifier="mean", premises=PREMISES,
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Regression) -> None:
    """Train on each number of tasks and compare."""
    family = settings.family()
    gd = learners.GradientDescent(1, learners.one_step_optimum(family).eta)
    lab.stage("predicted", lambda: predicted(lab, settings, {"gd": gd}))
    for pool in POOLS:
        _pool(lab, settings, pool, gd)


def _pool(lab: Lab, settings: Regression, pool: int, gd: Any) -> None:
    family = settings.family()
    fixed = dataclasses.replace(family, pool=pool)
    own = [fixed.seeded(seed).sample(pool, lab.stream("pool")) for seed in lab.seeds]
    aligned = watch({"gd": gd}, lab.draw(family, settings.sweep_tasks, "watch"))
    looks = [watch_loss(**{"own mse": one}) for one in own]
    trained = lab.train(
        f"tasks-{pool}", network(settings), fixed, dataclasses.replace(settings.training, batch=pool),
        watch=[lambda net, look=look: aligned(net) | look(net) for look in looks],
    )  # fmt: skip
    fresh, pairs = lab.draw(family, settings.tasks, "eval"), list(zip(trained, looks, strict=True))
    built = constructions.gradient_descent(10, 1, gd.eta.item(), 10).network.float().to(lab.device)
    groups = {"trained": trained, "gd": [gd], "middle": middles(trained, [built] * len(trained))}
    lab.stage(f"tasks-{pool}-comparison", lambda: lenses.measure_together(groups, ["gd"], fresh))
    lab.stage(f"tasks-{pool}-input-scale", lambda: sweep(lab, settings, groups, "input-scale"))
    lab.stage(
        f"tasks-{pool}-own",
        lambda: {
            "trained": [look(net)["own mse"] for net, look in pairs],
            "gd": [look(gd)["own mse"] for look in looks],
        },
    )


def _lines(r: Any, quantity: str, factor: float = 1.0) -> list[Line | Level]:
    shades = np.linspace(0, 1, len(POOLS))
    runs = [(r[f"tasks-{pool}"], shade, f"{pool} tasks") for pool, shade in zip(POOLS, shades, strict=True)]
    return [Line(run["step"], factor * run[quantity], shade, label) for run, shade, label in runs]


def _loss(r: Any) -> list[Line | Level]:
    gd = float(r[f"tasks-{POOLS[0]}"]["gd mse"].mean()) / 2
    return [*_lines(r, "mse", 0.5), Level(gd, "gd", "gradient descent")]


def _away(r: Any, pool: int) -> list[Line | Level]:
    swept = r[f"tasks-{pool}-input-scale"]
    shown = (("trained", "trained", "trained layers"), ("middle", "interpolated", "halfway to the construction"))
    x = old_relative(swept, "x_scale")
    lines = [Line(x, values(swept.ratio(name, "gd")), role, label) for name, role, label in shown]
    return [Level(1.0, "limit"), *lines]


FIGURES = (
    Figure(
        "finite-tasks",
        "Layers trained on fixed sets of tasks, on fresh tasks; line and band: mean and range over sets. "
        "Paper: Fig. 16.",
        (
            Lines(
                "", "training step", SENSITIVITIES,
                lambda r: _lines(r, "gd cosine"),
            ),
            Lines("", "training step", f"{HALF_MSE}, fresh tasks", _loss, "y"),
        ),
        columns=2,
        claims=("few-tasks", "8192-tasks", "2048-tasks", "one-over-tasks", "rising", "own-tasks", "fresh-tasks"),
    ),
    Figure(
        "away", "Loss of trained layers, and of those halfway to the construction, over gradient descent's on the same "
        "tasks, mean and range over sets: on inputs of other scales, and on fresh tasks. Paper: Fig. 16.",
        (
            *(
                Lines(f"{pool} tasks", RELATIVE, "loss / of gradient descent", lambda r, pool=pool: _away(r, pool), "y")
                for pool in POOLS
            ),
        ),
        columns=2,
        claims=("input-scale", "interpolation", "interpolated-input-scale"),
    ),
)  # fmt: skip

STUDY = Study(
    name="finite-tasks",
    source=f"{PAPER}: Fig. 16",
    presets={
        "quick": Regression(plan(800, 4e-3), init_scale=0.02, seeds=10),
        "paper": Regression(plan(5000, 1e-3, clip=0.001), seeds=10),
    },
    measure=measure,
    trainings=4,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Ten seeds train, each on a set of tasks of its own: these sets differ too much for five to decide.",
        "The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",
    ),
)
