"""Reading an algorithm from weights: products, their scale, distance to a construction, and paths between networks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mesascope.constructions import with_products
from mesascope.errors import ArgumentError, NumericalError, require_number
from mesascope.lenses.access import require_network
from mesascope.nets import InContextRegressor, Products
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Learner

__all__ = ["StepSizes", "WeightReading", "interpolate", "rescaled_products", "step_sizes", "weights"]


class StepSizes(NamedTuple):
    """eta and gamma of each layer, ``(n_layers,)``, in the units of `GradientDescentPlusPlus`."""

    eta: Float[Tensor, " n_layers"]
    gamma: Float[Tensor, " n_layers"]


@dataclass(frozen=True)
class WeightReading:
    """One layer and head of a network, rescaled so that the mean diagonal of W_KQ over the inputs is 1.

    Args:
        w_kq, w_pv: the rescaled products ``(width, width)``.
        off_diagonal: largest |entry| of W_KQ off its diagonal, in units of that mean diagonal.
        diagonal_spread: largest distance of W_KQ's input diagonal from 1.
        distance_kq: |W_KQ - construction's|_F / |construction's|_F, nan without a construction.
        distance_pv: likewise for W_PV, over the rows that the prediction reads (the targets').
    """

    w_kq: Float[Tensor, "width width"]
    w_pv: Float[Tensor, "width width"]
    off_diagonal: float
    diagonal_spread: float
    distance_kq: float
    distance_pv: float


def weights(network: Learner, construction: Learner | None = None) -> list[list[WeightReading]]:
    """Read every layer and head of a network, beside those of a construction of its depth. Needs *network*.

    Source: ICML paper, appendices A.3 and A.4.
    """
    net = require_network("weights", network)
    layers = rescaled_products(net)
    others = rescaled_products(require_network("weights", construction)) if construction is not None else layers
    if len(layers) != len(others) or layers[0].w_kq.shape[-1] != others[0].w_kq.shape[-1]:
        raise ArgumentError(
            f"construction must have the network's depth and width, but they have {len(others)} layers of width "
            f"{others[0].w_kq.shape[-1]} and {len(layers)} of {layers[0].w_kq.shape[-1]}: build it for the same sizes."
        )
    readings = []
    for layer, other in zip(layers, others, strict=True):
        heads = range(layer.w_kq.shape[0])
        target = (other.w_kq[0], other.w_pv[0]) if construction is not None else None
        readings.append([_read(layer.w_kq[h], layer.w_pv[h], net.d_out, target) for h in heads])
    return readings


def rescaled_products(network: InContextRegressor) -> list[Products]:
    """W_KQ / beta and W_PV * beta of each layer, beta the mean of W_KQ's diagonal over the inputs: appendix A.3."""
    rescaled = []
    for index, (w_kq, w_pv) in enumerate(network.products()):
        inputs = w_kq.shape[-1] - network.d_out
        beta = w_kq.detach().diagonal(dim1=-2, dim2=-1)[:, :inputs].mean(-1)[:, None, None]
        if not bool((beta.abs() > 0).all()):
            raise NumericalError(
                f"the mean diagonal of W_KQ must not be 0 for products to be rescaled, but is in layer {index}: "
                "train the network first."
            )
        rescaled.append(Products(w_kq.detach() / beta, w_pv.detach() * beta))
    return rescaled


def step_sizes(network: Learner, n_context: int) -> StepSizes:
    """The GD++ step sizes that a network's weights spell on contexts of ``n_context`` pairs. Needs *network*.

    With products rescaled as in `rescaled_products` and summed over heads, gamma is minus the mean of W_PV's diagonal
    over the inputs and eta minus n_context times its mean over the targets, as the construction has them.

    Source: ICML paper, section 3 and appendix A.10.
    """
    net = require_network("step_sizes", network)
    diagonals = torch.stack([layer.w_pv.diagonal(dim1=-2, dim2=-1).sum(0) for layer in rescaled_products(net)])
    inputs, targets = diagonals[:, : -net.d_out], diagonals[:, -net.d_out :]
    return StepSizes(-n_context * targets.mean(1), -inputs.mean(1))


def interpolate(a: Learner, b: Learner, t: float = 0.5) -> InContextRegressor:
    """The network whose rescaled products are (1 - t) a's + t b's: linear mode connectivity. Needs *network*.

    Both networks are first rescaled, layer by layer, as in appendix A.3 of the ICML paper, which leaves what they
    compute as it is, be their layers looped or separate and their tokens clipped or not.
    """
    require_number("t", t)
    first, second = require_network("interpolate", a), require_network("interpolate", b)
    configs = [net.transformer.config for net in (first, second)]
    if not all(dataclasses.replace(config, token_clip=None).purely_linear for config in configs):
        raise ArgumentError(
            "interpolate must be given linear attention networks, but one has softmax, an MLP or LayerNorm: compare "
            "their predictions with alignment."
        )
    if configs[0].token_clip != configs[1].token_clip:
        raise ArgumentError(
            f"interpolate must be given networks of one token_clip, but they have {configs[0].token_clip} and "
            f"{configs[1].token_clip}: build the second with the first's, by with_products."
        )
    pairs = zip(rescaled_products(first), rescaled_products(second), strict=True)
    dtype = torch.promote_types(first.products()[0].w_kq.dtype, torch.float32)
    mixed = [
        Products(
            torch.lerp(pa.w_kq.to(dtype), pb.w_kq.to(dtype), t), torch.lerp(pa.w_pv.to(dtype), pb.w_pv.to(dtype), t)
        )
        for pa, pb in pairs
    ]
    return with_products(first, mixed)


def _read(w_kq: Tensor, w_pv: Tensor, d_out: int, target: tuple[Tensor, Tensor] | None) -> WeightReading:
    diagonal = w_kq.diagonal()[:-d_out]
    off = w_kq - torch.diag(w_kq.diagonal())
    distances = (float("nan"),) * 2
    if target is not None:
        kq, pv = target[0].to(w_kq), target[1].to(w_pv)
        rows = slice(-d_out, None)
        distances = (
            float((w_kq - kq).norm() / kq.norm()),
            float((w_pv[rows] - pv[rows]).norm() / pv[rows].norm()),
        )
    return WeightReading(w_kq, w_pv, float(off.abs().max()), float((diagonal - 1).abs().max()), *distances)
