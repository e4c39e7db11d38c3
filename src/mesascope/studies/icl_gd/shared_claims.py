"""Claims that several studies of linear regression share: premises, mostly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mesascope.evidence import Bound, Claim, above, below, ours, two_sided

__all__ = [
    "as_predicted",
    "converged",
    "derivatives",
    "gap_left",
    "halfway_distances",
    "halfway_losses",
    "late_share",
    "midpoint",
    "near_training",
    "no_better_descent",
    "peak_difference",
]


def converged(
    *trainings: str,
    id: str = "converged",
    most: float = 0.01,
    at_least: int = 5,
    quantity: str = "mse",
    log: bool = False,
) -> Claim:
    """Without it, how a trained network compares with anything says little.

    ``log`` takes change and fall on a logarithmic scale, for losses that fall by orders of magnitude: one that falls by
    the same factor throughout has a fifth of its fall in the last fifth.
    """
    return Claim(
        id,
        f"training has converged: its last fifth changes the {'logarithm of the ' if log else ''}loss by less than "
        f"{most:.0%} of the fall over the whole training",
        f"mean over seeds of |change in the last fifth| / |fall|{', of log loss' if log else ''}",
        ours("premise"),
        lambda r: np.stack([late_share(r[training], quantity, log=log) for training in trainings], axis=1),
        below(most),
        quantifier="mean",
        at_least=at_least,
    )


def late_share(curves: Any, quantity: str = "mse", *, log: bool = False) -> np.ndarray:
    """Of the fall of each seed's loss, the share made in the last fifth of the steps; 1 where nothing falls."""
    step, loss = curves["step"], np.log(curves[quantity]) if log else curves[quantity]
    before = np.flatnonzero(step <= 0.8 * step[-1])[-1]
    fall, late = loss[:, 0] - loss[:, -1], loss[:, before] - loss[:, -1]
    return np.where(fall > 0, np.abs(late) / np.maximum(fall, 1e-30), 1.0)


def no_better_descent(
    stage: str, reference: str, what: str, *, id: str, tolerance: float = 0.02, quantity: str = "mse"
) -> Claim:
    """A reference at a poor local optimum would flatter every network; the networks' own step sizes are a witness.

    ``quantity="median"`` is for deep descents, whose means rest on the few tasks where they explode.
    """
    loss = "median error" if quantity == "median" else "loss"
    return Claim(
        id,
        f"no network's own step sizes, read from its weights, make better {what} than the tuned ones",
        f"{loss} of {what} with each network's step sizes / with tuned ones",
        ours("premise"),
        lambda r: r[stage].ratio("own", reference, quantity),
        above(1 - tolerance),
        about="algorithms",
    )


def derivatives(stage: str, *, id: str = "derivatives") -> Claim:
    """Sensitivities taken at another query, or of another task, would not predict how predictions change."""
    return Claim(
        id,
        "sensitivities are the derivatives of the predictions at the same queries",
        "mean |difference quotient - sensitivity along it| / mean |difference quotient|",
        ours("premise"),
        lambda r: r[stage]["derivative-error", "trained"] / r[stage]["derivative", "trained"],
        below(0.05),
        about="algorithms",
    )


def halfway_losses(path: Any) -> np.ndarray:
    """Loss of each midpoint of a `halfway` over that of either end, ``(seeds, 2)``."""
    return np.stack([path.ratio("middle", end) for end in ("trained", "other")], axis=1)


def halfway_distances(path: Any) -> np.ndarray:
    """Mean difference of predictions of each midpoint to either end, over that of the ends, ``(seeds, 2)``."""
    ends = path["prediction-difference", "trained", "other"]
    return np.stack([path["prediction-difference", "middle", end] / ends for end in ("trained", "other")], axis=1)


def peak_difference(curves: Any) -> np.ndarray:
    """Each seed's cosine to gradient descent less that to GD++, at the step where the former is largest."""
    to_gd, to_plus = curves["gd cosine"], curves["gd++ cosine"]
    return np.take_along_axis(to_gd - to_plus, to_gd.argmax(axis=1)[:, None], axis=1)[:, 0]


def gap_left(r: Any, one: str, two: str) -> np.ndarray:
    """Of one contrast's loss beyond gradient descent's, what another leaves; each of its seeds with each one's."""
    beyond = {name: r[f"{name}-comparison"].ratio("trained", "gd") - 1 for name in (one, two)}
    return np.true_divide.outer(beyond[two], beyond[one])


def near_training(swept: Any) -> Any:
    """The part of a sweep over input scales that is at most a quarter above that of training."""
    return swept.where(swept.cases["x_scale"] <= 1.25 * 0.5)


def midpoint(stage: str, *, id: str = "midpoint") -> Claim:
    """A path that never leaves one end would have the loss of that end."""
    return Claim(
        id,
        "the network halfway between two others differs from each by about half of what these differ",
        "mean difference of predictions, midpoint to either end / end to end",
        ours("premise"),
        lambda r: halfway_distances(r[stage]),
        Bound(0.3, 0.7),
    )


def as_predicted(references: Sequence[str], stage: str = "predicted", *, id: str = "references-as-predicted") -> Claim:
    """An algorithm whose code does not do what its formula says would lose something else."""
    return Claim(
        id,
        "the references lose what theory says of their step sizes",
        "loss of each reference / its expectation over teachers and queries, from spectra of the same contexts",
        ours("premise"),
        lambda r: np.concatenate([r[stage]["mse", key] / r[stage]["expected", key] for key in references]),
        two_sided(0.03),
        over="algorithms",
        at_least=len(references),
        about="algorithms",
    )
