"""The claims of the deep study."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.evidence import Claim, above, below, derived, ours, printed, stage, two_sided
from mesascope.studies.common import converged, halfway_distances, halfway_losses, midpoint
from mesascope.studies.icl_gd.shared_claims import near_training, no_better_descent, peak_difference

__all__ = ["CLAIMS", "without_each"]

SEPARATE = ("separate-converged",)
TUNED = (*SEPARATE, "separate-gd++-at-its-optimum")
LOOPED = ("looped-converged", "looped-gd++-at-its-optimum")
MAIN = "separate-comparison"


def _worse(r: Any) -> np.ndarray:
    """Every looped network over every one of separate layers; what tasks they share adds to the error, not less."""
    return np.true_divide.outer(r["looped-comparison"]["mse", "trained"], r[MAIN]["mse", "trained"])


def _small(swept: Any) -> Any:
    return swept.where(swept.cases["w_scale"] <= 2.0)


def _apart_at_twice(swept: Any) -> np.ndarray:
    return np.array([abs(np.log(ratio.nominal_value)) for ratio in swept.ratio("trained", "gd++")[:, -1]])


def _smooth(losses: Any) -> np.ndarray:
    """True for each network whose loss halfway is at most 10 % above both ends'."""
    return np.array([max(number.nominal_value for number in both) < 1.1 for both in losses])


def _apart(stage: str) -> Claim:
    """The paths of deep networks are bent: halfway need not be half the way, but is neither end."""
    return Claim(
        f"{stage}-apart",
        f"on the way {stage.replace('-', ' ')}, the network halfway predicts otherwise than either end",
        halfway_distances(stage),
        above(0.1),
        ours("premise"),
        premises=SEPARATE,
    )


def without_each(left_out: Any, layers: int = 5) -> np.ndarray:
    """The median loss without each layer over that of the whole network, ``(seeds, layers)``."""
    return np.stack([left_out.ratio(f"without {k + 1}", "trained", "median") for k in range(layers)], axis=1)


def _alive_over_warm(r: Any) -> np.ndarray:
    """Every network from random weights without a dead layer, or all if each has one, over every warm one."""
    alive = np.array([min(ratio.nominal_value for ratio in row) > 2 for row in without_each(r["left-out"])])
    chosen = alive if alive.any() else ~alive
    return np.true_divide.outer(r[MAIN]["median", "trained"][chosen], r["warm-comparison"]["median", "warm"])


def _used(stage: str, id: str, which: str, premise: str) -> Claim:
    """A dead layer can be left out."""
    return Claim(
        id,
        f"every layer of each network {which} is in use: without it the median loss is more than twice as large",
        lambda r: without_each(r[stage]),
        above(2.0),
        ours("whether layers die in training"),
        measures="median loss without a layer / of the whole network, for each layer",
        premises=(premise,),
    )


WARM = ("warm-converged",)

