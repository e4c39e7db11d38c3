"""Bugs that the claims of language-mesa must detect: see `mesascope.study.Mutation`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mesascope.study import Mutation


def _times(factor: float) -> Callable[[Any], Any]:
    """Wrapper of a function that returns losses, which multiplies them by a factor."""

    def wrong(losses: Callable[..., dict[str, list[Any]]]) -> Any:
        return lambda *given: {name: [factor * one for one in own] for name, own in losses(*given).items()}

    return wrong


def _unnormalised(read: Callable[..., Any]) -> Any:
    return lambda self, tokens: tokens @ self.embedding.weight.mT


def _summed(by_block: Callable[[Any], Any]) -> Any:
    return lambda rows: by_block(rows) * len(rows)


def _early_for_late(bands: Callable[[Any], dict[str, slice]]) -> Any:
    def wrong(self: Any) -> dict[str, slice]:
        found = bands(self)
        return found | {"early": found["late"], "late": found["early"]}

    return wrong


def _unshifted(losses: Callable[[Any, Any], Any]) -> Any:
    """Each token is its own target."""
    from torch.nn.functional import cross_entropy

    def wrong(model: Any, windows: Any) -> Any:
        read = windows[..., :-1]
        return cross_entropy(model(read).movedim(-1, 1), read, reduction="none")

    return wrong


def _of_training(at: Callable[..., Any]) -> Any:
    def wrong(self: Any, starts: Any) -> Any:
        import torch

        return torch.from_numpy(self.corpus.windows("train", starts, self.length))

    return wrong


_MEASURING = "mesascope.studies.language.measuring"

BITS = Mutation("losses are in bits", f"{_MEASURING}:token_losses", _times(1 / math.log(2)))
LOW = Mutation("losses are 5 % low", f"{_MEASURING}:token_losses", _times(0.95))
RAW = Mutation("tokens are not normalised before logits", "mesascope.nets:LanguageModel._read", _unnormalised)
SUMMED = Mutation("losses are sums over windows", f"{_MEASURING}:_by_block", _summed)
OPPOSITE = Mutation(
    "the in-context score has the opposite sign", "mesascope.studies.language.language_mesa:LanguageMesa.bands",
    _early_for_late,
)  # fmt: skip
UNSHIFTED = Mutation(
    "targets are not shifted against inputs", "mesascope.language.losses:losses_of", _unshifted, anew=True
)
TRAINING_TEXT = Mutation(
    "networks are judged on the training text", "mesascope.language.windows:TextWindows._at", _of_training
)
