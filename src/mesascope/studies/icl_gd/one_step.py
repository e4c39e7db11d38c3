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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mesascope.constructions import gradient_descent
from mesascope.errors import require_count
from mesascope.learners import GradientDescent, one_step_optimum, tune
from mesascope.lenses import agreement, alignment, interpolate, rollout, sweep, trajectory_errors, weights
from mesascope.nets import InContextRegressor, Transformer, TransformerConfig
from mesascope.streams import stream
from mesascope.studies.evidence import arrays_of
from mesascope.studies.icl_gd.one_step_claims import CLAIMS, judge
from mesascope.studies.icl_gd.one_step_figures import draw
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study
from mesascope.tasks import Episode, LinearRegression
from mesascope.training import Ensemble, Training

__all__ = ["STUDY", "OneStep"]

SIZES = (5, 10, 15, 20)
INPUT_SCALES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
TEACHER_SCALES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
OTHER_LAWS = ("normal", "exponential", "laplace")
OTHER_SCALES = (0.25, 0.5, 1.0)
DAMPINGS = (1.0, 0.75, 0.5)
ROLLOUT_STEPS = 50


@dataclass(frozen=True)
class OneStep:
    """Settings of the study."""

    steps: int = 1500
    """Training steps of the main networks (N = d = 10)."""
    size_steps: int = 600
    """Training steps of the networks of the other sizes N = d."""
    batch: int = 2048
    """Tasks a training step and seed."""
    learning_rate: float = 2e-3
    """Largest learning rate."""
    clip: float | None = None
    """Bound on the norm of each seed's gradient."""
    x_scale: float = 0.5
    """Inputs are drawn from U(-x_scale, x_scale)."""
    tasks: int = 100_000
    """Fresh tasks that trained network and gradient descent are compared on."""
    sweep_tasks: int = 10_000
    """Tasks of each point of a sweep, a roll-out, and an evaluation while training."""

    def __post_init__(self) -> None:
        for size in (5, 10):
            _training(self, size)
        _family(self, 10)
        require_count("tasks", self.tasks, least=2)
        require_count("sweep_tasks", self.sweep_tasks, least=2)


def measure(lab: Lab, settings: OneStep) -> Results:
    """Train and compare; every array behind the claims and the figures."""
    family = _family(settings, 10)
    optimum = one_step_optimum(family)
    gd = GradientDescent(1, optimum.eta)
    construction = gradient_descent(10, 1, optimum.eta, 10).network.float().to(lab.device)
    nets = _train(lab, settings, 10, gd).members()
    fresh = family.sample(settings.tasks, stream(lab.seed, "eval", 0, lab.device))
    few = fresh.part(0, settings.sweep_tasks)
    return {
        "training": lab.stage("training", lambda: {**lab.curves("size-10"), "limit": np.array(optimum.mse)}),
        "comparison": lab.stage("comparison", lambda: _comparison(nets, gd, fresh)),
        "interpolation": lab.stage("interpolation", lambda: _interpolation(nets, construction, fresh)),
        "dimensions": lab.stage("dimensions", lambda: _dimensions(lab, settings)),
        "input-scale": lab.stage("input-scale", lambda: _sweep(lab, settings, nets, gd, {"x_scale": INPUT_SCALES})),
        "teacher-scale": lab.stage(
            "teacher-scale", lambda: _sweep(lab, settings, nets, gd, {"w_scale": TEACHER_SCALES})
        ),
        "other-inputs": lab.stage(
            "other-inputs", lambda: _sweep(lab, settings, nets, gd, {"x": OTHER_LAWS, "x_scale": OTHER_SCALES})
        ),
        "rollouts": lab.stage("rollouts", lambda: _rollouts(nets, gd, few)),
        "weights": lab.stage("weights", lambda: _weights(nets, construction)),
    }


def _family(settings: OneStep, size: int) -> LinearRegression:
    return LinearRegression(n_context=size, d_in=size, x_scale=settings.x_scale)


def _training(settings: OneStep, size: int) -> Training:
    return Training(
        steps=settings.steps if size == 10 else settings.size_steps,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        clip=settings.clip,
        average=4.0,
    )


