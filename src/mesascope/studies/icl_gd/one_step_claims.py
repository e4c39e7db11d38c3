"""The claims of the one-step study, and what each is judged by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mesascope.measurement import Measurement
from mesascope.runs import Bound, Claim
from mesascope.studies.evidence import both, excess_percent, largest, ratio_distance, smallest

__all__ = ["CLAIMS", "judge"]


CLAIMS = (
    Claim(
        "loss-matches-gd",
        "excess of the trained loss over gradient descent's at the best step size, % (worst seed, paired)",
        "ICML paper, Fig. 2 left",
        both(Bound(high=0.1)),
    ),
    Claim(
        "not-below-limit",
        "trained loss minus the limit of any linear self-attention layer, in standard errors (lowest seed)",
        "derived: one-step limit",
        both(Bound(low=-3.0)),
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
        both(Bound(low=0.9998)),
        reference=0.9995,
    ),
    Claim(
        "interpolation",
        "excess loss halfway between trained weights and construction over either end, % (worst seed)",
        "ICML paper, Fig. 2 and appendix A.3",
        both(Bound(high=0.2)),
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
        both(Bound(high=0.05)),
    ),
    Claim(
        "teacher-scale",
        "distance from 1 of the loss ratio trained / GD for teacher scales 0.5 to 5 (worst seed and scale)",
        "ICML paper, Fig. 6a centre left",
        both(Bound(high=0.05)),
    ),
    Claim(
        "other-inputs",
        "distance from 1 of the loss ratio trained / GD on normal, exponential and Laplace inputs (worst)",
        "ICML paper, Fig. 6a right",
        both(Bound(high=0.1)),
    ),
    Claim(
        "weights",
        "largest off-diagonal entry of W_KQ after rescaling, % of the mean diagonal (worst seed)",
        "ICML paper, Fig. 9 left",
        both(Bound(high=1.5)),
        reference=3.0,
    ),
    Claim(
        "rollout-together",
        "difference of trained and GD losses over 50 steps at damping 0.75, on contexts where damped GD is stable, % "
        "(worst seed and step)",
        "ICML paper, Fig. 1 right",
        both(Bound(high=5.0)),
    ),
    Claim(
        "rollout-lowers",
        "largest change of that loss from one step to the next (worst of trained and GD)",
        "ICML paper, Fig. 1 right",
        both(Bound(high=0.0)),
    ),
    Claim(
        "undamped-diverges",
        "log10 of the loss after 50 undamped steps over the loss before them (lowest of trained and GD)",
        "ICML paper, Fig. 10 left",
        both(Bound(low=0.0)),
    ),
    Claim(
        "eta-optimum",
        "distance of the tuned step size from the closed form, in its standard errors (worst of four sizes)",
        "derived: one-step optimum",
        both(Bound(high=3.0)),
    ),
    Claim(
        "limit-monte-carlo",
        "distance of gradient descent's loss from the closed form, in its standard errors (worst of four sizes)",
        "derived: one-step optimum",
        both(Bound(high=3.0)),
    ),
)


def judge(results: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Measurement]:
    """One Measurement a claim."""
    main, size, roll = results["comparison"], results["dimensions"], results["rollouts"]
    n, between = main["mse_n"], results["interpolation"]
    below = (main["mse_value"] - results["training"]["limit"]) / main["mse_stderr"]
    difference, cosine = (
        [main[f"gd_{field}_{key}"] for key in ("value", "stderr", "n")]
        for field in ("prediction_difference", "sensitivity_cosine")
    )
    dampings = roll["damping"].tolist()
    together, free = roll["stable"][dampings.index(0.75)], roll["all"][dampings.index(1.0)]
    apart = np.abs(together[1:] / together[0] - 1)
    return {
        "loss-matches-gd": excess_percent(main, "gd_mse_ratio"),
        "not-below-limit": smallest(below, n=n),
        "prediction-difference": largest(*difference),
        "sensitivity-cosine": smallest(*cosine),
        "interpolation": largest(100 * (between["value"] - 1), 100 * between["stderr"], between["n"]),
        "dimensions": largest(100 * (size["ratio"] - 1), 100 * size["ratio_stderr"], n[0]),
        "input-scale": ratio_distance(results["input-scale"], "gd"),
        "teacher-scale": ratio_distance(results["teacher-scale"], "gd"),
        "other-inputs": ratio_distance(results["other-inputs"], "gd"),
        "weights": largest(100 * results["weights"]["off_diagonal"]),
        "rollout-together": largest(100 * apart.max(axis=1)),
        "rollout-lowers": largest(np.diff(together, axis=1).max(axis=1)),
        "undamped-diverges": smallest(np.log10(np.minimum(free[:, -1] / free[:, 0], 1e300))),
        "eta-optimum": largest(np.abs(size["eta"] - size["eta_optimum"]) / size["eta_stderr"]),
        "limit-monte-carlo": largest(np.abs(size["gd"] - size["limit"]) / size["gd_stderr"]),
    }
