"""Next-token loss and recall loss of language models, and the evaluation of a model on a corpus."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError, refuse, require_count, require_instance
from mesascope.language.shards import TOKENIZER
from mesascope.language.tokenizing import load_tokenizer, tokenizer_checksum
from mesascope.language.windows import TextWindows
from mesascope.measurement import Measurement
from mesascope.modes import guarded
from mesascope.modules import out_of_memory
from mesascope.nets import LanguageModel
from mesascope.shapes import Float, Int, Tensor
from mesascope.training import Ensemble
from mesascope.training.modes import evaluating

_EARLY, _LATE, _OF = 50, 500, 1024  # positions that the score compares, and the context length (Olsson et al. 2022)
_AT_ONCE = 8  # batch size of evaluations, in windows
SIGN = "loss late in a window minus loss early in it, in nats: below 0 if the model predicts better with more context"


def next_token_loss(model: Ensemble | nn.Module, windows: Int[Tensor, "*batch t"]) -> Float[Tensor, "*members"]:
    """Mean next-token cross-entropy in nats; one number per member of an `Ensemble`."""
    losses = losses_of(model, windows)
    return losses.flatten(1).mean(1) if isinstance(model, Ensemble) else losses.mean()


def token_losses(model: nn.Module, windows: Int[Tensor, "n t"]) -> Float[Tensor, "n predicted"]:
    """Cross-entropy in nats of each token after the first, ``(n, t - 1)``, without gradients.

    Args:
        windows: independent windows of tokens.

    Raises:
        ArgumentError: eight windows at once do not fit into memory.
    """
    try:
        with torch.no_grad():
            return torch.cat([losses_of(model, part) for part in windows.split(_AT_ONCE)])
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise ArgumentError(
            f"windows must fit into memory {_AT_ONCE} at a time, but do not with {windows.shape[-1]} tokens each: draw "
            "shorter ones, or use a smaller model."
        ) from error


def in_context_score(losses: Float[Tensor, "n predicted"]) -> Measurement:
    """Loss late in a window minus loss early in the window: negative if a model learns in context.

    The score compares the 500th with the 50th of 1,024 tokens, as in Olsson et al. (2022); other lengths use scaled
    positions. The mean and its standard error are over windows.

    >>> in_context_score(torch.arange(64.0).neg().expand(3, -1)).value  # the 31st token beside the 3rd
    -28.0
    """
    require_instance("losses", losses, Tensor)
    if losses.ndim != 2 or losses.shape[1] < 20:
        refuse("losses", "have shape (n, t) with t of at least 20", tuple(losses.shape), "pass token_losses of a model")
    early, late = (round(place * losses.shape[1] / _OF) for place in (_EARLY, _LATE))
    return Measurement.of(losses[:, late - 1] - losses[:, early - 1])


def losses_by_octave(losses: Float[Tensor, "*batch predicted"]) -> dict[int, Float[Tensor, "*batch"]]:
    """Mean loss of tokens 1, 2 to 3, 4 to 7 and so on, keyed by first token; full octaves only.

    >>> losses_by_octave(torch.tensor([1.0, 2.0, 4.0, 7.0]))
    {1: tensor(1.), 2: tensor(3.)}
    """
    firsts = [1 << power for power in range((losses.shape[-1] + 1).bit_length() - 1)]
    return {first: losses[..., first - 1 : 2 * first - 1].mean(-1) for first in firsts}


def losses_of(model: Any, windows: Int[Tensor, "*batch t"]) -> Float[Tensor, "*batch predicted"]:
    """Cross-entropy in nats of each token after the first."""
    require_instance("windows", windows, Tensor)
    if windows.dtype != torch.long:
        raise ArgumentTypeError(f"windows must be of dtype torch.int64, but are {windows.dtype}: convert them.")
    if windows.ndim < 2 or windows.shape[-1] < 2:
        refuse("windows", "have shape (*batch, t) with t of at least 2", tuple(windows.shape), "draw longer ones")
    part = model.module if isinstance(model, DistributedDataParallel) else model
    if isinstance(part, LanguageModel):
        return model(windows[..., :-1], targets=windows[..., 1:])
    logits = model(windows[..., :-1])
    return functional.cross_entropy(logits.movedim(-1, 1), windows[..., 1:], reduction="none")


def recall_loss(model: Ensemble | nn.Module, tasks: Int[Tensor, "*batch two t"]) -> Float[Tensor, "*members"]:
    """Mean cross-entropy in nats of the targets, marked 1 in ``tasks[..., 1, :]``; one per member of an `Ensemble`."""
    tokens, asked = _parted(tasks)
    losses, weights = losses_of(model, tokens), asked[..., 1:]
    start = 1 if isinstance(model, Ensemble) else 0
    return (losses * weights).flatten(start).sum(-1) / weights.flatten(start).sum(-1)


def recall_accuracy(model: nn.Module, tasks: Int[Tensor, "batch two t"]) -> float:
    """Accuracy on the target tokens, averaged over sequences."""
    return float(recall_by_sequence(model, tasks)[1].mean())


def recall_by_sequence(
    model: nn.Module, tasks: Int[Tensor, "batch two t"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Mean cross-entropy in nats and accuracy on the target tokens of each sequence, without gradients."""
    tokens, asked = _parted(tasks)
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    losses = functional.cross_entropy(logits.movedim(-1, 1), tokens[:, 1:], reduction="none")
    right, weights = logits.argmax(-1) == tokens[:, 1:], asked[:, 1:]
    return tuple((part * weights).sum(-1) / weights.sum(-1) for part in (losses, right))  # type: ignore[return-value]


def _parted(tasks: Tensor) -> tuple[Tensor, Tensor]:
    require_instance("tasks", tasks, Tensor)
    if tasks.ndim < 3 or tasks.shape[-2] != 2:
        refuse("tasks", "have shape (*batch, 2, t)", tuple(tasks.shape), "draw them from AssociativeRecall, say")
    tokens, asked = tasks.unbind(-2)
    return tokens, asked


@dataclass(frozen=True)
class Evaluation:
    """Loss of a language model in nats per token, with standard errors over windows.

    Args:
        loss: mean over all tokens.
        score: see `in_context_score`.
        by_token: see `losses_by_octave`.
    """

    loss: Measurement
    score: Measurement
    by_token: dict[int, Measurement]

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(self.loss.value)

    def __str__(self) -> str:
        lines = [f"loss {self.loss} nats per token, perplexity {self.perplexity:.4g}, {self.loss.n} windows"]
        lines.append(f"in-context score {self.score} ({SIGN})")
        lines += [f"from token {first:>5}: {own}" for first, own in self.by_token.items()]
        return "\n".join(lines)


@guarded
def evaluate(
    model: LanguageModel, tokenizer: Any, corpus: str | Path, split: str = "validation", windows: int = 256
) -> Evaluation:
    """Evaluate a model on at most ``windows`` windows of its context length, spread evenly over a corpus.

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
    """At most ``windows`` windows, one token longer than the model's context, spread evenly over a corpus."""
    windows = require_count("windows", windows)
    text = TextWindows(str(corpus), model.config.context + 1, split)  # type: ignore[arg-type]
    if tokenizer_checksum(load_tokenizer(text.corpus.folder / TOKENIZER)) != tokenizer_checksum(tokenizer):
        remedy = "prepare it with --tokenizer MODEL/tokenizer.json"
        refuse("corpus", "have the tokenizer of the model", str(corpus), remedy)
    return text.spread(windows)