CLAIMS = (
    converged("separate", id="separate-converged", most=0.1, log=True),
    converged("looped", id="looped-converged"),
    no_better_descent(
        MAIN, "gd++", "GD++ of five separate steps", id="separate-gd++-at-its-optimum", tolerance=0.1, quantity="median"
    ),
    no_better_descent("looped-comparison", "gd++", "GD++ of ten tied steps", id="looped-gd++-at-its-optimum"),
    Claim(
        "median-below-gd", "the median loss of five separate layers is less than a third (paper preset: a fifth) of "
        "that of five gradient steps, each tuned", stage(MAIN).ratio("gd", "trained", "median"),
        {"quick": above(3.0), "paper": above(5.0)}, printed("Fig. 3b left"), premises=SEPARATE,
    ),
    Claim(
        "loss-matches-own-gd++",
        "each network of five layers loses what GD++ with its own step sizes does, within " "10 %",
        stage(MAIN).ratio("trained", "own"), two_sided(0.1), printed("Fig. 3b left"), premises=SEPARATE,
    ),
    Claim(
        "median-matches-own-gd++",
        "each network of five layers has the median loss of GD++ with its own step sizes, " "within 10 %",
        stage(MAIN).ratio("trained", "own", "median"), two_sided(0.1),
        ours("means rest on the rare contexts where deep polynomials explode"), premises=SEPARATE,
    ),
    Claim(
        "cosine-own-gd++", "each network of five layers has a cosine above 0.99 with GD++ with its own step sizes",
        stage(MAIN)["cosine", "trained", "own"], above(0.99), printed("Fig. 3b centre right"), premises=SEPARATE,
    ),
    Claim(
        "cosine-tuned-gd++", "each network of five layers has a cosine above 0.99 with five tuned " "steps of GD++",
        stage(MAIN)["cosine", "trained", "gd++"], above(0.99), printed("Fig. 3b centre right"), premises=TUNED,
    ),
    Claim(
        "gd++-above-gd", "each network of five layers is nearer to tuned GD++ than to tuned gradient descent",
        stage(MAIN)["cosine", "trained", "gd++"] - stage(MAIN)["cosine", "trained", "gd"], above(0.0, by="paper"),
        printed("Fig. 3b centre"), premises=TUNED,
    ),
    Claim(
        "near-close",
        "GD++ tuned on from each network's own step sizes has a median loss within a quarter of the " "network's",
        stage(MAIN).ratio("trained", "near", "median"), two_sided(0.25),
        ours("the reference in the network's own basin"), premises=SEPARATE,
    ),
    Claim(
        "close-to-zero", "each network of five layers has a mean half squared error below 0.02",
        stage(MAIN)["mse", "trained"] / 2, below(0.02), printed("section 3: loss close to 0"), premises=SEPARATE,
    ),
    Claim(
        "gd-early", "early in training networks of five layers are nearer to gradient descent than to GD++",
        peak_difference("separate"), above(0.0, by="paper"), printed("Fig. 3b centre left"), quantifier="mean",
        premises=TUNED,
    ),
    Claim(
        "input-scale", "for input scales up to 1.25 times those of training, losses of five layers stay within a "
        "quarter of those of GD++ with their own step sizes",
        near_training("separate-input-scale").ratio("trained", "own"), two_sided(0.25),
        printed("Figs. 3b right, 6c left"), premises=SEPARATE,
    ),
    Claim(
        "far-from-training", "on inputs of twice the training scale the match with tuned GD++ is lost: losses differ "
        "by more than a tenth", lambda r: _apart_at_twice(r["separate-input-scale"]), above(0.1),
        printed("Fig. 6c: less good match far away from training"),
        measures="|log(loss of trained / of tuned GD++)|, mean over seeds", quantifier="mean", premises=TUNED,
    ),
    Claim(
        "teacher-scale", "for teachers scaled by 0.5 to 2, losses of five layers stay within a quarter of those of "
        "GD++ with their own step sizes", lambda r: _small(r["separate-teacher-scale"]).ratio("trained", "own"),
        two_sided(0.25), printed("Fig. 6c centre left"), measures="loss of trained / of its own GD++, at each scale",
        premises=SEPARATE,
    ),
    _used("left-out", "all-layers-used", "of five layers", "separate-converged"),
    converged("warm", id="warm-converged", most=0.1, log=True),
    _used("warm-left-out", "warm-all-layers-used", "that starts from gradient descent", "warm-converged"),
    Claim(
        "warm-same-optimum", "networks from random weights, all of whose layers are in use, have the median loss of "
        "those that start from gradient descent, within a quarter", _alive_over_warm, two_sided(0.25),
        ours("whether what dies is all that a random start costs"),
        measures="median loss from random weights, all layers in use / from gradient descent, each with each",
        premises=(*SEPARATE, *WARM),
    ),
    Claim(
        "warm-matches-own-gd++",
        "each network that starts from gradient descent has a cosine above 0.99 with GD++ " "with its own step sizes",
        stage("warm-comparison")["cosine", "warm", "own"], above(0.99), ours("whether GD++ is what it comes to"),
        premises=WARM,
    ),
    Claim(
        "looped-cosine", "each network of ten looped layers has a cosine above 0.99 with ten tied steps of GD++",
        stage("looped-comparison")["cosine", "trained", "gd++"], above(0.99), printed("Fig. 7 centre"), premises=LOOPED,
    ),
    Claim(
        "looped-input-scale", "for input scales up to 1.25 times those of training, losses of ten looped layers stay "
        "within a quarter of GD++'s", near_training("looped-input-scale").ratio("trained", "gd++"), two_sided(0.25),
        printed("Fig. 7 right"), premises=LOOPED,
    ),
    Claim(
        "looped-interpolation",
        "halfway between ten looped layers and the construction the loss is at most 10 % above " "both ends'",
        halfway_losses("looped-interpolation"), below(1.1), printed("Fig. 7: again interpolatable"),
        premises=(*LOOPED, "looped-midpoint"),
    ),
    midpoint("looped-interpolation", id="looped-midpoint"),
    Claim(
        "looped-matches-gd++",
        "each network of ten looped layers loses what ten tied steps of GD++ do, within 10 % " "(quick preset: 50 %)",
        stage("looped-comparison").ratio("trained", "gd++"), {"quick": two_sided(0.5), "paper": two_sided(0.1)},
        printed("Fig. 7"), premises=LOOPED,
    ),
    Claim(
        "looped-worse", "every network of ten looped layers loses more than every one of five separate layers", _worse,
        above(1.0, by="paper"), printed("Fig. 7"), measures="loss of looped / of separate, each with each",
        premises=("separate-converged", "looped-converged"),
    ),
    Claim(
        "construction", "layers built to run five tuned steps of GD++ predict what GD++ predicts, tokens clipped alike",
        lambda r: r["to-tuned"]["prediction-difference", "other", "gd++"][:1], below(0.01), ours("premise"),
        measures="mean |prediction of the layers - GD++'s|", over="algorithms", at_least=1, about="algorithms",
    ),
    _apart("to-own"),
    Claim(
        "interpolation", "for most networks of five layers, the loss halfway to GD++ with their own step sizes is at "
        "most 10 % above that of both ends", halfway_losses("to-own").map(_smooth, "share of networks"), above(0.5),
        derived("Fig. 3b, which leaves it to future work"), quantifier="share",
        premises=(*SEPARATE, "to-own-apart"),
    ),
    _apart("to-tuned"),
    Claim(
        "no-interpolation", "halfway between each network of five layers and tuned GD++ the loss is more than 10 % "
        "above that of both ends", halfway_losses("to-tuned"), above(1.1), printed("section 3, on Fig. 3b"),
        premises=(*TUNED, "construction", "to-tuned-apart"),
    ),
)  # fmt: skip
