"""A causal transformer from token numbers to the logits of the next token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mesascope.errors import ArgumentTypeError, refuse, require_count, require_instance
from mesascope.nets.causal_transformer import CausalTransformer, CausalTransformerConfig
from mesascope.nets.layers import initial_weights, module_text
from mesascope.nets.pretrained import Pretrained
from mesascope.records import register
from mesascope.shapes import Float, Tensor

__all__ = ["LanguageModel", "LanguageModelConfig"]


@register("net", "language-model", of="text")
@dataclass(frozen=True)
class LanguageModelConfig:
    """What a `LanguageModel` is built from.

    Args:
        transformer: layers between the embedding and the logits.
        vocabulary: number of tokens.
        context: the most tokens that it reads; each place has a learned vector.
    """

    transformer: CausalTransformerConfig
    vocabulary: int
    context: int

    def __post_init__(self) -> None:
        require_instance("transformer", self.transformer, CausalTransformerConfig)
        for name in ("vocabulary", "context"):
            require_count(name, getattr(self, name))

    def build(self, generator: torch.Generator | None = None) -> LanguageModel:
        """The network, its initial weights from ``generator``."""
        return LanguageModel(self, generator)


class LanguageModel(Pretrained):
    """Tokens 0, 1, ... ``(*batch, t)`` to the logits of what follows each, ``(*batch, t, vocabulary)``.

    Args:
        config: what it is built from.
        generator: of the initial weights; torch's global one if None.

    >>> from mesascope.nets import AttentionConfig
    >>> transformer = CausalTransformerConfig(AttentionConfig(width=8, n_heads=2), 2, "softmax", mlp=4, layer_norm=True)
    >>> LanguageModelConfig(transformer, vocabulary=50, context=16).build()(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 50])
    """

    def __init__(self, config: LanguageModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        require_instance("config", config, LanguageModelConfig)
        self.config, width = config, config.transformer.heads.width
        self.embedding = initial_weights((config.vocabulary, width), 1.0, generator)
        self.places = initial_weights((config.context, width), 1e-3, generator)
        self.transformer = CausalTransformer(config.transformer, generator)
        self.norm = nn.LayerNorm(width)
        self.logits = initial_weights((config.vocabulary, width), 1 / width, generator)

    def forward(self, tokens: Tensor) -> Float[Tensor, "*batch t vocabulary"]:
        if tokens.dtype != torch.long:
            raise ArgumentTypeError(f"tokens must be of dtype torch.int64, but are {tokens.dtype}: convert them.")
        if tokens.shape[-1] > self.config.context:
            refuse("tokens", f"be at most {self.config.context} long", tokens.shape[-1], "shorten the text")
        try:
            embedded = nn.functional.embedding(tokens, self.embedding)
        except IndexError:
            most = self.config.vocabulary - 1
            refuse(
                "tokens", f"be from 0 to {most}", [tokens.min().item(), tokens.max().item()], "use its own tokenizer"
            )
        return self.norm(self.transformer(embedded + self.places[: tokens.shape[-1]])) @ self.logits.mT

    def __repr__(self) -> str:
        return module_text(self)
