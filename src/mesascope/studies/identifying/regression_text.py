"""Regression tasks as text of numbers, and language models trained on it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from mesascope.studies.identifying.regressors import PAIRS

if TYPE_CHECKING:
    from torch import Tensor

    from mesascope.adapters import NumberWords, TextLearner
    from mesascope.nets import LanguageModelConfig
    from mesascope.tasks import Episode, LinearRegression

__all__ = ["family", "label_loss", "network", "reader", "tokens_of", "words"]

# Tokens of a line: input, arrow, label, end.
_LINE = 4


@functools.cache
def family() -> LinearRegression:
    """Lines "x -> w x + noise" with inputs that are positive, as most numbers in text are."""
    from mesascope.tasks import LinearRegression

    return LinearRegression(n_context=PAIRS, d_in=1, x="exponential", x_scale=1.2, w_scale=0.8, noise=0.2)


@functools.cache
def words() -> NumberWords:
    """Numbers of one decimal."""
    from mesascope.adapters import NumberWords

    return NumberWords(largest=19.9, decimals=1)


def network(width: int, layers: int) -> LanguageModelConfig:
    """The architecture: layers of softmax attention with four heads and an MLP each."""
    from mesascope.nets import AttentionConfig, CausalTransformerConfig, LanguageModelConfig

    transformer = CausalTransformerConfig(AttentionConfig(width, 4), layers, "softmax", mlp=4, layer_norm=True)
    return LanguageModelConfig(transformer, len(words()), _LINE * (PAIRS + 1))


def tokens_of(tasks: Episode) -> Tensor:
    """The text ``(*batch, t)`` of each task with its query and the label of that: prompt, answer and end."""
    import torch

    (x, y), xq, yq = tasks
    x, y = (words().of_numbers(torch.cat(both, -2)) for both in ((x, xq), (y, yq)))
    arrow, end = (torch.full_like(x, words().signs[sign]) for sign in ("->", "\n"))
    return torch.cat([x, arrow, y, end], -1).flatten(-2)


def label_loss(model: Any, tasks: Episode) -> Tensor:
    """The cross-entropy of labels, each after the lines before it; one number a member of an ensemble."""
    from torch.nn.functional import cross_entropy

    from mesascope.training import Ensemble

    tokens = tokens_of(tasks)
    logits = model(tokens)[..., _LINE // 2 - 1 :: _LINE, :]
    losses = cross_entropy(logits.movedim(-1, 1), tokens[..., _LINE // 2 :: _LINE], reduction="none")
    return losses.flatten(1).mean(1) if isinstance(model, Ensemble) else losses.mean()


def reader(model: Any, read: str = "mean") -> TextLearner:
    """A trained model as a learner; see `from_language_model`."""
    from mesascope.adapters import from_language_model

    return from_language_model(model.eval(), words(), read)
