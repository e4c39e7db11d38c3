"""Training plans, premises, and readings of paths between networks, for studies of all papers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mesascope import lenses
from mesascope.study import Arrays, Bound, Claim, Reading, Training, below, beside, ours, stage
from mesascope.text import percent_text


def plan(steps: int, learning_rate: float, **changes: Any) -> Training:
    """Training with about 50 evaluations at most.

    The learning rate decays and weights are averaged, which removes the noise of Adam.
    """
    usual: dict[str, Any] = {"decay_from": 0.3, "average": 4.0, "evaluate_every": max(steps // 50, 20)}
    return Training(steps, learning_rate=learning_rate, **(usual | changes))


# Training of networks on constructed tokens as in von Oswald (2024): constant learning rate, no averaging.
thesis_plan = partial(Training, batch=256, schedule="constant", optimizer="adamw", weight_decay=0.1, clip=1.0)


def watch_loss(**episodes: Any) -> Callable[[Any], dict[str, float]]:
    """Function that returns a network's loss on each of ``episodes`` by name, to log during training."""
    return lambda net: {name: float(lenses.per_task_errors(net, drawn).mean()) for name, drawn in episodes.items()}


def kept_weights(module: Any) -> Arrays:
    """All parameters of a network, by name, from which code without mesascope can compute its predictions."""
    weights = dict(module.named_parameters())
    return Arrays(weights, **{name: " ".join("abcd"[: weight.ndim]) for name, weight in weights.items()})


def drawn_with(**changes: Any) -> Callable[[Any], Any]:
    """Bug to plant in a method of a dataclass, such as a family's ``sample``: it reads these field values."""
    return lambda method: lambda self, *given: method(dataclasses.replace(self, **changes), *given)


def taking(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Bug to plant in a function: it takes ``change(value)`` in place of the keyword argument ``name``, if given."""

    def plant(correct: Any) -> Any:
        def wrong(*given: Any, **named: Any) -> Any:
            return correct(*given, **named | ({name: change(named[name])} if named.get(name) else {}))

        return wrong

    return plant


def returning(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Bug to plant in a function: it returns ``change(result)`` in place of its result."""
    return lambda correct: lambda *given, **named: change(correct(*given, **named))


@returning
def one_pair(drawn: Any) -> Any:
    """Bug in sequences of pairs: all pairs equal the first, so each query and its answer are in the context."""
    pairs = drawn.unflatten(1, (-1, 2))
    return pairs[:, :1].expand_as(pairs).flatten(1, 2)


def converged(
    *trainings: str,
    id: str = "converged",
    most: float = 0.01,
    at_least: int | None = None,
    quantity: str = "mse",
    log: bool = False,
    each: bool = True,
    start: float = np.inf,
    former: str = "",
) -> Claim:
    """Premise: the training of each network has converged; if not ``each``, that of the median network.

    ``log`` replaces the loss by its logarithm, for losses that fall by orders of magnitude. A logarithm that falls at a
    constant rate makes a fifth of its fall in the last fifth. Losses above ``start`` count as ``start``: the loss of
    initial weights can be far above that of predicting zero.
    """
    shares = [stage(one).map(partial(late_share, quantity=quantity, log=log, start=start), one) for one in trainings]
    because = "it is about the networks that were trained, and each curve is that of its network"
    return Claim(
        id, "training has converged: in the last fifth of the steps, the "
        f"{'logarithm of the ' if log else ''}loss of {'each' if each else 'the median'} network changes by less than "
        f"{percent_text(most)} of its total fall",
        beside(shares, f"|change in the last fifth| / |fall|{', of log loss' if log else ''}, each network"),
        below(most), ours("premise"), quantifier="exact" if each else "median", at_least=at_least, premises=(),
        exact_because=because if each else "", former=former,
    )  # fmt: skip


def late_share(curves: Any, quantity: str = "mse", *, log: bool = False, start: float = np.inf) -> np.ndarray:
    """|Change of the loss in the last fifth of the steps| / its total fall, by seed; 1 if the loss does not fall."""
    step, loss = curves["step"], np.minimum(curves[quantity], start)
    loss = np.log(loss) if log else loss
    before = np.flatnonzero(step <= 0.8 * step[-1])[-1]
    fall, late = loss[:, 0] - loss[:, -1], loss[:, before] - loss[:, -1]
    share = np.where(fall > 0, np.abs(late) / np.maximum(fall, 1e-30), 1.0)
    return np.where(np.isnan(fall + late), np.nan, share)


def midpoint(name: str, *, id: str = "midpoint") -> Claim:
    """Premise: the midpoint differs from both ends; otherwise its loss would be that of one end.

    Midpoints average the factors of a product. From P Q to (P + p)(Q + q), the product changes by p Q + P q + p q. The
    midpoint has half of the first two terms and a quarter of the last: it is 1/4 to 3/4 of the change from each end.
    """
    return Claim(
        id, "predictions of the network halfway between the two ends differ from those of each by 0.2 to 0.8 times the "
        "difference between the ends",
        midpoint_distances(name), Bound(0.2, 0.8), ours("premise"), about="algorithms",
        former="bound 0.3 to 0.7, failed in mesa-one-layer",
    )  # fmt: skip


def midpoint_losses(name: str) -> Reading:
    """Loss of each midpoint of `compare_midpoints` / loss of each end, ``(seeds, 2)``."""
    path = stage(name)
    return beside([path.ratio("middle", end) for end in ("trained", "other")], "loss at the midpoint / at either end")


def midpoint_distances(name: str) -> Reading:
    """Mean difference of predictions, midpoint to each end / end to end, ``(seeds, 2)``."""
    path, ends = stage(name), ("trained", "other")
    distances = [path["prediction-difference", "middle", end] / path["prediction-difference", *ends] for end in ends]
    return beside(distances, "mean difference of predictions, midpoint to either end / end to end")
