"""Does one trained linear self-attention layer run one step of gradient descent?

ICML paper: Figures 1 (right), 2, 6a, 9 (left) and 10. Tasks are noiseless linear regression with N = d inputs from
U(-0.5, 0.5), as in the authors' code. The trained layer is compared with gradient descent at the closed-form best step
size, on fresh tasks that both see.

Two settings differ from the authors'. The learning rate decays and weights are averaged, which removes the noise that
Adam leaves. And initial weights are ten times smaller, so that the column of W_KQ that no prediction reads (it meets
the query's zero target) starts, and therefore ends, small enough for the whole matrix to be held to the construction.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mesascope.constructions import gradient_descent
from mesascope.errors import require_count
from mesascope.learners import GradientDescent, one_step_optimum, tune
from mesascope.lenses import agreement, interpolate, rollout, trajectory_errors, weights
from mesascope.nets import InContextRegressor, TransformerConfig
from mesascope.streams import stream
from mesascope.studies.icl_gd.one_step_claims import CLAIMS, judge
from mesascope.studies.icl_gd.one_step_figures import draw
from mesascope.studies.icl_gd.regression import Evaluate, Regression, comparison, halfway, scales, train_nets, watch
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study
from mesascope.tasks import Episode, LinearRegression

__all__ = ["STUDY", "OneStep"]

SIZES = (5, 10, 15, 20)
INPUT_SCALES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
TEACHER_SCALES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
OTHER_LAWS = ("normal", "exponential", "laplace")
OTHER_SCALES = (0.25, 0.5, 1.0)
DAMPINGS = (1.0, 0.75, 0.5)
ROLLOUT_STEPS = 50


@dataclass(frozen=True)
class OneStep(Regression):
    """Settings of the study."""

    decay_from: float = 0.5
    init_scale: float = 2e-5
    size_steps: int = 600
    """Training steps of the networks of the other sizes N = d."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("size_steps", self.size_steps)


def measure(lab: Lab, settings: OneStep) -> Results:
    """Train and compare; every array behind the claims and the figures."""
    family = settings.family
    optimum = one_step_optimum(family)
    gd = {"gd": GradientDescent(1, optimum.eta)}
    construction = gradient_descent(10, 1, optimum.eta, 10).network.float().to(lab.device)
    watched = family.sample(settings.sweep_tasks, stream(lab.seed, "watch", 0, lab.device))
    nets = _train(lab, settings, 10, watch(gd, watched))
    fresh = family.sample(settings.tasks, stream(lab.seed, "eval", 0, lab.device))
    few = fresh.part(0, settings.sweep_tasks)
    sweeps = {
        "input-scale": {"x_scale": INPUT_SCALES},
        "teacher-scale": {"w_scale": TEACHER_SCALES},
        "other-inputs": {"x": OTHER_LAWS, "x_scale": OTHER_SCALES},
    }
    stages = {
        "training": lambda: {**lab.curves("size-10"), "limit": np.array(optimum.mse)},
        "comparison": lambda: comparison(nets, gd, fresh),
        "interpolation": lambda: halfway(nets, [construction] * len(nets), fresh),
        "dimensions": lambda: _dimensions(lab, settings),
        "rollouts": lambda: _rollouts(nets, gd["gd"], few),
        "weights": lambda: _weights(nets, construction),
        **{name: lambda over=over: scales(lab, settings, nets, gd, over) for name, over in sweeps.items()},
    }
    return {name: lab.stage(name, compute) for name, compute in stages.items()}


def _train(lab: Lab, settings: OneStep, size: int, evaluate: Evaluate | None = None) -> list[InContextRegressor]:
    """One linear self-attention layer a seed, for N = d = ``size``."""
    training = settings.training
    if size != 10:
        training = dataclasses.replace(training, steps=settings.size_steps)
    config = TransformerConfig(width=size + 1, init_scale=settings.init_scale)
    return train_nets(lab, f"size-{size}", config, _family(settings, size), training, evaluate)


def _family(settings: OneStep, size: int) -> LinearRegression:
    return dataclasses.replace(settings.family, n_context=size, d_in=size)


