"""Do networks trained on other dynamics learn by another algorithm?

Thesis: the first footnote of section 3.5.1, about converging dynamics. One linear layer and one mesa layer train on
contractions Q^T diag(a) Q, one linear layer on orthogonal maps. All contractions are symmetric and have eigenvalues
from 0.3 to 0.9: an algorithm that uses this has a smaller error than least squares, for which every W is possible.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from mesascope import learners, lenses, study
from mesascope.studies.common import converged, drawn_with
from mesascope.studies.mesa import bugs, dynamics
from mesascope.studies.mesa.dynamics import each_with_each
from mesascope.study import Claim, Figure, Mutation, Study, above, below, ours, stage, two_sided

STEPS = ("converged", "gd-at-its-optimum")
FOOTNOTE = "section 3.5.1, footnote 1"
KINDS = ("linear", "mesa")
ROLES = {
    "linear": ("trained", "linear layer"), "mesa": ("interpolated", "mesa layer"),
    "orthogonal-linear": ("other", "linear layer, trained on orthogonal maps"), "gd": ("gd", "gradient step"),
    "multiple": (0.5, "multiple of the newest"), "limit": ("limit", "least squares"),
}  # fmt: skip
TRAINED_ON = {"linear": "trained on contractions", "orthogonal-linear": "on orthogonal maps"}
PRODUCTS = ("$s_i s_i^T$", "$s_{i-1} s_i^T$", "$s_i s_{i-1}^T$", "$s_{i-1} s_{i-1}^T$")

main = dynamics.labelled("comparison", ROLES, **{"step-from-multiple": "gradient step from it"})
orthogonal = dynamics.labelled("orthogonal-comparison", ROLES)
coefficients = stage("coefficients")


@study.frozen
class Contracting(dynamics.SingleLayers):
    dynamics: Literal["orthogonal", "contracting"] = "contracting"
    """Maps that the sequences follow; the control layer always trains on orthogonal maps."""


def measure(lab: study.Lab, settings: Contracting) -> None:
    other = dataclasses.replace(settings, dynamics="orthogonal")
    linear, mesa = settings.linear_layer(2), settings.mesa_layer()
    networks = {"linear": (linear, settings.training), "mesa": (mesa, settings.mesa)}
    trained = dynamics.trained_networks(lab, settings, settings.family(), networks)
    trained |= dynamics.trained_networks(lab, other, other.family(), {"orthogonal-linear": (linear, settings.training)})
    for own, kind in ((settings, ""), (other, "orthogonal-")):
        known = {**dynamics.descents(lab, own), **dynamics.least_squares(own), **_from_multiple(lab, own)}
        dynamics.compare_predictors(lab, own, own.family(), {**trained, **known}, ROLES, kind=kind)
    lab.stage("coefficients", _coefficients, trained)


def _from_multiple(lab: study.Lab, settings: dynamics.Dynamics) -> dict[str, list[Any]]:
    """Best multiple of the newest element as prediction, and one tuned gradient step from that multiple of I."""
    import torch

    family = settings.family()
    drawn = lab.draw(family, settings.tune_tasks, "tune")
    known = [learners.OnlineGradientDescent(1, 1e-12, c * torch.eye(family.d)) for c in np.linspace(0, 1, 41)]
    best = min(known, key=lambda one: lenses.per_task_errors(one, drawn).mean().item())
    start = learners.OnlineGradientDescent(1, 0.03, best.w0)
    step = learners.tune(start, family, tasks=settings.tune_tasks, seed=lab.seed).learner
    return {"multiple": [best], "step-from-multiple": [step]}


def _coefficients(trained: dict[str, list[Any]]) -> study.Arrays:
    """Coefficients of s_i s_i^T, s_{i-1} s_i^T, s_i s_{i-1}^T and s_{i-1} s_{i-1}^T in the factor of s_t: eq. 3.55."""
    found = {
        name: np.array([lenses.reverse_engineer(net).pair_sums().now.tolist() for net in trained[name]])
        for name in TRAINED_ON
    }
    return study.Arrays(found, **dict.fromkeys(found, "seed product"))


def _other_products(name: str) -> study.Reading:
    words = "sum of the |coefficients| of s_i s_i^T and s_{i-1} s_i^T in eq. 3.55 / that of s_i s_{i-1}^T"
    sizes = abs(coefficients[name])
    return sizes.map(lambda now: now[:, :2].sum(1) / now[:, 2], f"{words}, of {ROLES[name][1]}")


ELSEWHERE = study.beside(
    [each_with_each(main, "orthogonal-linear", "linear"), each_with_each(orthogonal, "linear", "orthogonal-linear")],
    "loss of layers trained on the other kind / on this kind, all pairs of networks",
)


# Deviation of every preset.
ALWAYS = (
    "The thesis does not name the converging dynamics, and contractions here are symmetric. For quickly contracting "
    "ones, section 3.7.3.1 proposes gradient descent and an average of past tokens."
)
STUDY = Study(
    name="mesa-contracting",
    source=f"{dynamics.THESIS}: {FOOTNOTE}",
    presets={"quick": Contracting(**dynamics.QUICK), "paper": Contracting(dynamics.ONE_LAYER, seeds=8),
             "thesis": Contracting(**dynamics.ONE_LAYER_AS_PRINTED, seeds=8)},
    measure=measure, trainings=3, premises=("converged",),
    claims=(
        converged("linear", "mesa", "orthogonal-linear"),
        dynamics.best_ridge(),
        dynamics.tuned_steps("gd", "comparison", "orthogonal-comparison"),
        dynamics.learns("orthogonal-linear", by_time="orthogonal-by-time"),
    ),
    figures=(
        Figure("losses", "Loss of a step by the number of elements known, on both kinds of dynamics; line and band: "
               "mean and range over seeds.", (
            dynamics.along(stage("by-time"), ROLES, "contractions"),
            dynamics.along(stage("orthogonal-by-time"), ROLES, "orthogonal maps"),
        ), shared_legend=True, claims=(
            Claim("other-algorithm", "the loss of a linear layer trained on contractions is smaller than that of one "
                  "tuned step of gradient descent from zero",
                  main.ratio("linear", "gd"), below(1.0), ours("what another algorithm gains"), premises=STEPS,
                  former="printed, < 0.5, held"),
            Claim("one-step-elsewhere", "the loss of the same layer trained on orthogonal maps is within 2 % of that "
                  "of one tuned step there", orthogonal.ratio("orthogonal-linear", "gd"), two_sided(0.02),
                  ours("the control: section 3.5.1"), premises=STEPS),
            Claim("below-least-squares", "both kinds of layers have a smaller loss than ridge regression on all known "
                  "pairs", dynamics.ratios(main, KINDS, "limit"), below(1.0),
                  ours("what another algorithm gains"), premises=("converged", "limit-at-its-optimum"),
                  former="printed, held"),
            Claim("constant-is-enough", "predicting the best fixed multiple of the newest element, which needs no "
                  "learning in context, has a smaller loss than ridge regression",
                  main.ratio("multiple", "limit"), below(1.0),
                  ours("the loss without any learning"), over="algorithms"),
            Claim("not-below-constant", "no layer of either kind has a smaller loss than the best multiple of the "
                  "newest element", dynamics.ratios(main, KINDS, "multiple"), above(1.0),
                  ours("learning in context beyond a constant")),
            Claim("step-from-constant", "one step of gradient descent from the best multiple has a smaller loss than "
                  "the multiple", main.ratio("step-from-multiple", "multiple"), below(1.0),
                  ours("context helps"), over="algorithms"),
            Claim("no-transfer", "on each kind of dynamics, linear layers trained on the other kind have more than "
                  "twice the loss of linear layers trained on it",
                  ELSEWHERE, above(2.0), ours("the kinds of dynamics differ")),
        )),
        Figure("coefficients", "Coefficients of the products of pairs with which linear layers multiply s_t: eq. 3.55 "
               "of the thesis, each seed.", (
            study.Lines("", "product", "coefficient",
                        [study.Line(np.arange(4), coefficients[name], ROLES[name][0], label, each=True, marks="o")
                         for name, label in TRAINED_ON.items()],
                        limits={"xticks": range(4), "xticklabels": PRODUCTS}),
        ), shared_legend=True, claims=(
            Claim("other-products", "on contractions the layer gives s_i s_i^T and s_{i-1} s_i^T, which no gradient "
                  "step from a multiple of I uses, more weight than s_i s_{i-1}^T",
                  _other_products("linear"), above(1.0), study.derived(f"{FOOTNOTE}: other algorithms"),
                  quantifier="median", former="printed, held"),
            Claim("one-product-elsewhere", "on orthogonal maps the layer gives s_i s_i^T and s_{i-1} s_i^T less than a "
                  "tenth of the weight of s_i s_{i-1}^T",
                  _other_products("orthogonal-linear"), below(0.1), ours("the control: Table 3.1"),
                  quantifier="median"),
        )),
    ),
    deviations={
        "paper": (
            ALWAYS, dynamics.FROM_CODE,
            "Linear layers train as in mesa-one-layer, and those on orthogonal maps are the same; mesa layers train "
            "for 2,000 steps of 128 sequences, with the learning rate there. Gradients are not clipped.",
        ),
        "thesis": (ALWAYS, dynamics.FROM_CODE, dynamics.CLIPPED),
    },
    mutations=(
        Mutation("test sequences follow orthogonal maps alone", "mesascope.tasks:LinearDynamics.sample",
                 drawn_with(dynamics="orthogonal")),
        Mutation("the ridges of both dynamics are exchanged", "mesascope.studies.mesa.dynamics:RIDGES",
                 lambda ridges: dict(zip(ridges, reversed(ridges.values()), strict=True))),
        Mutation("descent starts at zero", "mesascope.learners:OnlineGradientDescent.__init__",
                 lambda init: lambda self, steps, eta, w0=None: init(self, steps, eta)),
        bugs.FORGETTING, bugs.SMALL_RIDGE, bugs.LARGE_RIDGE,
    ),
    mutated={
        "training": dynamics.adamw_plan(60, 1e-2, batch=8), "mesa": dynamics.adamw_plan(20, 5e-2, batch=8),
        "tasks": 300, "tune_tasks": 50, "watch_tasks": 50,
    },
)  # fmt: skip
