"""What does LayerNorm cost a layer that would run gradient descent?

ICML paper: Figure 14. Tasks are noiseless linear regression with N = d = 10. One linear layer behind LayerNorm, with
one head and with two, is compared with one step of gradient descent, and two linear layers with LayerNorm between
them only with two steps of gradient descent (one tuned step size) and of GD++ (a step size each). Layers without
LayerNorm are controls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mesascope import learners
from mesascope.evidence import Bound, Claim, above, below, printed, stage
from mesascope.studies.common import converged, plan
from mesascope.studies.icl_gd.regression import PAPER, Recipe, Regression, contrast, network, predicted
from mesascope.studies.icl_gd.shared_claims import as_predicted, derivatives, gap_left, no_better_descent
from mesascope.studies.icl_gd.shared_figures import contrast_figures
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

ONE = ("one-layer-converged", "one-step-as-predicted")
TWO = ("two-layers-converged", "two-steps-as-predicted")
OPTIMUM = "gd++-at-its-optimum"


def _ratio(name: str, reference: str) -> Any:
    return lambda r: r[f"{name}-comparison"].ratio("trained", reference)


def _alignment(name: str, reference: str) -> Any:
    """The cosine with a reference, less that of the layers without LayerNorm."""

    def read(r: Any) -> Any:
        main = r[f"{name}-comparison"]
        return main["cosine", "trained", reference] - main["cosine", "plain", reference]

    return read


def _at_twice(name: str) -> Any:
    return lambda r: r[f"{name}-input-scale"].ratio("trained", "gd")[:, -1]


CLAIMS = (
    converged("one-layer", id="one-layer-converged"),
    converged("one-layer-plain", id="one-layer-plain-converged"),
    converged("one-layer-two-heads", id="one-layer-two-heads-converged"),
    converged("two-layers", id="two-layers-converged", most=0.03),
    converged("two-layers-plain", id="two-layers-plain-converged", most=0.03),
    as_predicted(("gd",), "one-layer-predicted", id="one-step-as-predicted"),
    as_predicted(("gd", "gd++"), "two-layers-predicted", id="two-steps-as-predicted"),
    no_better_descent("two-layers-plain-comparison", "gd++", "GD++", id=OPTIMUM),
    derivatives("one-layer-comparison", id="one-layer-derivatives"),
    derivatives("two-layers-comparison", id="two-layers-derivatives"),
    Claim(
        "one-layer-loss", "each normalised layer loses more than one step of gradient descent, by at most 60 %",
        _ratio("one-layer", "gd"), Bound(1.0, 1.6), printed("Fig. 14a left"),
        measures="loss of trained / of gradient descent", premises=ONE,
    ),
    Claim(
        "two-layers-gd", "two layers with LayerNorm between them lose more than two steps of gradient descent",
        _ratio("two-layers", "gd"), above(1.0, by="paper"), printed("Fig. 14b left"),
        measures="loss of trained / of gradient descent", premises=TWO,
    ),
    Claim(
        "two-layers-gd++", "two layers with LayerNorm between them lose more than two steps of GD++, by at most 60 %",
        _ratio("two-layers", "gd++"), Bound(1.0, 1.6), printed("Fig. 14b left"), measures="loss of trained / of GD++",
        premises=(*TWO, OPTIMUM),
    ),
    Claim(
        "one-layer-heads", "a second head does not help much: it takes away less than half of what each normalised "
        "layer loses beyond gradient descent", lambda r: gap_left(r, "one-layer", "one-layer-two-heads"), above(0.5),
        printed("appendix A.9: more heads do not help substantially"),
        measures="(loss of two heads - gradient descent's) / (of one head - gradient descent's), each with each",
        premises=(*ONE, "one-layer-two-heads-converged"),
    ),
    Claim(
        "two-layers-order", "the alignment of two layers with LayerNorm between them is a little less with GD++ than "
        "with gradient descent",
        stage("two-layers-comparison")["cosine", "trained", "gd++"] - stage("two-layers-comparison")["cosine", "trained", "gd"],
        below(0.0, by="paper"), printed("appendix A.9"), premises=(*TWO, OPTIMUM, "two-layers-derivatives"),
    ),
    Claim(
        "one-layer-alignment", "each normalised layer is less aligned with gradient descent than one without LayerNorm",
        _alignment("one-layer", "gd"), below(0.0, by="paper"), printed("Fig. 14a centre left"),
        measures="cosine with gradient descent, less that of the layer without LayerNorm",
        premises=(*ONE, "one-layer-plain-converged", "one-layer-derivatives"),
    ),
    Claim(
        "two-layers-alignment", "two layers with LayerNorm between them are less aligned with GD++ than without it",
        _alignment("two-layers", "gd++"), below(0.0, by="paper"), printed("Fig. 14b centre left"),
        measures="cosine with GD++, less that of the layers without LayerNorm",
        premises=(*TWO, OPTIMUM, "two-layers-plain-converged", "two-layers-derivatives"),
    ),
    Claim(
        "one-layer-large-inputs",
        "on inputs twice as large as in training each normalised layer beats gradient " "descent",
        _at_twice("one-layer"), below(1.0, by="paper"), printed("Fig. 14a right"),
        measures="loss of trained / of gradient descent", premises=ONE,
    ),
    Claim(
        "two-layers-large-inputs", "on inputs twice as large as in training two layers with LayerNorm between them "
        "beat two steps of gradient descent", _at_twice("two-layers"), below(1.0, by="paper"),
        printed("Fig. 14b right"), measures="loss of trained / of gradient descent", premises=TWO,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class LayerNorm(Regression):
    """Settings of the study."""

    two_layers: Recipe = field(default_factory=lambda: Recipe(plan(50_000, 1e-3, clip=0.001, evaluate_every=250)))
    """How two layers with LayerNorm between them train."""


def measure(lab: Lab, settings: LayerNorm) -> None:
    """Train and compare, with LayerNorm and without."""
    family, contexts = settings.family(), settings.tune_tasks

    def tuned(start: Any) -> Any:
        return learners.tune_spectral(start, family, contexts=contexts, seed=lab.seed).learner

    one = {"gd": learners.GradientDescent(1, learners.one_step_optimum(family).eta)}
    two = {
        "gd": tuned(learners.GradientDescent(2, 1.0)),
        "gd++": tuned(learners.GradientDescentPlusPlus(2, [2.0, 1.0], [0.01, 0.01])),
    }
    plain = contrast(lab, settings, "one-layer-plain", network(settings), one)
    heads = network(settings, n_heads=2, key_size=11, layer_norm=(True,))
    pairs = contrast(lab, settings, "one-layer-two-heads", heads, one)
    normed = network(settings, layer_norm=(True,))
    contrast(lab, settings, "one-layer", normed, one, more=lambda _: {"plain": plain, "two-heads": pairs})
    lab.stage("one-layer-predicted", lambda: predicted(lab, settings, one))

    both = contrast(lab, settings, "two-layers-plain", network(settings, n_layers=2), two, own=2)
    recipe = settings.two_layers
    normed = network(settings, n_layers=2, layer_norm=(False, True), init_scale=recipe.init_scale)
    contrast(lab, settings, "two-layers", normed, two, recipe.training, more=lambda _: {"plain": both})
    lab.stage("two-layers-predicted", lambda: predicted(lab, settings, two))


STUDY = Study(
    name="layernorm",
    source=f"{PAPER}: Fig. 14",
    presets={
        "quick": LayerNorm(
            plan(1000, 8e-3, batch=512, clip=0.001),
            init_scale=0.02,
            tasks=30_000,
            sweep_tasks=2000,
            two_layers=Recipe(plan(1000, 8e-3, batch=512, clip=0.001), init_scale=0.02),
        ),
        "paper": LayerNorm(plan(5000, 1e-3, clip=0.001)),
    },
    measure=measure,
    trainings=5,
    claims=CLAIMS,
    figures=(
        *contrast_figures(
            "one-layer",
            "one layer behind LayerNorm",
            ("gd",),
            "Paper: Fig. 14a",
            claims=("one-layer-loss", "one-layer-heads", "one-layer-alignment"),
            away=("one-layer-large-inputs",),
        ),
        *contrast_figures(
            "two-layers",
            "two layers with LayerNorm between them",
            ("gd", "gd++"),
            "Paper: Fig. 14b",
            claims=(
                "two-layers-gd",
                "two-layers-gd++",
                "two-layers-alignment",
                "two-layers-order",
            ),
            away=("two-layers-large-inputs",),
        ),
        *contrast_figures(
            "one-layer-two-heads", "one layer of two heads behind LayerNorm", ("gd",), "Paper: appendix A.9"
        ),
        *contrast_figures("one-layer-plain", "one layer without LayerNorm", ("gd",), "Control"),
        *contrast_figures("two-layers-plain", "two layers without LayerNorm", ("gd", "gd++"), "Control"),
    ),
    deviations=(
        "The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",
        "Two layers without LayerNorm, a control of ours, train for 5,000 steps.",
    ),
)
