"""Prompt tuning: a frozen predictor with learned elements before and between pairs."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from mesascope.errors import refuse, require_instance
from mesascope.nets.predictor import SequencePredictor, SequencePredictorConfig
from mesascope.nets.pretrained import Pretrained
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import check_sequence
from mesascope.validate import Whole


@register("net", "prompted", of="predictor")
@dataclass(frozen=True)
class PromptedConfig:
    """Config of a `Prompted`.

    Args:
        network: the predictor.
        prefix: number of learned elements before a sequence.
        eos: insert the same learned element between all pairs.
    """

    network: SequencePredictorConfig
    prefix: Whole = 0
    eos: bool = False

    def build(self, generator: torch.Generator | None = None) -> Prompted:
        return Prompted(self, generator)


class Prompted(Pretrained):
    """A frozen predictor with a learned prompt: it reads prefix, x_1, y_1, EOS, x_2, y_2, EOS, ...

    Only the prompt (prefix and EOS, initially N(0, I)) is learned. Predictions at the prompt are left out.

    Args:
        generator: generator of the prompt, and of the weights of a new network.
        network: network to prompt, which is copied; a new one if None.

    Source: von Oswald (2024), section 3.5.2.

    >>> from mesascope.nets import AttentionConfig, CausalTransformerConfig
    >>> network = SequencePredictorConfig(CausalTransformerConfig(AttentionConfig(width=8)), d=3)
    >>> prompted = PromptedConfig(network, prefix=2, eos=True).build()
    >>> prompted(torch.ones(4, 6, 3)).shape, [name for name, w in prompted.named_parameters() if w.requires_grad]
    (torch.Size([4, 6, 3]), ['prefix', 'eos'])
    """

    def __init__(
        self, config: PromptedConfig, generator: torch.Generator | None = None, network: SequencePredictor | None = None
    ) -> None:
        super().__init__(config, PromptedConfig)
        if network is not None:
            require_instance("network", network, SequencePredictor)
            if network.config != config.network:
                refuse("network", "be built from config.network", type(network).__name__, "pass its own config")
        d = config.network.d
        self.network = (config.network.build(generator) if network is None else copy.deepcopy(network)).eval()
        self.network.requires_grad_(False)
        like = next(self.network.parameters())

        def drawn(*shape: int) -> nn.Parameter:
            device = "cpu" if generator is None else generator.device
            return nn.Parameter(torch.randn(shape, generator=generator, device=device).to(like))

        self.prefix = drawn(config.prefix, d) if config.prefix else None
        self.eos = drawn(d) if config.eos else None

    @classmethod
    def on(
        cls,
        network: SequencePredictor | Prompted,
        *,
        eos: bool = False,
        prefix: int = 0,
        generator: torch.Generator | None = None,
    ) -> Prompted:
        """Prompt a network. An existing prompt is frozen, and new elements are added to it; see `PromptedConfig`."""
        bare = network.network if isinstance(network, Prompted) else network
        require_instance("network", bare, SequencePredictor)
        kept = {name: getattr(network, name, None) for name in ("eos", "prefix")}
        for name, wanted in (("eos", eos), ("prefix", prefix)):
            if wanted and kept[name] is not None:
                refuse(name, "be left out, as the network has one", wanted, "prompt the original network")
        length = prefix or (0 if kept["prefix"] is None else len(kept["prefix"]))
        prompted = cls(PromptedConfig(bare.config, length, eos or kept["eos"] is not None), generator, bare)
        for name, found in kept.items():
            if found is not None:
                getattr(prompted, name).requires_grad_(False).data.copy_(found)
        return prompted

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        check_sequence(sequence)
        shown, places = self.shown(sequence)
        return self.network(shown)[..., places, :]

    def shown(self, sequence: Float[Tensor, "*batch t d"]) -> tuple[Float[Tensor, "*batch shown d"], Tensor]:
        """The network's input, and the positions of the sequence's elements in it."""
        *batch, t, d = sequence.shape
        if d != self.config.network.d:
            refuse("sequence", f"have width {self.config.network.d}", d, "build the network with this d")
        places, parts = torch.arange(t, device=sequence.device), [sequence]
        if self.eos is not None and t:
            pairs = torch.nn.functional.pad(sequence, (0, 0, 0, t % 2)).unflatten(-2, (-1, 2))
            eos = self.eos.to(sequence).expand(*batch, pairs.shape[-3], 1, d)
            own = places + places // 2
            parts, places = [torch.cat([pairs, eos], -2).flatten(-3, -2)[..., : t + (t - 1) // 2, :]], own
        if self.prefix is not None:
            parts, places = [self.prefix.to(sequence).expand(*batch, -1, d), *parts], places + len(self.prefix)
        return torch.cat(parts, -2), places
