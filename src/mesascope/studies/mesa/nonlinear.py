"""Do transformers learn the features in which nonlinear dynamics are linear, and least squares on them in context?

The extended paper behind chapter 3 of the thesis. Elements follow s_{t+1} = W f(s_t), with W of the task and features f
that all tasks share: f can be learned while training, W in context. Networks with MLPs are compared with ridge
regression on the elements, on the true features, and with networks without MLPs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mesascope import tasks
from mesascope.evidence import Claim, below, ours, printed, stage
from mesascope.studies.common import converged, watch_loss
from mesascope.studies.mesa.dynamics import compared, each_with_each, losses, tuned_ridge
from mesascope.studies.mesa.transformers import DEVIATIONS, EXTENDED, LONG, SHORT, Transformers, in_context, transformer
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

KINDS = ("softmax", "mesa")
PREMISES = ("converged",)

CLAIMS = (
    converged("softmax", "mesa", "no-mlp", at_least=3, most=0.02),
    Claim(
        "features-are-better", "least squares on the true features loses less than half of what it does on elements",
        stage("comparison").ratio("features", "linear"), below(0.5), ours("premise: these dynamics are not linear"),
        over="algorithms", at_least=1, about="algorithms",
    ),
    Claim(
        "below-linear", "networks with MLPs lose less than ridge regression on elements",
        lambda r: np.stack([r["comparison"].ratio(name, "linear") for name in KINDS], axis=1), below(1.0),
        printed(EXTENDED), measures="loss of trained / of ridge regression", at_least=3, premises=PREMISES,
    ),
    Claim(
        "mlps-are-needed", "every hybrid of a mesa layer with MLPs loses less than every one without",
        lambda r: each_with_each(r["comparison"], "mesa", "no-mlp"), below(1.0),
        ours("the control: what learns the features"), measures="loss with MLPs / without, each with each", at_least=3,
        premises=PREMISES,
    ),
    Claim(
        "near-features",
        "networks with MLPs come near to least squares on the true features: they lose at most twice " "as much",
        lambda r: np.stack([r["comparison"].ratio(name, "features") for name in KINDS], axis=1), below(2.0),
        printed(EXTENDED), measures="loss of trained / of least squares on features", at_least=3, premises=PREMISES,
    ),
    in_context(*KINDS),
)  # fmt: skip


def measure(lab: Lab, settings: Transformers) -> None:
    """Train networks with MLPs and without, and compare with least squares on elements and on features."""
    family = tasks.NonlinearDynamics(length=51)
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    trained = {
        name: lab.train(name, transformer(kind, family.d, mlp), family, training, watch=watched)
        for name, kind, mlp, training in (
            ("softmax", "softmax", 4, settings.training),
            ("mesa", "mesa", 4, settings.mesa),
            ("no-mlp", "mesa", None, settings.mesa),
        )
    }
    groups = {
        **trained,
        "linear": [tuned_ridge(lab, settings, family)],
        "features": [tuned_ridge(lab, settings, family, family.features)],
    }
    fresh = lab.draw(family, settings.tasks, "eval")
    compared(lab, groups, [], groups, fresh)


ROLES = {
    "softmax": ("trained", "7 softmax, MLPs"),
    "mesa": ("interpolated", "softmax, mesa, MLPs"),
    "no-mlp": ("other", "softmax, mesa"),
    "linear": ("gd", "least squares"),
    "features": ("limit", "on true features"),
}

FIGURES = (
    losses(
        ROLES, ("softmax", "mesa", "no-mlp"), "The extended paper has the like",
        ("below-linear", "mlps-are-needed", "near-features", "in-context", "features-are-better"),
    ),
)  # fmt: skip

STUDY = Study(
    name="mesa-nonlinear",
    source=EXTENDED,
    presets={"quick": Transformers(**SHORT), "paper": Transformers(LONG)},
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        *DEVIATIONS,
        "The features' widths, gain and normalisation are ours; all networks train on the same features.",
    ),
)
