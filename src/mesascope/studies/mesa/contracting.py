"""Do networks trained on other dynamics learn by another algorithm?

Thesis: the first footnote of section 3.5.1, which says so of converging dynamics. One linear layer and one mesa layer
train on contractions Q^T diag(a) Q, one linear layer on orthogonal maps. All contractions are symmetric and have
eigenvalues from 0.3 to 0.9: whoever knows that can do better than least squares, which takes every W for possible.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses
from mesascope.evidence import Arrays, Claim, above, below, ours, printed, stage, two_sided
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.common import converged, watch_loss
from mesascope.studies.mesa.dynamics import (
    ONE_LAYER,
    QUICK,
    THESIS,
    Constructed,
    Dynamics,
    along,
    around,
    best_ridge,
    compared,
    each_with_each,
    least_squares,
    one_step,
    single_layer,
    tuned_steps,
)
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

PREMISES = ("converged",)
STEPS = ("converged", "gd-at-its-optimum")
FOOTNOTE = "section 3.5.1, footnote 1"


@dataclass(frozen=True)
class Contracting(Constructed):
    """Settings of the study."""

    dynamics: str = "contracting"
    """What sequences follow, but for those of the layers that are compared with."""


def _products(r: Any, name: str) -> np.ndarray:
    """Sizes of the coefficients of s_i s_i^T and s_{i-1} s_i^T over that of s_i s_{i-1}^T."""
    now = np.abs(r["coefficients"][name])
    return now[:, :2].sum(1) / now[:, 2]


CLAIMS = (
    converged("linear", "mesa", "orthogonal-linear"),
    best_ridge(),
    tuned_steps("gd", "comparison", "orthogonal-comparison"),
    Claim(
        "other-algorithm", "a linear layer trained on contractions loses less than half of what one tuned step of "
        "gradient descent from zero does", stage("comparison").ratio("linear", "gd"), below(0.5), printed(FOOTNOTE),
        premises=STEPS,
    ),
    Claim(
        "one-step-elsewhere",
        "on orthogonal maps the same layer, trained on them, loses what one tuned step does, " "within 2 %",
        stage("orthogonal-comparison").ratio("orthogonal-linear", "gd"), two_sided(0.02),
        ours("the control: section 3.5.1"), premises=STEPS,
    ),
    Claim(
        "other-products", "it weighs s_i s_i^T and s_{i-1} s_i^T, which no step of gradient descent from a multiple "
        "of I uses, more than s_i s_{i-1}^T", lambda r: _products(r, "linear"), above(1.0), printed(FOOTNOTE),
        measures="sum of their |coefficients| of eq. 3.55 / that of s_i s_{i-1}^T, mean over seeds", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "one-product-elsewhere", "layers trained on orthogonal maps weigh them less than a tenth of it",
        lambda r: _products(r, "orthogonal-linear"), below(0.1), ours("the control: Table 3.1"),
        measures="the same of layers trained on orthogonal maps", quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "below-least-squares", "both layers lose less than ridge regression on all known pairs, which does not know "
        "what contractions have in common",
        lambda r: np.stack([r["comparison"].ratio(name, "limit") for name in ("linear", "mesa")], axis=1), below(1.0),
        printed(FOOTNOTE), measures="loss of each / of ridge regression, on contractions",
        premises=(*PREMISES, "limit-at-its-optimum"),
    ),
    Claim(
        "constant-is-enough", "so does the best multiple of the newest element, which learns nothing in context",
        stage("comparison").ratio("multiple", "limit"), below(1.0), ours("what the others' losses are worth"),
        over="algorithms", at_least=1, about="algorithms",
    ),
    Claim(
        "not-below-constant", "of both layers, none loses less than this multiple",
        lambda r: np.stack([r["comparison"].ratio(name, "multiple") for name in ("linear", "mesa")], axis=1),
        above(1.0), ours("whether they learn more in context than it"),
        measures="loss of each / of the multiple, on contractions", premises=PREMISES,
    ),
    Claim(
        "step-from-constant", "one step of gradient descent from this multiple loses less than it",
        stage("comparison").ratio("step-from-multiple", "multiple"), below(1.0),
        ours("that there is something to learn"), over="algorithms", at_least=1, about="algorithms",
    ),
    Claim(
        "no-transfer", "linear layers trained on one kind of dynamics lose at least twice as much on the other as "
        "those trained there",
        lambda r: np.concatenate( [ each_with_each(r["comparison"], "orthogonal-linear", "linear"), each_with_each(r["orthogonal-comparison"], "linear", "orthogonal-linear"), ], axis=1, ),
        above(2.0), ours("what makes them other"),
        measures="loss of those trained elsewhere / trained there, each with each", premises=PREMISES,
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Contracting) -> None:
    """Train layers on both kinds of dynamics, and compare all on both."""
    orthogonal = dataclasses.replace(settings, dynamics="orthogonal")
    linear, mesa = single_layer(settings, 2, "linear"), single_layer(settings, 4, "mesa")
    trained = {
        name: lab.train(
            name, layer, own.family(), training,
            watch=watch_loss(mse=lab.draw(own.family(), settings.watch_tasks, "watch")),
        )
        for name, layer, own, training in (
            ("linear", linear, settings, settings.training),
            ("mesa", mesa, settings, settings.mesa),
            ("orthogonal-linear", linear, orthogonal, settings.training),
        )
    }  # fmt: skip
    for own, kind in ((settings, ""), (orthogonal, "orthogonal-")):
        groups = {**trained, **around("gd", one_step(lab, own)), **least_squares(own), **_from_multiple(lab, own)}
        compared(lab, groups, [], ROLES, lab.draw(own.family(), settings.tasks, "eval"), kind)
    lab.stage("coefficients", lambda: _coefficients(trained))


def _from_multiple(lab: Lab, settings: Dynamics) -> dict[str, list[Any]]:
    """The best multiple of the newest element, and one tuned step of gradient descent from that multiple of I."""
    import torch

    family = settings.family()
    drawn = lab.draw(family, settings.tune_tasks, "tune")
    known = [learners.OnlineGradientDescent(1, 1e-12, c * torch.eye(family.d)) for c in np.linspace(0, 1, 41)]
    best = min(known, key=lambda one: lenses.per_task_errors(one, drawn).mean().item())
    start = learners.OnlineGradientDescent(1, 0.03, best.w0)
    step = learners.tune(start, family, tasks=settings.tune_tasks, seed=lab.seed).learner
    return {"multiple": [best], "step-from-multiple": [step]}


def _coefficients(trained: dict[str, list[Any]]) -> Arrays:
    """Of s_i s_i^T, s_{i-1} s_i^T, s_i s_{i-1}^T and s_{i-1} s_{i-1}^T, in what multiplies s_t: eq. 3.55."""
    found = {
        name: np.array([lenses.reverse_engineer(net).pair_sums().now.tolist() for net in trained[name]])
        for name in ("linear", "orthogonal-linear")
    }
    return Arrays(found, **dict.fromkeys(found, "seed product"))


ROLES = {
    "linear": ("trained", "linear layer"),
    "mesa": ("interpolated", "mesa layer"),
    "orthogonal-linear": ("other", "linear layer, trained on orthogonal maps"),
    "gd": ("gd", "gradient step"),
    "multiple": (0.5, "multiple of the newest"),
    "limit": ("limit", "least squares"),
}


PRODUCTS: dict[str, Any] = {
    "xticks": range(4),
    "xticklabels": ("$s_i s_i^T$", "$s_{i-1} s_i^T$", "$s_i s_{i-1}^T$", "$s_{i-1} s_{i-1}^T$"),
}


def _weighed(r: Any) -> list[Line]:
    shown = {"linear": "trained on contractions", "orthogonal-linear": "on orthogonal maps"}
    return [
        Line(np.arange(4), r["coefficients"][name], ROLES[name][0], label, each=True, marks="o")
        for name, label in shown.items()
    ]


FIGURES = (
    Figure(
        "losses", "Loss of a step by the number of elements known, on both kinds of dynamics; line and band: mean and "
        "range over seeds.",
        (
            along("by-time", "contractions", ROLES),
            along("orthogonal-by-time", "orthogonal maps", ROLES),
        ),
        columns=2,
        shared_legend=True, claims=(
            "other-algorithm", "one-step-elsewhere", "below-least-squares", "constant-is-enough", "not-below-constant",
            "step-from-constant", "no-transfer",
        ),
    ),
    Figure(
        "coefficients", "Coefficients of the products of pairs with which linear layers multiply s_t: eq. 3.55 of the "
        "thesis, each seed.", (Lines("", "product", "coefficient", _weighed, limits=PRODUCTS),), columns=1,
        shared_legend=True, claims=("other-products", "one-product-elsewhere"),
    ),
)  # fmt: skip

STUDY = Study(
    name="mesa-contracting",
    source=f"{THESIS}: {FOOTNOTE}",
    presets={
        "quick": Contracting(**QUICK),
        "paper": Contracting(ONE_LAYER),
    },
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "The thesis says neither which converging dynamics nor which algorithm; contractions here are symmetric.",
        "Networks train as in mesa-one-layer, and those on orthogonal maps are the same.",
    ),
)