def _train(lab: Lab, settings: OneStep, size: int, gd: GradientDescent) -> Ensemble[InContextRegressor]:
    """One linear self-attention layer a seed, compared with gradient descent as it trains."""
    family = _family(settings, size)
    config = TransformerConfig(width=size + 1, init_scale=2e-5)
    training = _training(settings, size)
    watched = family.sample(settings.sweep_tasks, stream(lab.seed, "watch", 0, lab.device))

    def evaluate(ensemble: Ensemble[InContextRegressor]) -> list[dict[str, float]]:
        return [_watch(net, gd, watched) for net in ensemble.members()]

    return lab.train(
        f"size-{size}",
        lambda generator: InContextRegressor(Transformer(config, generator)),
        family,
        training,
        learner={"name": "in-context-regressor", "layout": "concatenated", "transformer": config},
        evaluate=evaluate if size == 10 else None,
    )


def _watch(net: InContextRegressor, gd: GradientDescent, episodes: Episode) -> dict[str, float]:
    seen = alignment(net, gd, episodes)
    return {
        "mse": seen.mse_a.value,
        "gd_mse": seen.mse_b.value,
        "prediction_difference": seen.prediction_difference.value,
        "sensitivity_cosine": seen.sensitivity_cosine.value,
        "sensitivity_difference": seen.sensitivity_difference.value,
    }


def _comparison(nets: Sequence[InContextRegressor], gd: GradientDescent, fresh: Episode) -> dict[str, np.ndarray]:
    """Trained networks and gradient descent on the same fresh tasks, one row a seed."""
    seen = [alignment(net, gd, fresh) for net in nets]
    fields = ("mse_a", "mse_b", "mse_ratio", "prediction_difference", "sensitivity_cosine", "sensitivity_difference")
    return {
        f"{field}_{key}": array
        for field in fields
        for key, array in arrays_of([getattr(one, field) for one in seen]).items()
    }


def _interpolation(
    nets: Sequence[InContextRegressor], construction: InContextRegressor, fresh: Episode
) -> dict[str, np.ndarray]:
    """Loss halfway between each trained network and the construction, over the loss at either end."""
    ratios = []
    for net in nets:
        middle = interpolate(net, construction, 0.5)
        ratios += [agreement(middle, end, fresh).mse_ratio for end in (net, construction)]
    return arrays_of(ratios)


def _dimensions(lab: Lab, settings: OneStep) -> dict[str, np.ndarray]:
    """For each N = d: trained, constructed and interpolated losses, the limit, and the tuned step size."""
    rows: dict[str, list] = {}
    for size in SIZES:
        family, optimum = _family(settings, size), one_step_optimum(_family(settings, size))
        gd = GradientDescent(1, optimum.eta)
        construction = gradient_descent(size, 1, optimum.eta, size).network.float().to(lab.device)
        fresh = family.sample(settings.tasks, stream(lab.seed, "eval", size, lab.device))
        nets = _train(lab, settings, size, gd).members()
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


def _sweep(
    lab: Lab, settings: OneStep, nets: Sequence[InContextRegressor], gd: GradientDescent, over: dict
) -> dict[str, np.ndarray]:
    """Losses where inputs or teachers differ from those trained on; ratios are to gradient descent's, paired."""
    learners = {"gd": gd, **{f"seed {index}": net for index, net in enumerate(nets)}}
    points = sweep(learners, _family(settings, 10), over, tasks=settings.sweep_tasks, seed=lab.seed, device=lab.device)
    trained = list(learners)[1:]
    arrays = {
        "gd": np.array([point.mse["gd"].value for point in points]),
        "trained": np.array([[point.mse[name].value for point in points] for name in trained]),
        "ratio": np.array([[point.ratio[name].value for point in points] for name in trained]),
        "ratio_stderr": np.array([[point.ratio[name].stderr for point in points] for name in trained]),
        "tasks": np.array(settings.sweep_tasks),
    }
    return arrays | {name: np.array([point.setting[name] for point in points]) for name in over}


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
