"""Regression tasks as text of numbers, and language models trained on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from mesascope.adapters import NumberWords, TextLearner, from_language_model
from mesascope.errors import require_count, require_instance
from mesascope.nets import AttentionConfig, CausalTransformerConfig, LanguageModelConfig
from mesascope.shapes import Float, Int, Tensor
from mesascope.studies.common import plan
from mesascope.tasks import Episode, LinearRegression
from mesascope.training import Ensemble, Training

__all__ = ["FAMILY", "PAIRS", "USUAL", "WORDS", "TextModels", "label_loss", "reader", "tokens_of"]

# Lines "x -> w x + noise" of numbers of one decimal, from -19.9 to 19.9.
PAIRS = 20
FAMILY = LinearRegression(n_context=PAIRS, d_in=1, x="exponential", x_scale=1.2, w_scale=0.8, noise=0.2)
WORDS = NumberWords(largest=19.9, decimals=1)
# How they train, but for lengths and rates.
USUAL: dict[str, Any] = {
    "schedule": "cosine", "warmup_steps": 100, "optimizer": "adamw", "weight_decay": 0.05, "clip": 1.0,
}  # fmt: skip
# Tokens of a line: input, arrow, label, end.
_LINE = 4


@dataclass(frozen=True)
class TextModels:
    """Settings of a study of language models trained on regression."""

    training: Training = field(default_factory=lambda: plan(1500, 2e-3, batch=64, **USUAL))
    """How they train: to predict the labels of each text, each from the lines before."""
    width: int = 64
    """Of the transformer."""
    layers: int = 4
    """Of softmax attention and an MLP each."""
    seeds: int = 5
    """Language models."""

    def __post_init__(self) -> None:
        require_instance("training", self.training, Training)
        for name in ("width", "layers", "seeds"):
            require_count(name, getattr(self, name))

    def network(self) -> LanguageModelConfig:
        """The architecture."""
        transformer = CausalTransformerConfig(
            AttentionConfig(self.width, 4), self.layers, "softmax", mlp=4, layer_norm=True
        )
        return LanguageModelConfig(transformer, len(WORDS), _LINE * (PAIRS + 1))


def tokens_of(tasks: Episode) -> Int[Tensor, "*batch t"]:
    """The text of each task with its query and the label of that: what the prompt in format compact has, and an end."""
    (x, y), xq, yq = tasks
    x, y = (WORDS.of_numbers(torch.cat(both, -2)) for both in ((x, xq), (y, yq)))
    arrow, end = (torch.full_like(x, WORDS.signs[sign]) for sign in ("->", "\n"))
    return torch.cat([x, arrow, y, end], -1).flatten(-2)


def label_loss(model: Ensemble | Any, tasks: Episode) -> Float[Tensor, "*members"]:
    """The cross-entropy of labels, each after the lines before it; one number a member of an ensemble."""
    tokens = tokens_of(tasks)
    logits = model(tokens)[..., _LINE // 2 - 1 :: _LINE, :]
    losses = cross_entropy(logits.movedim(-1, 1), tokens[..., _LINE // 2 :: _LINE], reduction="none")
    return losses.flatten(1).mean(1) if isinstance(model, Ensemble) else losses.mean()


def reader(model: Any, read: str = "mean") -> TextLearner:
    """A trained model as a learner; see `from_language_model`."""
    return from_language_model(model.eval(), WORDS, read)
