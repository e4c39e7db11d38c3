"""The claims of the one-step study."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.evidence import Claim, Reported, above, below, derived, printed, stage, two_sided
from mesascope.studies.common import converged, halfway_losses, midpoint

__all__ = ["CLAIMS", "SIZES"]

SIZES = (5, 10, 15, 20)
MAIN = "size-10-comparison"
AUTHORS = "authors' code, 3 runs"
PREMISES = ("converged", "limit")


def _sizes(r: Any, above: str, below: str) -> np.ndarray:
    return np.stack([r[f"size-{size}-comparison"].ratio(above, below) for size in SIZES], axis=1)


def _tuned(optima: Any) -> np.ndarray:
    from uncertainties import ufloat

    columns = zip(optima["tuned"], optima["stderr"], optima["optimum"], strict=True)
    return np.array([ufloat(tuned, stderr) / eta for tuned, stderr, eta in columns])


def _together(*rolls: Any) -> np.ndarray:
    later = [roll.where(roll.cases["application"] > 0) for roll in rolls]
    return np.concatenate([roll.ratio("trained", "gd", "stable") for roll in later], axis=1)


def _falls(roll: Any) -> np.ndarray:
    later = roll.where(roll.cases["application"] > 0)
    return np.concatenate([later["change", "trained"], later["change", "gd"]])


def _diagonal_spread(w_kq: np.ndarray) -> np.ndarray:
    inputs = np.diagonal(w_kq, axis1=1, axis2=2)[:, :-1]
    return np.abs(inputs / inputs.mean(axis=1, keepdims=True) - 1).max(axis=1)


def _inputs_read(w_pv: np.ndarray) -> np.ndarray:
    return np.abs(w_pv[:, -1, :-1]).max(axis=1) / np.abs(w_pv[:, -1, -1])


CLAIMS = (
    converged("size-10"),
    converged("with-query", id="with-query-converged"),
    Claim(
        "limit", "one step of gradient descent at the closed-form step size has the closed-form loss, for each N = d",
        lambda r: r["limits"]["mse", "gd"][0] / r["optima"]["limit"], two_sided(0.02), derived("one-step optimum"),
        measures="loss of gradient descent / closed form", over="sizes", at_least=4, about="algorithms",
    ),
    Claim(
        "eta-optimum", "tuning finds the closed-form step size, for each N = d", lambda r: _tuned(r["optima"]),
        two_sided(0.02), derived("one-step optimum"), measures="tuned eta / closed form", over="sizes", at_least=4,
        about="algorithms",
    ),
    Claim(
        "loss-matches-gd", "each trained layer's loss is within 0.1 % of gradient descent's",
        stage(MAIN).ratio("trained", "gd"), two_sided(0.001), printed("Fig. 2 left"), premises=PREMISES,
        reported=Reported((1.0026, 1.0006, 1.0029), AUTHORS),
    ),
    Claim(
        "prediction-difference",
        "each trained layer's predictions are those of gradient descent to 0.009 on average " "(paper preset: 0.006)",
        stage(MAIN)["prediction-difference", "trained", "gd"], {"quick": below(0.009), "paper": below(0.006)},
        printed("Fig. 2 centre left"), premises=PREMISES, reported=Reported((0.0225, 0.0184, 0.0246), AUTHORS),
    ),
    Claim(
        "sensitivity-cosine", "each trained layer's sensitivities have a cosine above 0.9998 with gradient descent's",
        stage(MAIN)["cosine", "trained", "gd"], above(0.9998), printed("Fig. 2 centre left"), premises=PREMISES,
        reported=Reported((0.9993, 0.9995, 0.9992), AUTHORS),
    ),
    Claim(
        "model-difference", "the model that each trained layer makes of a context is gradient descent's to 0.03 on "
        "average (paper preset: 0.02), where teachers have norm 3",
        stage(MAIN)["sensitivity-difference", "trained", "gd"], {"quick": below(0.03), "paper": below(0.02)},
        printed("Fig. 2 centre left"), premises=PREMISES, reported=Reported((0.097, 0.078, 0.105), AUTHORS),
    ),
    midpoint(MAIN),
    Claim(
        "interpolation", "halfway between trained weights and construction the loss is within 0.2 % of either end's",
        halfway_losses(MAIN), two_sided(0.002), printed("Fig. 2 and appendix A.3"), premises=(*PREMISES, "midpoint"),
    ),
    Claim(
        "dimensions", "for N = d in 5, 10, 15 and 20 each trained loss is within 0.5 % (paper preset: 0.1 %) of "
        "gradient descent's", lambda r: _sizes(r, "trained", "gd"),
        {"quick": two_sided(0.005), "paper": two_sided(0.001)}, printed("Fig. 2 centre right"),
        measures="loss of trained / of gradient descent, for each size", premises=PREMISES,
    ),
    Claim(
        "interpolated-dimensions", "for N = d in 5, 10, 15 and 20 the loss halfway between trained weights and "
        "construction is within 0.5 % (paper preset: 0.1 %) of gradient descent's", lambda r: _sizes(r, "middle", "gd"),
        {"quick": two_sided(0.005), "paper": two_sided(0.001)}, printed("Fig. 2 centre right"),
        measures="loss at the midpoint / of gradient descent, for each size", premises=(*PREMISES, "midpoint"),
    ),
    Claim(
        "with-query", "with the query's token among those that keys and values come from, each layer's loss is within "
        "1 % of gradient descent's", stage("with-query-comparison").ratio("trained", "gd"), two_sided(0.01),
        printed("section 2, full self-attention"), premises=("with-query-converged", "limit"),
    ),
    Claim(
        "input-scale", "for inputs scaled by 0.5 to 2 each loss is within 5 % of gradient descent's",
        stage("input-scale").ratio("trained", "gd"), two_sided(0.05), printed("Fig. 6a left"), premises=PREMISES,
    ),
    Claim(
        "teacher-scale", "for teachers scaled by 0.5 to 5 each loss is within 5 % of gradient descent's",
        stage("teacher-scale").ratio("trained", "gd"), two_sided(0.05), printed("Fig. 6a centre left"),
        premises=PREMISES,
    ),
    Claim(
        "other-inputs", "on normal, exponential and Laplace inputs each loss is within 10 % of gradient descent's",
        stage("other-inputs").ratio("trained", "gd"), two_sided(0.1), printed("Fig. 6a right"), premises=PREMISES,
    ),
    *(
        Claim(
            f"interpolated-{kind}", f"halfway between trained weights and construction losses are within {margin:.0%} "
            f"of gradient descent's {where}", lambda r, kind=kind: r[kind].ratio("middle", "gd"), two_sided(margin),
            printed(f"Fig. 6a {panel}"), measures="loss at the midpoint / of gradient descent, for each case",
            premises=(*PREMISES, "midpoint"),
        )
        for kind, where, panel, margin in (
            ("input-scale", "for inputs scaled by 0.5 to 2", "left", 0.05),
            ("teacher-scale", "for teachers scaled by 0.5 to 5", "centre left", 0.05),
            ("other-inputs", "on normal, exponential and Laplace inputs", "right", 0.1),
        )
    ),
    Claim(
        "worse-than-nothing", "the step size tuned for the training inputs fails on larger ones: at twice their scale "
        "gradient descent loses more than predicting zero, whose loss is four times that at the scale of training",
        lambda r: r["input-scale"]["mse", "gd"][:, -1] / (4 * r["damping-1.0"]["all", "gd"][0, 0]), above(1.0),
        printed("section 3, on out-of-distribution tasks"),
        measures="loss at twice the scale / four times the loss of the zero prediction at the scale of training",
        over="algorithms", at_least=1, about="algorithms",
    ),
    Claim(
        "eta-read", "the step size in the weights is within 1 % of the one that loses least",
        lambda r: r["step-sizes"]["eta"] / r["optima"]["optimum"][SIZES.index(10)], two_sided(0.01),
        printed("section 2, meta-learned learning rates"), measures="eta read / closed form", quantifier="mean",
        premises=("converged", "eta-optimum"),
    ),
    Claim(
        "weights-diagonal", "W_KQ has one value on the inputs' diagonal, to 2 %",
        lambda r: _diagonal_spread(r["weights"]["w_kq"]), below(0.02), printed("Fig. 9 outer left"),
        measures="largest distance from the mean / |mean|, mean over seeds", quantifier="mean", premises=("converged",),
    ),
    Claim(
        "values-row", "the row of W_PV that makes predictions reads targets alone, to 2 %",
        lambda r: _inputs_read(r["weights"]["w_pv"]), below(0.02), printed("Fig. 9 left"),
        measures="largest |entry at an input| / |entry at the target|, mean over seeds", quantifier="mean",
        premises=("converged",),
    ),
    Claim(
        "weights-off-diagonal", "off its diagonal, W_KQ is at most 1.5 % of the mean diagonal",
        stage("weights")["off_diagonal"], below(0.015), printed("Fig. 9 left"), quantifier="mean",
        premises=("converged",), reported=Reported((0.03, 0.048), "authors' code, ends of 3 runs"),
    ),
    Claim(
        "weights-distance", "the rescaled W_KQ is the construction's", stage("weights")["distance_kq"], below(0.03),
        printed("appendix A.3"), quantifier="mean", premises=("converged",),
    ),
    Claim(
        "rollout-together", "over 50 applications at damping 0.75 the losses stay within 5 % of gradient descent's, "
        "on contexts where damped descent is stable", lambda r: _together(r["damping-0.75"]), two_sided(0.05),
        printed("Fig. 1 right"), measures="loss of trained / of gradient descent, after each application",
        premises=PREMISES,
    ),
    Claim(
        "rollout-lowers", "each of 50 applications at damping 0.75 lowers the loss of trained layers and of gradient "
        "descent, on the same contexts", lambda r: _falls(r["damping-0.75"]), below(0.0), printed("Fig. 1 right"),
        measures="change of the loss by each application", over="learners", at_least=6, premises=PREMISES,
    ),
    Claim(
        "rollout-never-steady", "at damping 0.75 some contexts make gradient descent itself diverge, so that its mean "
        "loss over all contexts cannot fall for ever",
        lambda r: r["unstable"].where(r["unstable"].cases["damping"] == 0.75)["share",], above(0.0),
        derived("Fig. 1 right: both steadily decrease the loss"),
        measures="share of contexts with damping * eta * lambda_max > 2", over="algorithms", at_least=1,
        about="algorithms",
    ),
    Claim(
        "other-dampings", "without damping and at 0.5, losses stay within 5 % of gradient descent's over 50 "
        "applications, too, on contexts where damped descent is stable",
        lambda r: _together(r["damping-1.0"], r["damping-0.5"]), two_sided(0.05), printed("Fig. 10"),
        measures="loss of trained / of gradient descent, after each application", premises=PREMISES,
    ),
    Claim(
        "gd-more-robust", "after 50 applications at damping 0.75 the trained layers' error is above gradient "
        "descent's on most contexts", lambda r: r["damping-0.75"]["worse", "trained"][:, -1], above(0.5),
        printed("Fig. 10: slightly better robustness for GD"), measures="share of contexts", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "undamped-diverges", "without damping, 50 applications leave more than 1 % of contexts worse than the zero "
        "prediction, of trained layers and of gradient descent",
        lambda r: np.concatenate([r["damping-1.0"]["grows", name][:, -1] for name in ("trained", "gd")]), above(0.01),
        printed("Fig. 10 left"), measures="share of contexts whose error has grown", over="learners", at_least=6,
        premises=PREMISES,
    ),
)  # fmt: skip
