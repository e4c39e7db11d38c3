"""Does one trained linear self-attention layer run one step of gradient descent?

ICML paper: Figures 1 (right), 2, 6a, 9 (left) and 10. Tasks are noiseless linear regression with N = d inputs from
a uniform law around 0, as in the authors' code. The trained layer is compared with gradient descent at the closed-form
best step size, on fresh tasks that both see. Other layers train with the query's token among those that keys and values
come from, which the paper leaves out.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import constructions, learners, lenses, nets, tasks
from mesascope.evidence import Arrays, Estimates
from mesascope.studies.common import plan, watch_loss
from mesascope.studies.icl_gd.one_step_claims import CLAIMS, SIZES
from mesascope.studies.icl_gd.one_step_figures import FIGURES
from mesascope.studies.icl_gd.regression import PAPER, SWEEPS, Regression, halfway, middles, network, sweep, watch
from mesascope.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

DAMPINGS = (1.0, 0.75, 0.5)
APPLICATIONS = 50


@dataclass(frozen=True)
class OneStep(Regression):
    """Settings of the study."""

    sizes: Training = field(default_factory=lambda: plan(600, 2e-3, decay_from=0.5))
    """How the networks of the other sizes N = d train."""


def measure(lab: Lab, settings: OneStep) -> None:
    """Train one layer a seed for each size, and compare them with gradient descent and its construction."""
    for size in SIZES:
        _size(lab, settings, size)
    trained, gd, built = _size(lab, settings, 10)
    groups = {"trained": trained, "gd": [gd]}
    fresh = lab.draw(settings.family(), settings.tasks, "eval")
    few = fresh.part(0, settings.sweep_tasks)
    around = groups | {"middle": middles(trained, [built] * len(trained))}
    for kind in SWEEPS:
        lab.stage(kind, lambda kind=kind: sweep(lab, settings, around, kind))
    for damping in DAMPINGS:
        lab.stage(f"damping-{damping}", lambda damping=damping: _roll_out(groups, few, damping))
    lab.stage("unstable", lambda: _unstable(lab, settings, gd))
    lab.stage("weights", lambda: _read(trained, built))
    lab.stage("construction", lambda: _read([built], built))
    lab.stage("step-sizes", lambda: {"eta": [lenses.step_sizes(net, 10).eta[0].item() for net in trained]})
    lab.stage("optima", lambda: _optima(lab, settings))
    lab.stage("limits", lambda: _limits(lab, settings))
    _with_query(lab, settings, gd, fresh)


def _with_query(lab: Lab, settings: OneStep, gd: Any, fresh: tasks.Episode) -> None:
    """Layers whose keys and values come from the query's token, too."""
    config = dataclasses.replace(network(settings), layout=nets.WithQuery())
    watched = watch_loss(mse=lab.draw(settings.family(), settings.sweep_tasks, "watch"))
    trained = lab.train("with-query", config, settings.family(), settings.sizes, watch=watched)
    groups = {"trained": trained, "gd": [gd]}
    lab.stage("with-query-comparison", lambda: lenses.measure_together(groups, ["gd"], fresh))


def _size(lab: Lab, settings: OneStep, size: int) -> tuple[list[Any], Any, Any]:
    """The trained layers, gradient descent at its best, and the layer built to run it, for N = d = ``size``."""
    family = settings.family(n_context=size, d_in=size)
    eta = learners.one_step_optimum(family).eta
    gd = learners.GradientDescent(1, eta)
    built = constructions.gradient_descent(size, 1, eta, size).network.float().to(lab.device)
    watched = watch({"gd": gd}, lab.draw(family, settings.sweep_tasks, "watch"))
    training = settings.training if size == 10 else settings.sizes
    trained = lab.train(f"size-{size}", network(settings, size + 1), family, training, watch=watched)

    def compared() -> Estimates:
        fresh = lab.draw(family, settings.tasks, "eval")
        return halfway(trained, [built] * len(trained), fresh, {"gd": [gd]})

    lab.stage(f"size-{size}-comparison", compared)
    return trained, gd, built


