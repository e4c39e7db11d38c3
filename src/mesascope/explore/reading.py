"""Spectral filter, weights and attention of a learner, for the panel Inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mesascope import constructions, lenses
from mesascope.errors import MesascopeError
from mesascope.explore.plots import WIDTH
from mesascope.identification import smoother_weights, spectral_filter
from mesascope.lenses.needs import HasProducts
from mesascope.nets import HookedModule
from mesascope.tasks import Episode


def spectral(learner: Any, tasks: Episode) -> dict[str, Any]:
    """Spectral filter of a learner by eigenvalue, with intervals; empty if the learner fails."""
    weights = smoother_weights(learner, tasks)
    rows = [] if weights is None else spectral_filter(weights.double(), tasks)[0]
    y = [row["filter"] for row in rows]
    return {
        "x": [row["eigenvalue"] for row in rows], "y": [one.value for one in y],
        "low": [one.value - WIDTH * one.stderr for one in y], "high": [one.value + WIDTH * one.stderr for one in y],
    }  # fmt: skip


def built(d_in: int, values: dict[str, float], has_gamma: bool, pairs: int) -> Any:
    """Constructed network that runs the algorithm."""
    steps, pairs = int(values["depth"]), max(pairs, 1)
    if has_gamma:
        return constructions.gradient_descent_plus_plus(d_in, 1, values["eta"], values["gamma"], pairs, steps).network
    return constructions.gradient_descent(d_in, 1, values["eta"], pairs, steps).network


def products(network: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """W_KQ and W_PV of the first layer, heads side by side; None if the network has no such products."""
    if not isinstance(network, HasProducts):
        return None
    try:
        first = (lenses.rescaled_products(network) if network.linear else network.products())[0]
    except MesascopeError:
        first = network.products()[0]
    kq, pv = (np.concatenate([*one.detach().double().numpy()], axis=1) for one in (first.w_kq, first.w_pv))
    return kq, pv


def attention(network: Any, task: Episode) -> np.ndarray | None:
    """Attention to the pairs in the first softmax layer, heads side by side; None if there is no such layer."""
    kinds = getattr(getattr(getattr(network, "config", None), "transformer", None), "attentions", ())
    if not isinstance(network, HookedModule) or "softmax" not in kinds:
        return None
    points = f"*layers.{kinds.index('softmax')}.attention.pattern"
    dtype = next(network.parameters()).dtype
    own = task.to(dtype)
    with torch.no_grad():
        _, kept = network.run_with_cache(own.context, own.xq, names=points)
    (pattern,) = kept.values()
    return np.concatenate([*pattern[0].double().numpy()], axis=1)
