"""Do transformers learn the features in which nonlinear dynamics are linear, and least squares on them in context?

Source: von Oswald et al. (2023, arXiv 2309.05858). Elements follow s_{t+1} = W f(s_t), with W of the task and
features f that all tasks share: f can be learned while training, W in context. Networks with MLPs are compared with
ridge regression on the elements, on the true features, and with networks without MLPs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from mesascope import study, tasks
from mesascope.studies.common import converged, drawn_with
from mesascope.studies.mesa import bugs, dynamics, raw_tokens
from mesascope.studies.mesa.raw_tokens import EXTENDED, Transformers, cosine_plan, in_context, transformer
from mesascope.study import Claim, Mutation, Study, below, ours, printed

KINDS, TRAINED = ("softmax", "mesa"), ("softmax", "mesa", "no-mlp")
ROLES = {
    "softmax": ("trained", "7 softmax, MLPs"), "mesa": ("interpolated", "softmax, mesa, MLPs"),
    "no-mlp": ("other", "softmax, mesa"), "linear": ("gd", "least squares"), "features": ("limit", "on true features"),
}  # fmt: skip

# Errors of ridge regression on true features, by the number of known elements, in a simulation.
SIMULATED = {"features": {30: 1.41e-4, 50: 1.19e-4}}
main = dynamics.labelled(
    "comparison", ROLES, linear="least squares on elements", features="least squares on true features"
)


def measure(lab: study.Lab, settings: Transformers) -> None:
    family, keys = tasks.NonlinearDynamics(length=51), settings.normalise_keys
    networks = {
        "softmax": (transformer("softmax", family.d, 4), settings.training),
        "mesa": (transformer("mesa", family.d, 4, keys), settings.mesa),
        "no-mlp": (transformer("mesa", family.d, None, keys), settings.mesa),
    }
    groups = dynamics.trained_networks(lab, settings, family, networks)
    groups["linear"] = [dynamics.tuned_ridge(lab, settings, family)]
    groups["features"] = [dynamics.tuned_ridge(lab, settings, family, family.features)]
    dynamics.compare_predictors(lab, settings, family, groups, groups)


def _of_other_seed(init: Callable[..., None]) -> Any:
    """Ridge regression on features of other dynamics."""
    return lambda self, ridge, forget=1.0, features=None: init(
        self, ridge, forget, features and dataclasses.replace(features.__self__, feature_seed=1).features
    )


UNLIKE = dict.fromkeys(("quick", "paper"), "10,000 to 20,000 steps of 256 sequences")
STUDY = Study(
    name="mesa-nonlinear",
    source=EXTENDED,
    presets={"quick": Transformers(**raw_tokens.SHORT), "paper": Transformers(raw_tokens.LONG),
             "thesis": Transformers(**raw_tokens.AS_PRINTED)},
    measure=measure, trainings=3, premises=("converged",), at_least=3,
    claims=(converged(*TRAINED, most=0.02), dynamics.learns(*TRAINED),
            dynamics.simulated_ridge(SIMULATED)),
    figures=(
        dynamics.losses(ROLES, TRAINED, "Compare the extended paper", claims=(
            Claim("features-are-better", "least squares on the true features has less than half the loss of least "
                  "squares on elements", main.ratio("features", "linear"), below(0.5),
                  ours("premise: these dynamics are not linear"), over="algorithms"),
            Claim("below-linear", "networks with MLPs have a smaller loss than ridge regression on elements",
                  dynamics.ratios(main, KINDS, "linear"), below(1.0), printed(EXTENDED)),
            Claim("mlps-are-needed", "every hybrid of a mesa layer with MLPs has a smaller loss than every one without",
                  dynamics.each_with_each(main, "mesa", "no-mlp"), below(1.0),
                  ours("the control: what learns the features"), unlike=UNLIKE),
            Claim("near-features", "networks with MLPs have at most twice the loss of least squares on the true "
                  "features", dynamics.ratios(main, KINDS, "features"), below(2.0), printed(EXTENDED)),
            in_context(KINDS, ROLES),
        )),
    ),
    unlike=UNLIKE,
    deviations={
        preset: (*own, "The features' widths, gain and normalisation are ours; all networks have the same features.")
        for preset, own in raw_tokens.DEVIATIONS.items()
    },
    mutations=(
        bugs.CHANGING["NonlinearDynamics"], bugs.NOISY["NonlinearDynamics"], bugs.UNTUNED_RIDGE,
        bugs.FORGETTING, bugs.STOPPING,
        Mutation("features are the elements", "mesascope.tasks:NonlinearDynamics.features",
                 lambda features: lambda self, elements: elements),
        Mutation("features are those of another seed", "mesascope.learners.sequences:RecursiveLeastSquares.__init__",
                 _of_other_seed),
        Mutation("dynamics are nearly linear", "mesascope.tasks:NonlinearDynamics.features", drawn_with(gain=1.0)),
    ),
    mutated={
        "training": cosine_plan(40, 3e-3, batch=8), "mesa": cosine_plan(40, 8e-3, batch=8),
        "tasks": 400, "tune_tasks": 100, "watch_tasks": 50,
    },
)  # fmt: skip
