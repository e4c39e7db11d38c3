"""Can a layer behind LayerNorm run gradient descent, and with what loss?

ICML paper: Figure 14. Tasks are noiseless linear regression with N = d = 10. One linear layer behind LayerNorm, with
one head and with two, is compared with one step of gradient descent. Two linear layers, with LayerNorm only between
them, are compared with two steps of gradient descent (one tuned step size) and of GD++ (a step size each). Layers
without LayerNorm are controls.
"""

from __future__ import annotations

from mesascope import learners, study
from mesascope.studies.common import converged, plan
from mesascope.studies.icl_gd import bugs, regression, shared
from mesascope.studies.icl_gd.regression import SecondTraining, contrast, network
from mesascope.study import Bound, Claim, Reading, StageReading, Study, above, below, printed, stage

ONE = ("one-layer-converged", "one-step-as-predicted", "networks-as-trained")
TWO = ("two-layers-converged", "two-steps-as-predicted", "networks-as-trained")
OPTIMUM = "gd++-at-its-optimum"

one_layer = stage("one-layer-comparison", plain="the layer without LayerNorm")
two_layers = stage("two-layers-comparison", plain="the layers without LayerNorm")


@study.frozen
class LayerNorm(regression.Regression):
    two_layers: SecondTraining = SecondTraining(plan(50_000, 1e-3, clip=0.001, evaluate_every=250))
    """Training of two layers with LayerNorm between them."""


def measure(lab: study.Lab, settings: LayerNorm) -> None:
    one = {"gd": regression.best_step(settings.family())}
    starts = {
        "gd": learners.GradientDescent(2, 1.0),
        "gd++": learners.GradientDescentPlusPlus(2, [2.0, 1.0], [0.01, 0.01]),
    }
    two = {name: regression.tuned(lab, settings, start).learner for name, start in starts.items()}
    plain = contrast(lab, settings, "one-layer-plain", network(settings), one)
    heads = network(settings, n_heads=2, key_size=11, layer_norm=(True,))
    pairs = contrast(lab, settings, "one-layer-two-heads", heads, one)
    normed = network(settings, layer_norm=(True,))
    contrast(lab, settings, "one-layer", normed, one, more=lambda _: {"plain": plain, "two-heads": pairs})
    lab.stage("one-layer-predicted", regression.predicted, lab, settings, one)

    both = contrast(lab, settings, "two-layers-plain", network(settings, n_layers=2), two, own=2)
    recipe = settings.two_layers
    normed = network(settings, n_layers=2, layer_norm=(False, True), init_scale=recipe.init_scale)
    contrast(lab, settings, "two-layers", normed, two, recipe.training, more=lambda _: {"plain": both})
    lab.stage("two-layers-predicted", regression.predicted, lab, settings, two)


def _alignment(compared: StageReading, reference: str) -> Reading:
    """Cosine with a reference, minus that of the layers without LayerNorm."""
    return compared["cosine", "trained", reference] - compared["cosine", "plain", reference]


def _at_twice(name: str) -> Reading:
    return stage(f"{name}-input-scale").ratio("trained", "gd").at((..., -1), "at twice the scale of training")


ONE_LAYER = shared.contrast_figures(
    "one-layer", "one layer behind LayerNorm", ("gd",), "Paper: Fig. 14a", claims=(
        Claim("one-layer-loss", "each normalised layer's loss is 0 to 60 % above that of one step of gradient descent",
              one_layer.ratio("trained", "gd"), Bound(1.0, 1.6), printed("Fig. 14a left")),
        Claim("one-layer-heads", "a second head removes less than half of each layer's excess loss over gradient "
              "descent", shared.gap_left(one_layer, stage("one-layer-two-heads-comparison")), above(0.5),
              printed("appendix A.9: more heads do not help substantially"),
              premises=(*ONE, "one-layer-two-heads-converged")),
        Claim("one-layer-alignment", "each normalised layer is less aligned with gradient descent than one without "
              "LayerNorm", _alignment(one_layer, "gd"), below(0.0, by="paper"), printed("Fig. 14a centre left"),
              premises=(*ONE, "one-layer-plain-converged", "one-layer-derivatives")),
    ), away=(
        Claim("one-layer-large-inputs", "on inputs twice as large as in training each normalised layer has a smaller "
              "loss than gradient descent", _at_twice("one-layer"), below(1.0, by="paper"), printed("Fig. 14a right")),
    ),
)  # fmt: skip

