"""Bugs that the claims of language-mesa must detect: see `mesascope.study.Mutation`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mesascope.studies.common import drawn_with, returning
from mesascope.study import Mutation


def _times(factor: float) -> Callable[[Any], Any]:
    """Bug to plant in a function that returns losses: they are multiplied by a factor."""
    return returning(lambda losses: {name: [factor * one for one in own] for name, own in losses.items()})


def _unshifted(losses: Callable[[Any, Any], Any]) -> Any:
    """Make each token its own target."""
    from torch.nn.functional import cross_entropy

    def wrong(model: Any, windows: Any) -> Any:
        read = windows[..., :-1]
        return cross_entropy(model(read).movedim(-1, 1), read, reduction="none")

    return wrong


_MEASURING = "mesascope.studies.language.measuring"

BITS = Mutation("losses are in bits", f"{_MEASURING}:token_losses", _times(1 / math.log(2)))
LOW = Mutation("losses are 5 % low", f"{_MEASURING}:token_losses", _times(0.95))
RAW = Mutation("tokens are not normalised before logits", "mesascope.nets:LanguageModel._read",
               lambda read: lambda self, tokens: tokens @ self.embedding.weight.mT)  # fmt: skip
SUMMED = Mutation("losses are sums over windows", f"{_MEASURING}:_by_block",
                  lambda by_block: lambda rows: by_block(rows) * len(rows))  # fmt: skip
OPPOSITE = Mutation(
    "the in-context score has the opposite sign", "mesascope.studies.language.language_mesa:LanguageMesa.bands",
    returning(lambda bands: bands | {"early": bands["late"], "late": bands["early"]}),
)  # fmt: skip
UNSHIFTED = Mutation(
    "targets are not shifted against inputs", "mesascope.language.losses:losses_of", _unshifted, anew=True
)
TRAINING_TEXT = Mutation(
    "networks are judged on the training text", "mesascope.language.windows:TextWindows._at", drawn_with(split="train")
)