def _optima(lab: Lab, settings: OneStep) -> Arrays:
    """For each size, the closed form beside what tuning finds on tasks of its own."""
    families = [_many(settings, size) for size in SIZES]
    closed = [learners.one_step_optimum(family) for family in families]
    start, count = learners.GradientDescent(1, 1.0), max(settings.tasks // 5, 2)
    found = [learners.tune(start, one, tasks=count, seed=lab.seed).step_sizes["eta"][0] for one in families]
    columns = {
        "size": SIZES,
        "limit": [one.mse for one in closed],
        "optimum": [one.eta for one in closed],
        "tuned": [one.value for one in found],
        "stderr": [one.stderr for one in found],
    }
    return Arrays(columns, **dict.fromkeys(columns, "size"))


def _limits(lab: Lab, settings: OneStep) -> Estimates:
    """For each size, the loss of gradient descent at the closed-form step size."""
    points = []
    for size in SIZES:
        family = _many(settings, size)
        gd = learners.GradientDescent(1, learners.one_step_optimum(family).eta)
        errors = lenses.per_task_errors(gd, lab.draw(family, settings.tasks, "limit"))
        points.append(Estimates.of({("mse", "gd"): [errors.double().cpu().numpy()]}))
    return Estimates.over({"size": SIZES}, points)


def _many(settings: OneStep, size: int) -> tasks.LinearRegression:
    """Contexts of N = d with ten teachers and ten queries each, which leaves a third of the error of one."""
    return settings.family(n_context=size, d_in=size, d_out=10, n_query=10)


def _roll_out(groups: Mapping[str, Sequence[Any]], few: tasks.Episode, damping: float) -> Estimates:
    """Losses after each application of a rule, in float64, on all contexts and on those where descent is stable.

    Damped gradient descent is stable on a context if damping * eta * lambda_max < 2. On the few others any rule of this
    step size diverges, and their losses alone decide the mean over all contexts after some tens of applications.
    """
    exact = few.to(few.xq.double().dtype)
    (gd,) = groups["gd"]
    stable = damping * gd.eta.item() * _largest_curvature(exact) < 2
    errors = {
        name: [
            lenses.trajectory_errors(lenses.rollout(copy.deepcopy(one).double(), APPLICATIONS, damping), exact)
            .cpu()
            .numpy()
            for one in members
        ]
        for name, members in groups.items()
    }
    points = []
    for step in range(APPLICATIONS + 1):
        tasks_of: dict[tuple[str, ...], list[np.ndarray]] = {("share", "stable"): [stable]}
        for name, members in errors.items():
            # Numbers whose mean over all tasks is that over the stable ones; others may have overflowed.
            kept = [np.where(stable, error, 0.0) / stable.mean() for error in members]
            tasks_of["all", name] = [error[step] for error in members]
            tasks_of["grows", name] = [error[step] > error[0] for error in members]
            tasks_of["stable", name] = [error[step] for error in kept]
            tasks_of["change", name] = [error[step] - error[max(step - 1, 0)] for error in kept]
        tasks_of["worse", "trained"] = [error[step] > errors["gd"][0][step] for error in errors["trained"]]
        points.append(Estimates.of(tasks_of))
    return Estimates.over({"application": range(APPLICATIONS + 1)}, points)


def _unstable(lab: Lab, settings: OneStep, gd: Any) -> Estimates:
    """The share of contexts on which gradient descent diverges in the end, for each damping; they are few."""
    spectra = learners.gram_spectra(settings.family(), 10 * settings.tasks, lab.stream("unstable"))
    largest = spectra[:, -1].cpu().numpy()
    points = [Estimates.of({("share",): [damping * gd.eta.item() * largest > 2]}) for damping in DAMPINGS]
    return Estimates.over({"damping": DAMPINGS}, points)


def _largest_curvature(episodes: tasks.Episode) -> np.ndarray:
    """The largest eigenvalue of X^T X / N of each context."""
    x = episodes.context.x.cpu().numpy()
    return np.linalg.eigvalsh(np.swapaxes(x, -1, -2) @ x / x.shape[-2])[:, -1]


def _read(networks: Sequence[Any], built: Any) -> dict[str, Any]:
    """Rescaled products of each seed's layer, and their distance from the construction's."""
    read = [lenses.weights(net, built)[0][0] for net in networks]
    return {
        "w_kq": [one.w_kq.cpu().numpy() for one in read],
        "w_pv": [one.w_pv.cpu().numpy() for one in read],
        "off_diagonal": [one.off_diagonal for one in read],
        "distance_kq": [one.distance_kq for one in read],
    }


STUDY = Study(
    name="one-step",
    source=f"{PAPER}: Figs. 1, 2, 6a, 9 and 10",
    presets={
        "quick": OneStep(plan(1500, 2e-3, decay_from=0.5), init_scale=2e-5, sweep_tasks=4000),
        "paper": OneStep(
            plan(5000, 1e-3, decay_from=0.5, clip=0.001),
            init_scale=2e-5,
            sweep_tasks=20_000,
            sizes=plan(2500, 1e-3, decay_from=0.5, clip=0.001),
        ),
    },
    measure=measure,
    trainings=5,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",
        "Initial weights are ten times smaller: the column of W_KQ that meets the query's zero target has no "
        "gradient and keeps its initial size.",
        "Layers of the other sizes train for half as many steps.",
    ),
)
