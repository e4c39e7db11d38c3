"""The claims of the deep study."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.evidence import Claim, above, below, derived, ours, printed, two_sided
from mesascope.studies.icl_gd.shared_claims import converged, halfway_distances, halfway_losses, no_better_descent

__all__ = ["CLAIMS"]

SEPARATE = ("separate-converged",)
TUNED = (*SEPARATE, "separate-gd++-at-its-optimum")
LOOPED = ("looped-converged", "looped-gd++-at-its-optimum")
MAIN = "separate-comparison"


def _worse(r: Any) -> np.ndarray:
    """Every looped network over every one of separate layers; what tasks they share adds to the error, not less."""
    return np.true_divide.outer(r["looped-comparison"]["mse", "trained"], r[MAIN]["mse", "trained"])


def _smooth(path: Any) -> np.ndarray:
    """Whether the loss halfway is at most 10 % above both ends'."""
    return np.array([max(number.nominal_value for number in both) < 1.1 for both in halfway_losses(path)])


def _apart(stage: str) -> Claim:
    """The paths of deep networks are bent: halfway need not be half the way, but is neither end."""
    return Claim(
        f"{stage}-apart",
        f"on the way {stage.replace('-', ' ')}, the network halfway predicts otherwise than either end",
        "mean difference of predictions, midpoint to either end / end to end",
        ours("premise"),
        lambda r: halfway_distances(r[stage]),
        above(0.1),
        premises=SEPARATE,
    )


CLAIMS = (
    converged("separate", id="separate-converged", most=0.1, log=True),
    converged("looped", id="looped-converged"),
    no_better_descent(
        MAIN, "gd++", "GD++ of five separate steps", id="separate-gd++-at-its-optimum", tolerance=0.1, quantity="median"
    ),
    no_better_descent("looped-comparison", "gd++", "GD++ of ten tied steps", id="looped-gd++-at-its-optimum"),
    Claim(
        "median-below-gd", "the median loss of five separate layers is less than a third (paper preset: a fifth) of "
        "that of five gradient steps, each tuned", "median loss of gradient descent / of trained",
        printed("Fig. 3b left"), lambda r: r[MAIN].ratio("gd", "trained", "median"),
        {"quick": above(3.0), "paper": above(5.0)}, premises=SEPARATE,
    ),
    Claim(
        "loss-matches-own-gd++", "each network of five layers loses what GD++ with its own step sizes does, within "
        "10 %", "loss of trained / of GD++ with the network's step sizes", printed("Fig. 3b left"),
        lambda r: r[MAIN].ratio("trained", "own"), two_sided(0.1), premises=SEPARATE,
    ),
    Claim(
        "median-matches-own-gd++", "each network of five layers has the median loss of GD++ with its own step sizes, "
        "within 10 %", "median loss of trained / of GD++ with the network's step sizes",
        ours("means rest on the rare contexts where deep polynomials explode"),
        lambda r: r[MAIN].ratio("trained", "own", "median"), two_sided(0.1), premises=SEPARATE,
    ),
    Claim(
        "cosine-own-gd++", "each network of five layers has a cosine above 0.99 with GD++ with its own step sizes",
        "mean cosine of dy/dx_q", printed("Fig. 3b centre right"), lambda r: r[MAIN]["cosine", "trained", "own"],
        above(0.99), premises=SEPARATE,
    ),
    Claim(
        "cosine-tuned-gd++", "each network of five layers has a cosine above 0.99 with five tuned "
        "steps of GD++", "mean cosine of dy/dx_q", printed("Fig. 3b centre right"),
        lambda r: r[MAIN]["cosine", "trained", "gd++"], above(0.99), premises=TUNED,
    ),
    Claim(
        "gd++-above-gd", "each network of five layers is nearer to tuned GD++ than to tuned gradient descent",
        "cosine to GD++ less cosine to gradient descent", printed("Fig. 3b centre"),
        lambda r: r[MAIN]["cosine", "trained", "gd++"] - r[MAIN]["cosine", "trained", "gd"],
        above(0.0, by="paper"), premises=TUNED,
    ),
    Claim(
        "looped-matches-gd++", "each network of ten looped layers loses what ten tied steps of GD++ do, within 10 % "
        "(quick preset: 50 %)", "loss of trained / of GD++", printed("Fig. 7"),
        lambda r: r["looped-comparison"].ratio("trained", "gd++"),
        {"quick": two_sided(0.5), "paper": two_sided(0.1)}, premises=LOOPED,
    ),
    Claim(
        "looped-worse", "every network of ten looped layers loses more than every one of five separate layers",
        "loss of looped / of separate, each with each", printed("Fig. 7"), _worse, above(1.0, by="paper"),
        premises=("separate-converged", "looped-converged"),
    ),
    Claim(
        "construction", "layers built to run five tuned steps of GD++ predict what GD++ predicts, tokens clipped alike",
        "mean |prediction of the layers - GD++'s|", ours("premise"),
        lambda r: r["to-tuned"]["prediction-difference", "other", "gd++"][:1], below(0.01), over="algorithms",
        at_least=1, about="algorithms",
    ),
    _apart("to-own"),
    Claim(
        "interpolation", "for most networks of five layers, the loss halfway to GD++ with their own step sizes is at "
        "most 10 % above that of both ends", "share of networks", derived("Fig. 3b, which leaves it to future work"),
        lambda r: _smooth(r["to-own"]), above(0.5), quantifier="share", premises=(*SEPARATE, "to-own-apart"),
    ),
    _apart("to-tuned"),
    Claim(
        "no-interpolation", "halfway between each network of five layers and tuned GD++ the loss is more than 10 % "
        "above that of both ends", "loss at the midpoint / at either end", printed("section 3, on Fig. 3b"),
        lambda r: halfway_losses(r["to-tuned"]), above(1.1), premises=(*TUNED, "construction", "to-tuned-apart"),
    ),
)  # fmt: skip
