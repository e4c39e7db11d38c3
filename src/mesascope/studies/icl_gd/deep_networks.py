"""Part of the study of deep networks: networks put together from weight products, and their losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mesascope import constructions, lenses
from mesascope.study import Arrays, Estimates

__all__ = ["CLIP", "SEPARATE", "added", "as_network", "left_out", "paths", "quantiles"]

D, CLIP = 10, 10.0
SEPARATE = 5
PATH = (0.0, 0.25, 0.5, 0.75, 1.0)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def added(net: Any, other: Any) -> Any:
    """The network whose products are sums of both's."""
    both = zip(net.products(), other.products(), strict=True)
    return net.with_products([type(a)(a.w_kq + b.w_kq, a.w_pv + b.w_pv) for a, b in both])


def left_out(nets: Sequence[Any], episodes: Any) -> Estimates:
    """Networks, and the same without one layer: ``without 1`` and so on."""
    groups = {f"without {k + 1}": [_without(net, k) for net in nets] for k in range(SEPARATE)}
    return lenses.measure_together({"trained": nets} | groups, [], episodes)


def _without(net: Any, layer: int) -> Any:
    """The network with a layer that leaves tokens as they are."""
    products = list(net.products())
    products[layer] = type(products[layer])(products[layer].w_kq, 0 * products[layer].w_pv)
    return net.with_products(products)


def as_network(net: Any, algorithm: Any) -> Any:
    """The construction of ``algorithm`` in an architecture like ``net``'s, clip included."""
    eta, gamma = algorithm.eta.tolist(), algorithm.gamma.tolist()
    built = constructions.gradient_descent_plus_plus(D, 1, eta, gamma, D, algorithm.steps).network
    like = net.products()[0].w_kq
    return net.with_products([type(layer)(*(part.to(like) for part in layer)) for layer in built.products()])


def _errors(learner: Any, fresh: Any) -> np.ndarray:
    return lenses.per_task_errors(learner, fresh).double().cpu().numpy()


def paths(nets: Sequence[Any], goals: Mapping[str, Sequence[Any]], fresh: Any) -> Estimates:
    """Losses on the straight way from each network to each goal."""

    def losses(others: Sequence[Any], t: float) -> list[np.ndarray]:
        return [_errors(lenses.interpolate(net, other, t), fresh) for net, other in zip(nets, others, strict=True)]

    points = [Estimates.of({("mse", name): losses(others, t) for name, others in goals.items()}) for t in PATH]
    return Estimates.over({"t": PATH}, points)


def quantiles(groups: Mapping[str, Sequence[Any]], fresh: Any) -> Arrays:
    """Quantiles of the squared error over tasks, for each learner of a group."""
    found = {name: [np.quantile(_errors(one, fresh), QUANTILES) for one in members] for name, members in groups.items()}
    axes = {name: f"{'seed' if name == 'trained' else 'reference'} quantile" for name in found}
    return Arrays({"quantile": QUANTILES, **found}, quantile="quantile", **axes)
