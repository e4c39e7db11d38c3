"""Linear attention with weights made of multiples of I: the algorithm RevAlg-d with learned coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mesascope.errors import refuse, require_instance
from mesascope.nets.checks import check_like
from mesascope.nets.layers import Products, initial_weights
from mesascope.nets.predictor import Channel
from mesascope.nets.pretrained import Pretrained
from mesascope.ops import causal_linear_attention
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import check_sequence
from mesascope.validate import Count, NonEmpty, Positive


@register("net", "block-multiples", of="predictor")
@dataclass(frozen=True)
class BlockMultiplesConfig:
    """Config of a `BlockMultiples`.

    Args:
        d: width of an element.
        channels: names in `Channel`; the first is ``"blank"``, and the prediction is minus this channel.
        n_layers: number of layers.
        n_heads: number of heads in each layer.
        token_clip: clip every entry of every token to [-token_clip, token_clip] after each layer.
        init_scale: variance of the initial coefficients.
    """

    d: Count
    channels: NonEmpty[Channel]
    n_layers: Count = 1
    n_heads: Count = 1
    token_clip: Positive | None = None
    init_scale: Positive = 1e-4

    def __post_init__(self) -> None:
        if self.channels[0] != "blank":
            refuse("channels", "be a tuple that begins with 'blank'", self.channels, "pass ('blank', 'now', 'before')")

    def build(self, generator: torch.Generator | None = None) -> BlockMultiples:
        return BlockMultiples(self, generator)


class BlockMultiples(Pretrained):
    """Linear attention on concatenated channels of width d; each d x d block of W_KQ and W_PV is a number times I.

    e_t <- e_t + sum_h sum_{i <= t} (e_i^T W_KQ e_t) W_PV e_i, with W_KQ = kron(kq, I) and W_PV = kron(pv, I) of each
    layer and head. `mesascope.lenses.reverse_engineer` reads such numbers from a network, and
    `BlockMultiples.read_from` builds a network from them.

    Args:
        kq: initial coefficients of W_KQ, by layer, head, key channel and query channel; random if None.
        pv: initial coefficients of W_PV, by layer, head, output channel and value channel. Coefficients of kq and pv
            that are 0 are not learned.

    Source: von Oswald (2024), sections 3.5.1 and 3.7.3 (RevAlg-d).

    >>> net = BlockMultiplesConfig(3, ("blank", "now", "before"), n_heads=2).build()
    >>> net(torch.ones(4, 5, 3)).shape, net.kept
    (torch.Size([4, 5, 3]), 36)
    """

    kq: nn.Parameter
    pv: nn.Parameter
    kq_kept: Tensor
    pv_kept: Tensor

    def __init__(
        self,
        config: BlockMultiplesConfig,
        generator: torch.Generator | None = None,
        kq: Float[Tensor, "layers heads channels channels"] | None = None,
        pv: Float[Tensor, "layers heads channels channels"] | None = None,
    ) -> None:
        super().__init__(config, BlockMultiplesConfig)
        channels = len(config.channels)
        shape = (config.n_layers, config.n_heads, channels, channels)
        for name, given in (("kq", kq), ("pv", pv)):
            if given is not None:
                require_instance(name, given, Tensor)
                if tuple(given.shape) != shape:
                    refuse(name, f"have shape {shape}", tuple(given.shape), "match layers, heads and channels")
            own = initial_weights(shape, config.init_scale, generator) if given is None else given.detach().clone()
            setattr(self, name, nn.Parameter(own))
            self.register_buffer(f"{name}_kept", own.detach() != 0)

    @classmethod
    def read_from(cls, read: object) -> BlockMultiples:
        """Network that starts from the coefficients of a `mesascope.lenses.ReverseEngineered`, for further training."""
        network, kq, pv = (getattr(read, name) for name in ("network", "kq", "pv"))
        if network.w0 is not None:
            refuse("read", "be of a network without w0", tuple(network.w0.shape), "build the network without it")
        own, body = network.config, network.config.transformer
        config = BlockMultiplesConfig(own.d, own.channels, len(kq), kq.shape[1], body.token_clip)
        return cls(config, None, kq, pv)

    @property
    def kept(self) -> int:
        """Number of coefficients that are learned."""
        return int(self.kq_kept.sum() + self.pv_kept.sum())

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Coefficients of W_KQ and of W_PV, 0 where they are not learned."""
        return self.kq * self.kq_kept, self.pv * self.pv_kept

    def products(self) -> list[Products]:
        """W_KQ and W_PV of each layer, each ``(heads, width, width)``."""
        identity = torch.eye(self.config.d).to(self.kq)
        layers = zip(*self.coefficients(), strict=True)
        return [Products(*(torch.kron(part, identity) for part in layer)) for layer in layers]

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        check_sequence(sequence)
        if sequence.shape[-1] != self.config.d:
            refuse("sequence", f"have width {self.config.d}", sequence.shape[-1], "build the net with this d")
        check_like("sequence", sequence, "the network", self.kq)
        before = torch.cat([torch.zeros_like(sequence[..., :1, :]), sequence[..., :-1, :]], -2)
        parts = {"blank": torch.zeros_like(sequence), "now": sequence, "before": before}
        tokens = torch.stack([parts[channel] for channel in self.config.channels], -2)
        for kq, pv in zip(*self.coefficients(), strict=True):
            tokens = tokens + self._moved(tokens, kq, pv)
            if self.config.token_clip is not None:
                tokens = tokens.clamp(-self.config.token_clip, self.config.token_clip)
        return -tokens[..., 0, :]

    def _moved(self, tokens: Float[Tensor, "*batch t channels d"], kq: Tensor, pv: Tensor) -> Tensor:
        """Additions of one layer to each token."""
        q, v = (torch.einsum(f"h{axes},...tcd->...htrd", part, tokens) for axes, part in (("rc", kq), ("rc", pv)))
        k = tokens.unsqueeze(-4).expand_as(q)
        moved = causal_linear_attention(*(part.flatten(-2) for part in (q, k, v)))
        return moved.sum(-3).unflatten(-1, tokens.shape[-2:])
