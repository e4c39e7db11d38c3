"""A causal transformer from token ids to the logits of the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mesascope.errors import ArgumentTypeError, refuse, require_instance
from mesascope.nets.causal import CausalNet, given, positions_of, zero_padding
from mesascope.nets.causal_transformer import CausalTransformer, CausalTransformerConfig
from mesascope.nets.checks import check_mask
from mesascope.nets.layers import initial_weights, linear
from mesascope.nets.points import HookedModule
from mesascope.nets.pretrained import Pretrained
from mesascope.nets.states import AttentionState
from mesascope.ops.reading import read, values_are_read
from mesascope.records import register
from mesascope.shapes import Float, Int, Tensor
from mesascope.validate import Count

# Largest number of logits that a loss computes at once.
_LOGITS = 1 << 25


@register("net", "language-model", of="text")
@dataclass(frozen=True)
class LanguageModelConfig:
    """Config of a `LanguageModel`.

    Args:
        transformer: layers between the embedding and the logits.
        vocabulary: number of tokens.
        context: number of tokens read in training; with learned places, also the maximum length of a text.
        places: ``"learned"`` adds a vector for each position in the context. With ``"none"``, texts may have any
            length, and only layers can encode positions.
        tied: compute logits with the embedding's weights, rather than with separate ones.
        dropout: dropout probability of the embedding's entries.
    """

    transformer: CausalTransformerConfig
    vocabulary: Count
    context: Count
    places: Literal["learned", "none"] = "learned"
    tied: bool = False
    dropout: Annotated[float, msgspec.Meta(ge=0, le=0.99)] = 0.0

    def build(self, generator: torch.Generator | None = None) -> LanguageModel:
        return LanguageModel(self, generator)


class LanguageModel(HookedModule, CausalNet, Pretrained):
    """A language model from token ids ``(*batch, t)`` to logits of the next tokens, ``(*batch, t, vocabulary)``.

    `init_state` and `step` decode token by token with the same results, and `advance` processes a part of a text.

    >>> from mesascope.nets import AttentionConfig
    >>> transformer = CausalTransformerConfig(AttentionConfig(width=8, n_heads=2), 2, "softmax", mlp=4, layer_norm=True)
    >>> model = LanguageModelConfig(transformer, vocabulary=50, context=16).build()
    >>> model(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 50])
    >>> logits, state = model.step(torch.tensor([3]), model.init_state(1))
    """

    element_axes = ()

    def __init__(self, config: LanguageModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, LanguageModelConfig)
        width = config.transformer.width
        scale = 1 / width if config.tied else 1.0
        weight = initial_weights((config.vocabulary, width), scale, generator)
        self.embedding = nn.Embedding(config.vocabulary, width, _weight=weight.data)
        learned = config.places == "learned"
        self.places = initial_weights((config.context, width), 1e-3, generator) if learned else None
        self.transformer = CausalTransformer(config.transformer, generator)
        self.norm = nn.LayerNorm(width)
        self.logits = None if config.tied else linear(initial_weights((config.vocabulary, width), 1 / width, generator))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "*batch t"],
        state: Sequence[AttentionState] | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
        targets: Int[Tensor, "*batch t"] | None = None,
    ) -> Any:
        """Logits of the next token after each token, and with a state also the state after them: see `advance`.

        With ``targets``, the ids of the next tokens, returns cross-entropies in nats, ``(*batch, t)``, instead of
        logits; a target of -100 has loss 0. Logits are then computed in blocks of tokens, to save memory: all logits of
        256 windows of 1,024 tokens with GPT-2's vocabulary take 53 GB.
        """
        embedded = self._embedded(tokens, state, mask)
        if targets is not None:
            self._check_targets(tokens, targets, last)
        after = self.transformer(embedded, *given(state, mask, last))
        after, state = (after, None) if state is None else after
        found = self._read(after) if targets is None else self._losses(after, targets)
        return found if state is None else (found, state)

    def init_state(self, *batch: int) -> tuple[AttentionState, ...]:
        """Return the state of every layer before the first token."""
        return self.transformer.init_state(*batch)

    def _check_state(self, state: Any) -> None:
        self.transformer._check_state(state)

    def _embedded(
        self, tokens: Tensor, state: Sequence[AttentionState] | None, mask: Tensor | None
    ) -> Float[Tensor, "*batch t width"]:
        require_instance("tokens", tokens, Tensor)
        if tokens.dtype != torch.long:
            raise ArgumentTypeError(f"tokens must be of dtype torch.int64, but are {tokens.dtype}: convert them.")
        if not tokens.ndim:
            refuse("tokens", "have shape (*batch, t)", (), "add the missing axes")
        vocabulary = self.embedding.num_embeddings
        # On an accelerator an id outside the vocabulary aborts the process. In training, the data loader checks ids.
        if not self.training and values_are_read():
            require_tokens("tokens", tokens, vocabulary)
        try:
            embedded = self.embedding(tokens)
        except IndexError:
            require_tokens("tokens", tokens, vocabulary)
            raise
        check_mask(mask, embedded)
        if self.places is not None:
            times = positions_of(tokens.shape[-1], mask, None if state is None else state[0].position, tokens.device)
            self._require_room(times, tokens.shape[-1], known=state is None)
            embedded = embedded + self.places[times]
        return self.dropout(zero_padding(embedded, mask))

    def _check_targets(self, tokens: Tensor, targets: Tensor, last: int | None) -> None:
        require_instance("targets", targets, Tensor)
        length = tokens.shape[-1] if last is None else min(last, tokens.shape[-1])
        if targets.dtype != torch.long or targets.shape != (*tokens.shape[:-1], length):
            found = f"{targets.dtype} {tuple(targets.shape)}"
            refuse(
                "targets", f"be int64 of the shape {(*tokens.shape[:-1], length)} of tokens", found, "pass next tokens"
            )
        if not self.training and values_are_read():
            self._require_targets(targets)

    def _require_targets(self, targets: Tensor) -> None:
        require_tokens("targets", targets.masked_fill(targets == -100, 0), self.embedding.num_embeddings)

    def _require_room(self, times: Tensor, length: int, known: bool) -> None:
        """Raise if a text is longer than the learned positions."""
        if (known and length <= self.config.context) or not times.numel():
            return
        longest = max(int(row[0]) for row in read(times.amax()[None].double())) + 1
        if longest > self.config.context:
            refuse("tokens", f"be at most {self.config.context} long", longest, "shorten the text")

    def _read(self, tokens: Tensor) -> Float[Tensor, "*batch t vocabulary"]:
        tokens = self.norm(tokens)
        return functional.linear(tokens, self.embedding.weight) if self.logits is None else self.logits(tokens)

    @property
    def at_once(self) -> int:
        """Number of tokens whose losses are computed together."""
        return max(_LOGITS // self.config.vocabulary, 1)

    def _losses(self, tokens: Tensor, targets: Tensor) -> Float[Tensor, "*batch t"]:
        """Cross-entropies of targets, computed for one block of tokens at a time; backward recomputes the logits."""

        def losses(tokens: Tensor, targets: Tensor) -> Tensor:
            logits = self._read(tokens)
            logits = logits.float() if logits.element_size() == 2 else logits  # as in the transformers library
            try:
                return functional.cross_entropy(logits, targets, reduction="none")
            except IndexError:
                self._require_targets(targets)
                raise

        rows, answers, size = tokens.flatten(0, -2), targets.flatten(), self.at_once
        if len(rows) <= size:
            return losses(rows, answers).view(targets.shape)
        blocks = zip(rows.split(size), answers.split(size), strict=True)
        return torch.cat([checkpoint(losses, *block, use_reentrant=False) for block in blocks]).view(targets.shape)


def require_tokens(name: str, tokens: Int[Tensor, "*batch"], vocabulary: int) -> None:
    """Raise if token ids are outside a vocabulary. Costs a transfer from the device."""
    if not tokens.numel():
        return
    for low, high in read(torch.stack(tokens.aminmax()).double()):
        if low < 0 or high >= vocabulary:
            refuse(name, f"be from 0 to {vocabulary - 1}", [int(low), int(high)], "use the model's own tokenizer")
