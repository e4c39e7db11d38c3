"""Products of weights of a network's layers, as studies keep and show them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.evidence import Arrays
from mesascope.reports import Figure, Matrices

__all__ = ["kept_products", "weights_figure"]


def kept_products(network: Any, *layers: int) -> Arrays:
    """W_KQ and W_PV of these layers, ``(layers, heads, width, width)``."""
    products = [network.products()[layer] for layer in layers]
    arrays = {
        name: np.stack([getattr(one, name).detach().cpu().numpy() for one in products]) for name in ("w_kq", "w_pv")
    }
    return Arrays(
        {"layer": np.array(layers), **arrays}, layer="layer", **dict.fromkeys(arrays, "layer head row column")
    )


def weights_figure(caption: str, rows: int, size: tuple[float, float], claims: tuple[str, ...] = ()) -> Figure:
    """The products of stage ``weights``, each over its largest entry, a row a layer and product."""

    def read(r: Any) -> dict[str, np.ndarray]:
        found, named = r["weights"], {}
        for place, layer in enumerate(found["layer"]):
            for key, label in (("w_kq", "W_KQ"), ("w_pv", "W_PV")):
                for head, matrix in enumerate(found[key][place]):
                    title = f"{label}, head {head + 1}" + (f", layer {layer + 1}" if len(found["layer"]) > 1 else "")
                    named[title] = matrix / max(np.abs(matrix).max(), 1e-12)
        return named

    return Figure("weights", caption, Matrices(read, 1.0, rows), size=size, claims=claims)
