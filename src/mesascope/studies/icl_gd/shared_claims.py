"""Claims that several studies of linear regression share: premises, mostly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mesascope.study import Claim, Reading, StageReading, above, below, ours, stage, two_sided

__all__ = [
    "as_predicted",
    "derivatives",
    "gap_left",
    "near_training",
    "no_better_descent",
    "peak_difference",
]


def no_better_descent(
    name: str, reference: str, what: str, *, id: str, tolerance: float = 0.02, quantity: str = "mse"
) -> Claim:
    """A reference at a poor local optimum would flatter every network; the networks' own step sizes are a witness.

    ``quantity="median"`` is for deep descents, whose means rest on the few tasks where they explode.
    """
    return Claim(
        id,
        f"no network's own step sizes, read from its weights, make better {what} than the tuned ones",
        stage(name).ratio("own", reference, quantity),
        above(1 - tolerance),
        ours("premise"),
        about="algorithms",
    )


def derivatives(name: str, *, id: str = "derivatives") -> Claim:
    """Sensitivities taken at another query, or of another task, would not predict how predictions change."""
    return Claim(
        id,
        "sensitivities are the derivatives of the predictions at the same queries",
        stage(name)["derivative-error", "trained"] / stage(name)["derivative", "trained"],
        below(0.05),
        ours("premise"),
        about="algorithms",
    )


def peak_difference(name: str) -> Reading:
    """Each seed's cosine to gradient descent less that to GD++, at the step where the former is largest."""

    def at_peak(curves: Any) -> np.ndarray:
        to_gd, to_plus = curves["gd cosine"], curves["gd++ cosine"]
        return np.take_along_axis(to_gd - to_plus, to_gd.argmax(axis=1)[:, None], axis=1)[:, 0]

    return stage(name).map(at_peak, "cosine to gradient descent - cosine to GD++, where the former peaks")


def gap_left(r: Any, one: str, two: str) -> np.ndarray:
    """Of one contrast's loss beyond gradient descent's, what another leaves; each of its seeds with each one's."""
    beyond = {name: r[f"{name}-comparison"].ratio("trained", "gd") - 1 for name in (one, two)}
    return np.true_divide.outer(beyond[two], beyond[one])


def near_training(name: str) -> StageReading:
    """The part of a sweep over input scales that is at most a quarter above that of training."""
    return stage(name).where(lambda cases: cases["x_scale"] <= 1.25 * 0.5, "scales up to 1.25 times that of training")


def as_predicted(references: Sequence[str], stage: str = "predicted", *, id: str = "references-as-predicted") -> Claim:
    """An algorithm whose code does not do what its formula says would lose something else."""
    return Claim(
        id,
        "the references lose what theory says of their step sizes",
        lambda r: np.concatenate([r[stage]["mse", key] / r[stage]["expected", key] for key in references]),
        two_sided(0.03),
        ours("premise"),
        measures="loss of each reference / its expectation over teachers and queries, from spectra of the same contexts",
        over="algorithms",
        at_least=len(references),
        about="algorithms",
    )
