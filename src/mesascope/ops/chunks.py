"""Chunks of time for causal operations that process a whole chunk at once. Tokens are rows."""

from __future__ import annotations

import math

from torch.nn import functional

from mesascope.ops.products import product
from mesascope.shapes import Float, Tensor

# Lower bound on the logarithm of a forget factor: its exponential is 0 in every dtype, and sums stay finite.
NOTHING_LEFT = -1e4


def cut(sequence: Float[Tensor, "batch t d"], size: int) -> Float[Tensor, "batch chunks size d"]:
    """Split a sequence into one or more chunks; the last is padded with zeros.

    Zero keys and values add nothing to a state, and a log forget factor of 0 forgets nothing.
    """
    count = max(math.ceil(sequence.shape[1] / size), 1)
    missing = count * size - sequence.shape[1]
    return (functional.pad(sequence, (0, 0, 0, missing)) if missing else sequence).unflatten(1, (count, size))


def decays(log_forget: Float[Tensor, "*batch size 1"]) -> Float[Tensor, "*batch size 1"]:
    """Decay g_t: the product of the chunk's forget factors up to t."""
    return log_forget.clamp(min=NOTHING_LEFT).cumsum(-2).exp()


def decay_weights(log_forget: Float[Tensor, "*batch size 1"]) -> Float[Tensor, "*batch size size"]:
    """g_t / g_i for i <= t and 0 otherwise, computed as exp of the sum of log_forget over tokens i + 1 to t.

    Differences of cumulative sums would be inaccurate for all tokens after one that forgets everything.
    """
    upto = causal(log_forget.new_ones((log_forget.shape[-2],) * 2))
    sums = product(upto, log_forget.clamp(min=NOTHING_LEFT) * upto.tril(-1))
    return causal(sums.exp())


def causal(scores: Float[Tensor, "*batch size size"]) -> Float[Tensor, "*batch size size"]:
    """Scores for i <= t, and 0 elsewhere. `torch.tril` of a batch takes three times as long on CPU as this product."""
    return scores * scores.new_ones(scores.shape[-2:]).tril()
