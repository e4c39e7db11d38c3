"""Algorithm of a linear transformer on constructed tokens, read from the blocks of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import ArgumentError, refuse, require_count, require_number
from mesascope.evidence.tables import Table, Tabular
from mesascope.learners import PairSums
from mesascope.lenses.needs import HasChannels, require_access
from mesascope.nets import Products
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.text import counted


@dataclass(frozen=True, repr=False)
class ReverseEngineered(Tabular):
    """Approximation of linear layers: each d x d block of W_KQ and W_PV is one number times I.

    Tokens consist of channels of width d, such as the current element and the one before.

    Args:
        kq: the numbers of W_KQ, for each layer, head, key channel and query channel.
        pv: the numbers of W_PV, for each layer, head, output channel and value channel.
        network: the original network.
        algorithm: the network whose blocks are exactly these multiples of I (RevAlg-d in von Oswald, 2024).
    """

    kq: Float[Tensor, "layers heads channels channels"]
    pv: Float[Tensor, "layers heads channels channels"]
    network: Any
    algorithm: Any

    @property
    def kept(self) -> int:
        """Number of parameters of the algorithm."""
        return int((self.kq != 0).sum() + (self.pv != 0).sum())

    @property
    def share_kept(self) -> float:
        """Number of parameters of the algorithm, as a share of the network's."""
        return self.kept / sum(weight.numel() for weight in self.network.parameters())

    def pair_sums(self) -> PairSums:
        """Return an algorithm of one layer on channels (blank, now, before) as `PairSums`, eq. 3.55; else raise."""
        channels, clip = self.network.config.channels, self.network.config.transformer.token_clip
        if has := [name for name, one in (("w0", self.network.w0), ("token_clip", clip)) if one is not None]:
            refuse("the network of pair_sums", "have neither w0 nor token_clip", has[0], "use the attribute algorithm")
        if len(self.kq) != 1 or channels != ("blank", "now", "before"):
            raise ArgumentError(
                f"pair_sums must be called for one layer on (blank, now, before), but is called for "
                f"{counted(len(self.kq), 'layer')} on {channels}: use the attribute algorithm."
            )
        kq, pv = self.kq[0, :, 1:, 1:], self.pv[0, :, 0, 1:]  # the blank channel is still zero
        sums = -torch.einsum("hv,hkq->qkv", pv, kq)  # (query, key, value); predictions are minus the first channel
        now, before = (query.flatten().tolist() for query in sums)
        return PairSums(now, before)

    def between(self, t: float) -> Any:
        """Network with products (1 - t) P + t A, with P the network's products and A the algorithm's."""
        t = require_number("t", t)
        ends = zip(self.network.products(), self.algorithm.products(), strict=True)
        return self.network.with_products(
            [Products(*(torch.lerp(one, two, t) for one, two in zip(own, other, strict=True))) for own, other in ends]
        )

    def table(self) -> Table:
        """One row for each nonzero block."""
        names = self.network.config.channels
        numbered = [f"{name} {place}" if names.count(name) > 1 else name for place, name in enumerate(names)]
        rows = []
        for product, blocks in (("W_KQ", self.kq), ("W_PV", self.pv)):
            for layer, head, row, column in blocks.nonzero().tolist():
                value = blocks[layer, head, row, column].item()
                at = {"row": numbered[row], "column": numbered[column]}
                rows.append({"product": product, "layer": layer, "head": head, **at, "value": value})
        return Table(rows)


@register("lens", "reverse_engineer", needs="channels", of="predictor")
def reverse_engineer(network: HasChannels, keep: int | None = None) -> ReverseEngineered:
    """Replace every d x d block of each head's W_KQ and W_PV by the mean of its diagonal times I. Needs *channels*.

    Args:
        network: a `SequencePredictor` with linear attention on tokens of channels, without MLP, norm, convolution,
            gates or features.
        keep: number of blocks to keep in each layer and head, with the largest |number| / mean |number| of their
            matrix; all if None. von Oswald (2024) keeps 6 for one layer on three channels, and 16 on four.

    Source: von Oswald (2024), section 3.7.3.1, eqs. 3.53 and 3.54.
    """
    require_access("reverse_engineer", network)
    d, channels = network.config.d, len(network.config.channels or ())
    if keep is not None:
        keep = require_count("keep", keep)
        if keep > 2 * channels**2:
            refuse("keep", f"be at most {2 * channels**2}, the blocks of a head", keep, "leave it out to keep all")
    products = network.products()
    kq, pv = (torch.stack([_block_means(own[index].detach(), d, channels) for own in products]) for index in range(2))
    if keep is not None:
        kq, pv = _largest(kq, pv, keep)
    identity = torch.eye(d).to(kq)
    whole = [Products(*(torch.kron(part, identity) for part in layer)) for layer in zip(kq, pv, strict=True)]
    return ReverseEngineered(kq, pv, network, network.with_products(whole))


def _block_means(product: Float[Tensor, "heads width width"], d: int, channels: int) -> Tensor:
    """Means of the diagonals of the blocks, ``(heads, channels, channels)``."""
    blocks = product.unflatten(2, (channels, d)).unflatten(1, (channels, d))
    return blocks.diagonal(dim1=2, dim2=4).mean(-1)


def _largest(kq: Tensor, pv: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """The ``keep`` largest blocks of each layer and head, relative to their matrix's mean size; other blocks are 0."""
    sizes = torch.cat([(part / part.abs().mean((-2, -1), keepdim=True)).abs().flatten(2) for part in (kq, pv)], -1)
    chosen = torch.zeros_like(sizes, dtype=torch.bool).scatter_(-1, sizes.topk(keep, -1).indices, True)
    first, second = (part.view(kq.shape) for part in chosen.chunk(2, -1))
    return kq * first, pv * second
