"""Evaluation of a language model on a corpus."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesascope.errors import NumericalError, refuse, require_count
from mesascope.language.losses import SIGN, in_context_score, losses_by_octave, token_losses
from mesascope.language.shards import TOKENIZER
from mesascope.language.tokenizing import load_tokenizer, tokenizer_checksum
from mesascope.language.windows import TextWindows
from mesascope.measurement import Measurement
from mesascope.modes import guarded
from mesascope.nets import LanguageModel
from mesascope.shapes import Int, Tensor
from mesascope.training.modes import evaluating


@dataclass(frozen=True)
class Evaluation:
    """Loss of a language model in nats per token, with standard errors over windows.

    Args:
        loss: mean over all tokens.
        score: see `in_context_score`.
        by_token: mean loss of tokens 1, 2 to 3, 4 to 7 and so on, by the number of the first token.
    """

    loss: Measurement
    score: Measurement
    by_token: dict[int, Measurement]

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(self.loss.value)

    def __str__(self) -> str:
        lines = [f"loss {self.loss} nats a token, perplexity {self.perplexity:.4g}, {self.loss.n} windows"]
        lines.append(f"in-context score {self.score} ({SIGN})")
        lines += [f"from token {first:>5}: {own}" for first, own in self.by_token.items()]
        return "\n".join(lines)


@guarded
def evaluate(
    model: LanguageModel, tokenizer: Any, corpus: str | Path, split: str = "validation", windows: int = 256
) -> Evaluation:
    """Evaluate a model on windows spread evenly over a corpus, each as long as the model's context.

    Raises:
        ArgumentError: the corpus was written with another tokenizer, or is shorter than a window.
        NumericalError: a loss is not finite.
    """
    read = corpus_windows(model, tokenizer, corpus, split, windows)
    with evaluating(model):
        losses = token_losses(model, read.to(model.embedding.weight.device)).double().cpu()
    if not bool(losses.isfinite().all()):
        raise NumericalError(f"losses must be finite, but some are not on {corpus}: train the model anew.")
    parts = {first: Measurement.of(own) for first, own in losses_by_octave(losses).items()}
    return Evaluation(Measurement.of(losses.mean(1)), in_context_score(losses), parts)


def corpus_windows(
    model: LanguageModel, tokenizer: Any, corpus: str | Path, split: str, windows: int
) -> Int[Tensor, "n context_and_1"]:
    """At most ``windows`` windows, spread evenly over a corpus and one token longer than the model's context."""
    windows = require_count("windows", windows)
    text = TextWindows(str(corpus), model.config.context + 1, split)  # type: ignore[arg-type]
    if tokenizer_checksum(load_tokenizer(text.corpus.folder / TOKENIZER)) != tokenizer_checksum(tokenizer):
        remedy = "prepare it with --tokenizer MODEL/tokenizer.json"
        refuse("corpus", "have the tokenizer of the model", str(corpus), remedy)
    return text.spread(windows)
