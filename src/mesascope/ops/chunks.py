"""Time cut in chunks: what causal operations that run a chunk at once share. Tokens are rows."""

from __future__ import annotations

import math

from torch.nn import functional

from mesascope.shapes import Float, Tensor

__all__ = ["causal", "cut", "decay_weights"]


def cut(sequence: Float[Tensor, "batch t d"], size: int) -> Float[Tensor, "batch chunks size d"]:
    """The sequence in chunks, at least one, filled up with zeros: tokens that neither add nor forget anything."""
    count = max(math.ceil(sequence.shape[1] / size), 1)
    return functional.pad(sequence, (0, 0, 0, count * size - sequence.shape[1])).unflatten(1, (count, size))


def decay_weights(log_decay: Float[Tensor, "batch chunks size 1"]) -> Float[Tensor, "batch chunks size size"]:
    """g_t / g_i for i <= t, else 0."""
    return causal(causal(log_decay - log_decay.mT).exp())


def causal(scores: Float[Tensor, "*batch size size"]) -> Float[Tensor, "*batch size size"]:
    """Zero but for i <= t. A product: `torch.tril` of a batch takes three times as long on CPU."""
    return scores * scores.new_ones(scores.shape[-2:]).tril()