def _dimensions(lab: Lab, settings: OneStep) -> dict[str, np.ndarray]:
    """For each N = d: trained, constructed and interpolated losses, the limit, and the tuned step size."""
    rows: dict[str, list] = {}
    for size in SIZES:
        family, optimum = _family(settings, size), one_step_optimum(_family(settings, size))
        gd = GradientDescent(1, optimum.eta)
        construction = gradient_descent(size, 1, optimum.eta, size).network.float().to(lab.device)
        fresh = family.sample(settings.tasks, stream(lab.seed, "eval", size, lab.device))
        nets = _train(lab, settings, size)
        pairs = [agreement(net, gd, fresh) for net in nets]
        middles = [agreement(interpolate(net, construction), gd, fresh) for net in nets]
        tuned = tune(GradientDescent(1, 1.0), family, tasks=settings.tasks, seed=lab.seed).step_sizes["eta"][0]
        row = {
            "trained": [pair.mse_a.value for pair in pairs],
            "interpolated": [middle.mse_a.value for middle in middles],
            "ratio": [pair.mse_ratio.value for pair in pairs],
            "ratio_stderr": [pair.mse_ratio.stderr for pair in pairs],
            "gd": pairs[0].mse_b.value,
            "gd_stderr": pairs[0].mse_b.stderr,
            "limit": optimum.mse,
            "eta": tuned.value,
            "eta_stderr": tuned.stderr,
            "eta_optimum": optimum.eta,
        }
        for key, value in row.items():
            rows.setdefault(key, []).append(value)
    return {"size": np.array(SIZES), **{key: np.array(values) for key, values in rows.items()}}


def _rollouts(nets: Sequence[InContextRegressor], gd: GradientDescent, few: Episode) -> dict[str, np.ndarray]:
    """Loss after each of 50 applications, in float64: its mean over all tasks, and over the stable ones.

    Damped gradient descent is stable on a context if damping * eta * lambda_max < 2. On the few others any rule of this
    step size diverges, and their losses alone decide the mean over all tasks after some tens of steps.
    """
    exact = few.to(torch.float64)
    gram = exact.context.x.mT @ exact.context.x / exact.context.x.shape[-2]
    top = torch.linalg.eigvalsh(gram)[:, -1] * gd.eta.item()
    learners = [gd, *(copy.deepcopy(net).double() for net in nets)]
    curves, stable_curves = [], []
    for damping in DAMPINGS:
        errors = [trajectory_errors(rollout(learner, ROLLOUT_STEPS, damping), exact) for learner in learners]
        curves.append([error.mean(1).cpu().numpy() for error in errors])
        stable_curves.append([error[:, damping * top < 2].mean(1).cpu().numpy() for error in errors])
    return {
        "damping": np.array(DAMPINGS),
        "stable_share": np.array([float((damping * top < 2).double().mean()) for damping in DAMPINGS]),
        "all": np.array(curves),  # (dampings, 1 + seeds, steps + 1), gradient descent first
        "stable": np.array(stable_curves),
    }


def _weights(nets: Sequence[InContextRegressor], construction: InContextRegressor) -> dict[str, np.ndarray]:
    """Rescaled products of each seed beside the construction's."""
    readings = [weights(net, construction)[0][0] for net in nets]
    built = weights(construction)[0][0]
    return {
        "w_kq": np.stack([reading.w_kq.cpu().numpy() for reading in readings]),
        "w_pv": np.stack([reading.w_pv.cpu().numpy() for reading in readings]),
        "construction_kq": built.w_kq.cpu().numpy(),
        "construction_pv": built.w_pv.cpu().numpy(),
        "off_diagonal": np.array([reading.off_diagonal for reading in readings]),
        "diagonal_spread": np.array([reading.diagonal_spread for reading in readings]),
    }


STUDY = Study(
    name="one-step",
    question="Does one trained linear self-attention layer run one step of gradient descent?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Figs. 1, 2, 6a, 9, 10",
    presets={
        "quick": OneStep(),
        "paper": OneStep(steps=5000, size_steps=2500, learning_rate=1e-3, clip=0.001, sweep_tasks=20_000),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)
