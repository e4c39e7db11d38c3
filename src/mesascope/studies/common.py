"""What studies of different papers share: how networks train, premises, and readings of paths between networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mesascope import lenses
from mesascope.study import Bound, Claim, Reading, Training, below, beside, ours, stage

__all__ = [
    "converged",
    "halfway_distances",
    "halfway_losses",
    "late_share",
    "midpoint",
    "plan",
    "values",
    "watch_loss",
]


def plan(steps: int, learning_rate: float, **changes: Any) -> Training:
    """Decay and averaging remove the noise that Adam leaves; some fifty evaluations, whatever the length."""
    usual: dict[str, Any] = {"decay_from": 0.3, "average": 4.0, "evaluate_every": max(steps // 50, 20)}
    return Training(steps, learning_rate=learning_rate, **(usual | changes))


def watch_loss(**episodes: Any) -> Callable[[Any], dict[str, float]]:
    """What to log while training where no reference is near: the loss on each of ``episodes``, by its name."""

    def look(net: Any) -> dict[str, float]:
        return {name: float(lenses.per_task_errors(net, drawn).mean()) for name, drawn in episodes.items()}

    return look


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
        f"training has converged: its last fifth changes the {'logarithm of the ' if log else ''}loss by less "
        f"than {most:.0%} of the fall over the whole training",
        lambda r: np.stack([late_share(r[training], quantity, log=log) for training in trainings], axis=1),
        below(most),
        ours("premise"),
        measures=f"mean over seeds of |change in the last fifth| / |fall|{', of log loss' if log else ''}",
        quantifier="mean",
        at_least=at_least,
    )


def late_share(curves: Any, quantity: str = "mse", *, log: bool = False) -> np.ndarray:
    """Of the fall of each seed's loss, the share made in the last fifth of the steps; 1 where nothing falls."""
    step, loss = curves["step"], np.log(curves[quantity]) if log else curves[quantity]
    before = np.flatnonzero(step <= 0.8 * step[-1])[-1]
    fall, late = loss[:, 0] - loss[:, -1], loss[:, before] - loss[:, -1]
    return np.where(fall > 0, np.abs(late) / np.maximum(fall, 1e-30), 1.0)


def midpoint(name: str, *, id: str = "midpoint") -> Claim:
    """A path that never leaves one end would have the loss of that end.

    What two factors compute is, halfway, a quarter to three quarters from either end: their difference from P Q is
    p Q + P q + p q, of which halfway half of the first two and a quarter of the last is there.
    """
    return Claim(
        id,
        "the network halfway between two others differs from each by about half of what these differ",
        halfway_distances(name),
        Bound(0.2, 0.8),
        ours("premise"),
        about="algorithms",
    )


def halfway_losses(name: str) -> Reading:
    """Loss of each midpoint of a `halfway` over that of either end, ``(seeds, 2)``."""
    path = stage(name)
    return beside([path.ratio("middle", end) for end in ("trained", "other")], "loss at the midpoint / at either end")


def halfway_distances(name: str) -> Reading:
    """Mean difference of predictions of each midpoint to either end, over that of the ends, ``(seeds, 2)``."""
    path, ends = stage(name), ("trained", "other")
    distances = [path["prediction-difference", "middle", end] / path["prediction-difference", *ends] for end in ends]
    return beside(distances, "mean difference of predictions, midpoint to either end / end to end")


def values(numbers: Any) -> np.ndarray:
    """Numbers with errors, without them."""
    return np.vectorize(lambda number: getattr(number, "nominal_value", number), otypes=[float])(numbers)
