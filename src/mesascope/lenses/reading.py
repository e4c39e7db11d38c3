"""Algorithms read from weights: rescaled products, step sizes, distance to a construction, interpolation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from mesascope.errors import ArgumentError, NumericalError, require_count, require_number
from mesascope.evidence.tables import Table, Tabular
from mesascope.lenses.needs import HasProducts, require_access
from mesascope.nets import Products
from mesascope.records import register
from mesascope.shapes import Float, Tensor


class StepSizes(NamedTuple):
    """eta and gamma of each layer, ``(n_layers,)``, in the units of `GradientDescentPlusPlus`."""

    eta: Float[Tensor, " n_layers"]
    gamma: Float[Tensor, " n_layers"]

    def table(self) -> Table:
        """One row for each layer."""
        pairs = zip(self.eta.tolist(), self.gamma.tolist(), strict=True)
        return Table({"layer": layer, "eta": eta, "gamma": gamma} for layer, (eta, gamma) in enumerate(pairs))

    to_dict, to_pandas, _repr_html_ = Tabular.to_dict, Tabular.to_pandas, Tabular._repr_html_


@dataclass(frozen=True, repr=False)
class WeightReading(Tabular):
    """Weights of one layer and head, rescaled so that the mean of W_KQ's diagonal over the inputs is 1.

    Args:
        w_kq, w_pv: the rescaled products ``(width, width)``.
        off_diagonal: largest |entry| of W_KQ off its diagonal, after rescaling.
        diagonal_spread: largest |entry - 1| on W_KQ's diagonal over the inputs.
        distance_kq: relative distance |W_KQ - C|_F / |C|_F from the construction's W_KQ = C; nan without a
            construction.
        distance_pv: the same for the target rows of W_PV, which determine the prediction.
    """

    w_kq: Float[Tensor, "width width"]
    w_pv: Float[Tensor, "width width"]
    off_diagonal: float
    diagonal_spread: float
    distance_kq: float
    distance_pv: float

    def table(self) -> Table:
        """One row with all numbers; the matrices are left out."""
        names = ("off_diagonal", "diagonal_spread", "distance_kq", "distance_pv")
        return Table([{name: getattr(self, name) for name in names}])


@register("lens", "weights", needs="products")
def weights(network: HasProducts, construction: HasProducts | None = None) -> list[list[WeightReading]]:
    """Read every layer and head of a network, and compare them with a construction of equal depth. Needs *products*.

    Each head is compared with the construction's head of the same index, or with the construction's first head if the
    numbers of heads differ.

    Source: von Oswald et al. (2023), appendices A.3 and A.4.
    """
    layers = rescaled_products(require_access("weights", network))
    others = layers if construction is None else rescaled_products(require_access("weights", construction))
    if len(layers) != len(others) or layers[0].w_kq.shape[-1] != others[0].w_kq.shape[-1]:
        raise ArgumentError(
            f"construction must have the network's depth and width, {len(layers)} and {layers[0].w_kq.shape[-1]}, but "
            f"has {len(others)} and {others[0].w_kq.shape[-1]}: build it for the same sizes."
        )
    readings = []
    for layer, other in zip(layers, others, strict=True):
        heads = list(zip(*layer, strict=True))
        targets = [None] if construction is None else list(zip(*other, strict=True))
        targets = targets if len(targets) == len(heads) else targets[:1] * len(heads)
        pairs = zip(heads, targets, strict=True)
        readings.append([_read(*own, network.d_out, target) for own, target in pairs])
    return readings


@register("lens", "rescaled_products", needs="products")
def rescaled_products(network: HasProducts) -> list[Products]:
    """W_KQ / beta and W_PV * beta of each head; beta is the mean of W_KQ's diagonal over the inputs. Needs *products*.

    Raises a NumericalError if beta is 0. Source: von Oswald et al. (2023), appendix A.3.
    """
    require_access("rescaled_products", network)
    rescaled = []
    for index, (w_kq, w_pv) in enumerate(network.products()):
        inputs = w_kq.shape[-1] - network.d_out
        beta = w_kq.detach().diagonal(dim1=-2, dim2=-1)[:, :inputs].mean(-1)[:, None, None]
        if not bool((beta.abs() > 0).all()):
            raise NumericalError(
                f"the mean diagonal of W_KQ must not be 0 for products to be rescaled, but is 0 in layer {index}: "
                "train the network first."
            )
        rescaled.append(Products(w_kq.detach() / beta, w_pv.detach() * beta))
    return rescaled


@register("lens", "step_sizes", needs="products")
def step_sizes(network: HasProducts, n_context: int) -> StepSizes:
    """GD++ step sizes read from a network's weights, for contexts of ``n_context`` pairs. Needs *products*.

    Products are rescaled by `rescaled_products`, as in the construction, and summed over heads. Then gamma is minus the
    mean of W_PV's diagonal over the inputs, and eta is minus n_context times the diagonal's mean over the targets; both
    are multiplied by the network's damping. Raises an ArgumentError if the network is not ``linear``.

    Source: von Oswald et al. (2023), section 3 and appendix A.10.
    """
    require_access("step_sizes", network)
    n_context = require_count("n_context", n_context)
    _require_linear("step_sizes", network)
    diagonals = torch.stack([layer.w_pv.diagonal(dim1=-2, dim2=-1).sum(0) for layer in rescaled_products(network)])
    inputs, targets = diagonals[:, : -network.d_out], diagonals[:, -network.d_out :]
    damping = getattr(network, "damping", 1.0)
    return StepSizes(-n_context * damping * targets.mean(1), -damping * inputs.mean(1))


@register("lens", "interpolate", needs="products")
def interpolate(a: HasProducts, b: HasProducts, t: float = 0.5) -> Any:
    """Network with rescaled products (1 - t) P_a + t P_b, for linear mode connectivity. Needs *products*.

    Rescaling does not change a linear network's function, even with looped layers and clipped tokens. The result is
    ``a.with_products`` of the interpolated products. Raises an ArgumentError if a network is not ``linear``, or if the
    networks differ in size, token_clip, damping or w0.

    Source: von Oswald et al. (2023), appendix A.3.
    """
    t = require_number("t", t)
    for network in (a, b):
        require_access("interpolate", network)
    _require_linear("interpolate", a, b)
    for name, plain in (("token_clip", None), ("damping", 1.0), ("w0", None)):
        own = [getattr(network, name, plain) for network in (a, b)]
        one, other = (each.tolist() if isinstance(each, Tensor) else each for each in own)
        if one != other:
            raise ArgumentError(
                f"interpolate must be given networks of one {name}, but they have {one} and {other}: build the second "
                "as with_products of the first."
            )
    sizes = [[tuple(layer.w_kq.shape) for layer in network.products()] for network in (a, b)]
    if sizes[0] != sizes[1]:
        raise ArgumentError(
            "interpolate must be given networks of one depth, width and number of heads, but their W_KQ have shapes "
            f"{sizes[0]} and {sizes[1]}: build the second with the first's sizes."
        )
    pairs = zip(rescaled_products(a), rescaled_products(b), strict=True)
    dtype = torch.promote_types(a.products()[0].w_kq.dtype, torch.float32)
    parts = [zip(one, other, strict=True) for one, other in pairs]
    return a.with_products([Products(*(torch.lerp(x.to(dtype), y.to(dtype), t) for x, y in part)) for part in parts])


def _require_linear(caller: str, *networks: HasProducts) -> None:
    if not all(network.linear for network in networks):
        raise ArgumentError(
            f"{caller} must be given linear attention networks, but one has softmax, an MLP or LayerNorm: compare "
            "predictions with alignment."
        )


def _read(w_kq: Tensor, w_pv: Tensor, d_out: int, target: tuple[Tensor, Tensor] | None) -> WeightReading:
    diagonal = w_kq.diagonal()[:-d_out]
    off = w_kq - torch.diag(w_kq.diagonal())
    distances = (float("nan"),) * 2
    if target is not None:
        parts = [(w_kq, target[0].to(w_kq)), (w_pv[-d_out:], target[1].to(w_pv)[-d_out:])]
        distances = tuple(float((own - other).norm() / other.norm()) for own, other in parts)
    return WeightReading(w_kq, w_pv, float(off.abs().max()), float((diagonal - 1).abs().max()), *distances)