TWO_LAYERS = shared.contrast_figures(
    "two-layers", "two layers with LayerNorm between them", ("gd", "gd++"), "Paper: Fig. 14b", claims=(
        Claim("two-layers-gd", "two layers with LayerNorm between them have a larger loss than two steps of gradient "
              "descent",
              two_layers.ratio("trained", "gd"), above(1.0, by="paper"), printed("Fig. 14b left"), premises=TWO),
        Claim("two-layers-gd++", "the loss of two layers with LayerNorm between them is 0 to 60 % above that of two "
              "steps of GD++",
              two_layers.ratio("trained", "gd++"), Bound(1.0, 1.6), printed("Fig. 14b left"), premises=(*TWO, OPTIMUM)),
        Claim("two-layers-alignment", "two layers with LayerNorm between them are less aligned with GD++ than without "
              "it", _alignment(two_layers, "gd++"), below(0.0, by="paper"), printed("Fig. 14b centre left"),
              premises=(*TWO, OPTIMUM, "two-layers-plain-converged", "two-layers-derivatives")),
        Claim("two-layers-order", "two layers with LayerNorm between them are less aligned with GD++ than with "
              "gradient descent", two_layers["cosine", "trained", "gd++"] - two_layers["cosine", "trained", "gd"],
              below(0.0, by="paper"), printed("Fig. 14, caption"), premises=(*TWO, OPTIMUM, "two-layers-derivatives")),
    ), away=(
        Claim("two-layers-large-inputs", "on inputs twice as large as in training two layers with LayerNorm between "
              "them have a smaller loss than two steps of gradient descent",
              _at_twice("two-layers"), below(1.0, by="paper"), printed("Fig. 14b right"), premises=TWO),
    ),
)  # fmt: skip

STUDY = Study(
    name="layernorm",
    source=f"{regression.PAPER}: Fig. 14",
    presets={
        "quick": LayerNorm(
            plan(1000, 8e-3, batch=512, clip=0.001), init_scale=0.02, tasks=30_000, sweep_tasks=2000,
            two_layers=SecondTraining(plan(1000, 8e-3, batch=512, clip=0.001), init_scale=0.02),
        ),
        "paper": LayerNorm(plan(5000, 1e-3, clip=0.001)),
    },
    measure=measure,
    trainings=5,
    premises=ONE,
    claims=(
        *(converged(name, id=f"{name}-converged") for name in ("one-layer", "one-layer-plain", "one-layer-two-heads")),
        *(converged(name, id=f"{name}-converged", most=0.03) for name in ("two-layers", "two-layers-plain")),
        shared.as_predicted(("gd",), "one-layer-predicted", id="one-step-as-predicted"),
        shared.as_predicted(("gd", "gd++"), "two-layers-predicted", id="two-steps-as-predicted"),
        shared.no_better_descent(stage("two-layers-plain-comparison"), "gd++", "GD++", id=OPTIMUM),
        shared.as_trained("one-layer", "one-layer-plain", "one-layer-two-heads", "two-layers", "two-layers-plain"),
        shared.derivatives(one_layer, id="one-layer-derivatives"),
        shared.derivatives(two_layers, id="two-layers-derivatives"),
    ),
    figures=(
        *ONE_LAYER,
        *TWO_LAYERS,
        *shared.contrast_figures(
            "one-layer-two-heads", "one layer of two heads behind LayerNorm", ("gd",), "Paper: appendix A.9"
        ),
        *shared.contrast_figures("one-layer-plain", "one layer without LayerNorm", ("gd",), "Control"),
        *shared.contrast_figures("two-layers-plain", "two layers without LayerNorm", ("gd", "gd++"), "Control"),
    ),
    unlike=dict.fromkeys(("quick", "paper"), "a constant learning rate, without averaged weights"),
    deviations=(
        shared.AVERAGED, shared.CLIPPED, shared.INPUTS, shared.INITIAL,
        "Two layers without LayerNorm, a control of ours, train for 5,000 steps.",
    ),
    mutations=(
        bugs.HALF_STEP, bugs.OTHER_QUERIES, bugs.POOR_OPTIMUM, bugs.SHIFTED_TARGETS, bugs.LEAK,
        study.Mutation("LayerNorm is left out while networks are measured", "torch.nn:LayerNorm.forward",
                       lambda forward: lambda self, tokens: tokens),
    ),
    mutated={
        "training": plan(400, 1e-2, batch=256, clip=0.001), "tasks": 6000, "sweep_tasks": 2000, "tune_tasks": 5000,
        "two_layers": SecondTraining(plan(100, 2e-2, batch=128, clip=0.001), init_scale=0.02),
    },
)  # fmt: skip
