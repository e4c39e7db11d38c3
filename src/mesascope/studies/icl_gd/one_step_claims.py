"""The claims of the one-step study, and what each is judged by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mesascope.measurement import Measurement
from mesascope.runs import Bound, Claim
from mesascope.studies.evidence import largest, smallest

__all__ = ["CLAIMS", "judge"]


def _same(bound: Bound) -> dict[str, Bound]:
    return {"quick": bound, "paper": bound}


CLAIMS = (
    Claim(
        "loss-matches-gd",
        "excess of the trained loss over gradient descent's at the best step size, % (worst seed, paired)",
        "ICML paper, Fig. 2 left",
        _same(Bound(high=0.1)),
    ),
    Claim(
        "not-below-limit",
        "trained loss minus the limit of any linear self-attention layer, in standard errors (lowest seed)",
        "derived: one-step limit",
        _same(Bound(low=-3.0)),
    ),
    Claim(
        "prediction-difference",
        "mean |prediction - gradient descent's| (worst seed)",
        "ICML paper, Fig. 2 centre left",
        {"quick": Bound(high=0.009), "paper": Bound(high=0.006)},
        reference=0.0184,
    ),
    Claim(
        "sensitivity-cosine",
        "mean cosine of dy/dx_q with gradient descent's (worst seed)",
        "ICML paper, Fig. 2 centre left",
        _same(Bound(low=0.9998)),
        reference=0.9995,
    ),
    Claim(
        "interpolation",
        "excess loss halfway between trained weights and construction over either end, % (worst seed)",
        "ICML paper, Fig. 2 and appendix A.3",
        _same(Bound(high=0.2)),
    ),
    Claim(
        "dimensions",
        "excess of the trained loss over gradient descent's for N = d in 5, 10, 15, 20, % (worst seed and size)",
        "ICML paper, Fig. 2 centre right",
        {"quick": Bound(high=0.5), "paper": Bound(high=0.1)},
    ),
    Claim(
        "input-scale",
        "distance from 1 of the loss ratio trained / GD for input scales 0.25 to 1 (worst seed and scale)",
        "ICML paper, Fig. 6a left",
        _same(Bound(high=0.05)),
    ),
    Claim(
        "teacher-scale",
        "distance from 1 of the loss ratio trained / GD for teacher scales 0.5 to 5 (worst seed and scale)",
        "ICML paper, Fig. 6a centre left",
        _same(Bound(high=0.05)),
    ),
    Claim(
        "other-inputs",
        "distance from 1 of the loss ratio trained / GD on normal, exponential and Laplace inputs (worst)",
        "ICML paper, Fig. 6a right",
        _same(Bound(high=0.1)),
    ),
    Claim(
        "weights",
        "largest off-diagonal entry of W_KQ after rescaling, % of the mean diagonal (worst seed)",
        "ICML paper, Fig. 9 left",
        _same(Bound(high=1.5)),
        reference=3.0,
    ),
    Claim(
        "rollout-together",
        "difference of trained and GD losses over 50 steps at damping 0.75, on contexts where damped GD is stable, % "
        "(worst seed and step)",
        "ICML paper, Fig. 1 right",
        _same(Bound(high=5.0)),
    ),
    Claim(
        "rollout-lowers",
        "largest change of that loss from one step to the next (worst of trained and GD)",
        "ICML paper, Fig. 1 right",
        _same(Bound(high=0.0)),
    ),
    Claim(
        "undamped-diverges",
        "log10 of the loss after 50 undamped steps over the loss before them (lowest of trained and GD)",
        "ICML paper, Fig. 10 left",
        _same(Bound(low=0.0)),
    ),
    Claim(
        "eta-optimum",
        "distance of the tuned step size from the closed form, in its standard errors (worst of four sizes)",
        "derived: one-step optimum",
        _same(Bound(high=3.0)),
    ),
    Claim(
        "limit-monte-carlo",
        "distance of gradient descent's loss from the closed form, in its standard errors (worst of four sizes)",
        "derived: one-step optimum",
        _same(Bound(high=3.0)),
    ),
)


def judge(results: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Measurement]:
    """One Measurement a claim."""
    main, size, roll = results["comparison"], results["dimensions"], results["rollouts"]
    n = main["mse_a_n"]
    below = (main["mse_a_value"] - results["training"]["limit"]) / main["mse_a_stderr"]
    dampings = roll["damping"].tolist()
    together, free = roll["stable"][dampings.index(0.75)], roll["all"][dampings.index(1.0)]
    apart = np.abs(together[1:] / together[0] - 1)
    return {
        "loss-matches-gd": largest(100 * (main["mse_ratio_value"] - 1), 100 * main["mse_ratio_stderr"], n),
        "not-below-limit": smallest(below, n=n),
        "prediction-difference": largest(main["prediction_difference_value"], main["prediction_difference_stderr"], n),
        "sensitivity-cosine": smallest(main["sensitivity_cosine_value"], main["sensitivity_cosine_stderr"], n),
        "interpolation": _worst_percent(results["interpolation"]),
        "dimensions": largest(100 * (size["ratio"] - 1), 100 * size["ratio_stderr"], n[0]),
        "input-scale": _worst_ratio(results["input-scale"]),
        "teacher-scale": _worst_ratio(results["teacher-scale"]),
        "other-inputs": _worst_ratio(results["other-inputs"]),
        "weights": largest(100 * results["weights"]["off_diagonal"]),
        "rollout-together": largest(100 * apart.max(axis=1)),
        "rollout-lowers": largest(np.diff(together, axis=1).max(axis=1)),
        "undamped-diverges": smallest(np.log10(np.minimum(free[:, -1] / free[:, 0], 1e300))),
        "eta-optimum": largest(np.abs(size["eta"] - size["eta_optimum"]) / size["eta_stderr"]),
        "limit-monte-carlo": largest(np.abs(size["gd"] - size["limit"]) / size["gd_stderr"]),
    }


def _worst_percent(ratios: Mapping[str, np.ndarray]) -> Measurement:
    return largest(100 * (ratios["value"] - 1), 100 * ratios["stderr"], ratios["n"])


def _worst_ratio(swept: Mapping[str, np.ndarray]) -> Measurement:
    """The distance from 1 of the ratio farthest from it, where gradient descent's own loss is finite."""
    finite = np.isfinite(swept["gd"])
    distance = np.abs(swept["ratio"] - 1)[:, finite]
    return largest(distance, swept["ratio_stderr"][:, finite], int(swept["tasks"]))
