"""Do two looped linear self-attention layers run two steps of GD++?

ICML paper: Figures 3 (left) and 6b. Tasks are noiseless linear regression with N = d = 10. One layer applied twice is
compared with two steps of gradient descent (one tuned step size) and with two tied steps of GD++ (one eta, one
gamma), both tuned from spectra on tasks of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesascope import constructions, learners, lenses
from mesascope.evidence import Claim, Reported, above, printed, stage, two_sided
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.common import converged, halfway_losses, midpoint, plan, values
from mesascope.studies.icl_gd.regression import (
    LAWS,
    PAPER,
    SWEEPS,
    Regression,
    contrast,
    halfway,
    middles,
    network,
    predicted,
)
from mesascope.studies.icl_gd.shared_claims import as_predicted, near_training, no_better_descent, peak_difference
from mesascope.studies.icl_gd.shared_figures import HALF_MSE, RELATIVE, contrast_figures, law_of, ratio_lines, scaled
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

PREMISES = ("converged", "gd++-at-its-optimum", "references-as-predicted")

CLAIMS = (
    converged("looped"),
    no_better_descent("looped-comparison", "gd++", "GD++", id="gd++-at-its-optimum"),
    as_predicted(("gd", "gd++")),
    Claim(
        "beats-gd", "two looped layers lose about 29 % less than two steps of gradient descent",
        stage("looped-comparison").ratio("trained", "gd"), two_sided(0.05, around=0.71), printed("Fig. 3a left"),
        premises=PREMISES, reported=Reported(0.716, "authors' code, 1 run"),
    ),
    Claim(
        "loss-matches-gd++", "each loss is within 3 % of that of two tied steps of GD++",
        stage("looped-comparison").ratio("trained", "gd++"), two_sided(0.03), printed("Fig. 3a left"),
        premises=PREMISES, reported=Reported(1.019, "authors' code, 1 run"),
    ),
    Claim(
        "sensitivity-cosine", "each network's sensitivities have a cosine above 0.997 with GD++'s",
        stage("looped-comparison")["cosine", "trained", "gd++"], above(0.997), printed("Fig. 3a centre right"),
        premises=PREMISES, reported=Reported(0.9974, "authors' code, 1 run"),
    ),
    Claim(
        "gd-early", "early in training networks are nearer to gradient descent than to GD++",
        lambda r: peak_difference(r["looped"]), above(0.0), printed("Fig. 3a centre"),
        measures="cosine to gradient descent less cosine to GD++, where the former peaks", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "gd++-late", "at the end of training networks are nearer to GD++",
        lambda r: _cosine_gain(r["looped-comparison"]), above(0.02), printed("Fig. 3a centre"),
        measures="cosine to GD++ less cosine to gradient descent", premises=PREMISES,
        reported=Reported(0.045, "authors' code, 1 run"),
    ),
    Claim(
        "eta-read", "the step size in the weights is within 5 % of tuned GD++'s",
        stage("step-sizes")["eta"] / stage("step-sizes")["gd++ eta"], two_sided(0.05), printed("section 3"),
        quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "gamma-read", "the gamma in the weights is within 5 % of tuned GD++'s",
        stage("step-sizes")["gamma"] / stage("step-sizes")["gd++ gamma"], two_sided(0.05),
        printed("section 3, appendix A.10"), quantifier="mean", premises=PREMISES,
    ),
    midpoint("interpolation"),
    Claim(
        "interpolation", "halfway between trained weights and construction the loss is within 3 % of either end's",
        lambda r: halfway_losses(r["interpolation"]), two_sided(0.03), printed("Fig. 3a left"),
        measures="loss at the midpoint / at either end", premises=(*PREMISES, "midpoint"),
    ),
    Claim(
        "input-scale", "for input scales up to 1.25 times those of training, losses stay within a quarter of GD++'s",
        lambda r: near_training(r["looped-input-scale"]).ratio("trained", "gd++"), two_sided(0.25),
        printed("Figs. 3a right, 6b"), measures="loss of trained / of GD++, at each scale", premises=PREMISES,
    ),
    Claim(
        "teacher-scale", "for teachers scaled by 0.5 to 5, losses are within 5 % of GD++'s",
        stage("looped-teacher-scale").ratio("trained", "gd++"), two_sided(0.05), printed("Fig. 6b centre left"),
        premises=PREMISES,
    ),
    Claim(
        "other-inputs", "on normal, exponential and Laplace inputs, losses are within a quarter of GD++'s",
        stage("looped-other-inputs").ratio("trained", "gd++"), two_sided(0.25),
        printed("Fig. 6b right: almost identical behaviour"), premises=PREMISES,
    ),
    Claim(
        "interpolated-input-scale", "halfway between trained weights and construction, losses stay within a quarter "
        "of GD++'s for input scales up to 1.25 times those of training",
        lambda r: near_training(r["looped-input-scale"]).ratio("middle", "gd++"), two_sided(0.25),
        printed("Figs. 3a right, 6b left"), measures="loss at the midpoint / of GD++, at each scale",
        premises=(*PREMISES, "midpoint"),
    ),
    Claim(
        "interpolated-teacher-scale", "halfway between trained weights and construction, losses are within 5 % of "
        "GD++'s for teachers scaled by 0.5 to 5", stage("looped-teacher-scale").ratio("middle", "gd++"),
        two_sided(0.05), printed("Fig. 6b centre left"), premises=(*PREMISES, "midpoint"),
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Regression) -> None:
    """Train and compare."""
    family, tasks = settings.family(), settings.tune_tasks
    plus = learners.tune_spectral(learners.GradientDescentPlusPlus(2, 3.0, 0.03), family, contexts=tasks, seed=lab.seed)
    gd = learners.tune_spectral(learners.GradientDescent(2, 3.0), family, contexts=tasks, seed=lab.seed)
    references = {"gd": gd.learner, "gd++": plus.learner}
    (eta,), (gamma,) = ([size.value for size in plus.step_sizes[name]] for name in ("eta", "gamma"))
    built = constructions.gradient_descent_plus_plus(10, 1, eta, gamma, 10, steps=2).network.float().to(lab.device)
    nets = contrast(
        lab, settings, "looped", network(settings, n_layers=2, shared=True), references, own=2,
        more=lambda trained: {"middle": middles(trained, [built] * len(trained))}, sweeps=tuple(SWEEPS),
    )  # fmt: skip
    fresh = lab.draw(family, settings.tasks, "eval")
    lab.stage("interpolation", lambda: halfway(nets, [built] * len(nets), fresh))
    lab.stage("predicted", lambda: predicted(lab, settings, references))
    lab.stage("step-sizes", lambda: _step_sizes(nets, eta, gamma))


def _step_sizes(nets, eta: float, gamma: float) -> dict[str, list[float]]:
    read = [lenses.step_sizes(net, 10) for net in nets]
    sizes = {"eta": [one.eta[0].item() for one in read], "gamma": [one.gamma[0].item() for one in read]}
    return sizes | {"gd++ eta": [eta] * len(nets), "gd++ gamma": [gamma] * len(nets)}


def _cosine_gain(main):
    return main["cosine", "trained", "gd++"] - main["cosine", "trained", "gd"]


def _teachers(r: Any) -> list[Line]:
    swept = r["looped-teacher-scale"]
    middle = values(swept["mse", "middle"]) / 2
    lines = scaled(swept, "w_scale", "two looped layers", ("gd", "gd++"))
    return [*lines, Line(lines[0].x, middle, "interpolated", "interpolated")]


TEACHERS = Figure(
    "teachers-and-laws",
    "First: teachers of other scales; then input laws never seen in training, each seed's loss over that of GD++. "
    "Paper: Fig. 6b.",
    (
        Lines("", "teacher scale / that of training", HALF_MSE, _teachers, "y"),
        *(
            Lines(
                f"{law} inputs", RELATIVE, "loss of each seed / of GD++",
                lambda r, law=law: ratio_lines(law_of(r["looped-other-inputs"], law), "x_scale", ["gd++"]), "y",
            )
            for law in LAWS
        ),
    ),
    columns=2, claims=("teacher-scale", "interpolated-teacher-scale", "other-inputs"),
)  # fmt: skip

STUDY = Study(
    name="two-steps",
    source=f"{PAPER}: Figs. 3 left and 6b",
    presets={
        "quick": Regression(plan(1500, 4e-3, clip=0.001), init_scale=0.02),
        "paper": Regression(plan(5000, 1e-3, clip=0.001)),
    },
    measure=measure,
    trainings=1,
    claims=CLAIMS,
    figures=(
        *contrast_figures(
            "looped",
            "two looped layers",
            ("gd", "gd++"),
            "Paper: Figs. 3a and 6b",
            claims=(
                "beats-gd",
                "loss-matches-gd++",
                "sensitivity-cosine",
                "gd-early",
                "gd++-late",
                "eta-read",
                "gamma-read",
                "interpolation",
            ),
            away=("input-scale", "interpolated-input-scale"),
        ),
        TEACHERS,
    ),
    deviations=("The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",),
)
