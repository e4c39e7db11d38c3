"""The claims of the one-step study."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.evidence import Claim, Reported, above, below, derived, printed, two_sided
from mesascope.studies.icl_gd.shared_claims import converged, halfway_losses, midpoint

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


def _together(roll: Any) -> np.ndarray:
    later = roll.where(roll.cases["application"] > 0)
    return later.ratio("trained", "gd", "stable")


def _falls(roll: Any) -> np.ndarray:
    later = roll.where(roll.cases["application"] > 0)
    return np.concatenate([later["change", "trained"], later["change", "gd"]])


CLAIMS = (
    converged("size-10"),
    Claim(
        "limit", "one step of gradient descent at the closed-form step size has the closed-form loss, for each N = d",
        "loss of gradient descent / closed form", derived("one-step optimum"),
        lambda r: r["limits"]["mse", "gd"][0] / r["optima"]["limit"],
        two_sided(0.02), over="sizes", at_least=4, about="algorithms",
    ),
    Claim(
        "eta-optimum", "tuning finds the closed-form step size, for each N = d", "tuned eta / closed form",
        derived("one-step optimum"), lambda r: _tuned(r["optima"]), two_sided(0.02), over="sizes", at_least=4,
        about="algorithms",
    ),
    Claim(
        "loss-matches-gd", "each trained layer's loss is within 0.1 % of gradient descent's",
        "loss of trained / of gradient descent", printed("Fig. 2 left"), lambda r: r[MAIN].ratio("trained", "gd"),
        two_sided(0.001), premises=PREMISES, reported=Reported(1.0026, AUTHORS),
    ),
    Claim(
        "prediction-difference", "each trained layer's predictions are those of gradient descent to 0.009 on average "
        "(paper preset: 0.006)", "mean |prediction - gradient descent's|", printed("Fig. 2 centre left"),
        lambda r: r[MAIN]["prediction-difference", "trained", "gd"],
        {"quick": below(0.009), "paper": below(0.006)}, premises=PREMISES, reported=Reported(0.0218, AUTHORS),
    ),
    Claim(
        "sensitivity-cosine", "each trained layer's sensitivities have a cosine above 0.9998 with gradient descent's",
        "mean cosine of dy/dx_q", printed("Fig. 2 centre left"), lambda r: r[MAIN]["cosine", "trained", "gd"],
        above(0.9998), premises=PREMISES, reported=Reported(0.9993, AUTHORS),
    ),
    midpoint(MAIN),
    Claim(
        "interpolation", "halfway between trained weights and construction the loss is within 0.2 % of either end's",
        "loss at the midpoint / at either end", printed("Fig. 2 and appendix A.3"),
        lambda r: halfway_losses(r[MAIN]), two_sided(0.002),
        premises=(*PREMISES, "midpoint"),
    ),
    Claim(
        "dimensions", "for N = d in 5, 10, 15 and 20 each trained loss is within 0.5 % (paper preset: 0.1 %) of "
        "gradient descent's", "loss of trained / of gradient descent, for each size", printed("Fig. 2 centre right"),
        lambda r: _sizes(r, "trained", "gd"), {"quick": two_sided(0.005), "paper": two_sided(0.001)}, premises=PREMISES,
    ),
    Claim(
        "input-scale", "for inputs scaled by 0.5 to 2 each loss is within 5 % of gradient descent's",
        "loss of trained / of gradient descent, at each scale", printed("Fig. 6a left"),
        lambda r: r["input-scale"].ratio("trained", "gd"), two_sided(0.05), premises=PREMISES,
    ),
    Claim(
        "teacher-scale", "for teachers scaled by 0.5 to 5 each loss is within 5 % of gradient descent's",
        "loss of trained / of gradient descent, at each scale", printed("Fig. 6a centre left"),
        lambda r: r["teacher-scale"].ratio("trained", "gd"), two_sided(0.05), premises=PREMISES,
    ),
    Claim(
        "other-inputs", "on normal, exponential and Laplace inputs each loss is within 10 % of gradient descent's",
        "loss of trained / of gradient descent, for each law and scale", printed("Fig. 6a right"),
        lambda r: r["other-inputs"].ratio("trained", "gd"), two_sided(0.1), premises=PREMISES,
    ),
    Claim(
        "weights-off-diagonal", "off its diagonal, W_KQ is at most 1.5 % of the mean diagonal",
        "largest |entry| off the diagonal / mean diagonal, mean over seeds", printed("Fig. 9 left"),
        lambda r: r["weights"]["off_diagonal"], below(0.015), quantifier="mean", premises=("converged",),
        reported=Reported(0.039, "authors' code, 3 runs"),
    ),
    Claim(
        "weights-distance", "the rescaled W_KQ is the construction's", "|W_KQ - construction's| / |construction's|",
        printed("appendix A.3"), lambda r: r["weights"]["distance_kq"], below(0.03), quantifier="mean",
        premises=("converged",),
    ),
    Claim(
        "rollout-together", "over 50 applications at damping 0.75 the losses stay within 5 % of gradient descent's, on "
        "contexts where damped descent is stable", "loss of trained / of gradient descent, after each application",
        printed("Fig. 1 right"), lambda r: _together(r["damping-0.75"]), two_sided(0.05), premises=PREMISES,
    ),
    Claim(
        "rollout-lowers", "each of 50 applications at damping 0.75 lowers the loss of trained layers and of gradient "
        "descent, on the same contexts", "change of the loss by each application", printed("Fig. 1 right"),
        lambda r: _falls(r["damping-0.75"]), below(0.0), premises=PREMISES, at_least=6,
    ),
    Claim(
        "undamped-diverges", "without damping, 50 applications leave more than 1 % of contexts worse than the zero "
        "prediction", "share of contexts whose error has grown", printed("Fig. 10 left"),
        lambda r: r["damping-1.0"]["grows", "trained"][:, -1], above(0.01), premises=PREMISES,
    ),
)  # fmt: skip
