"""Sequences of tokens, some of which only earlier tokens can predict.

A task is a row of tokens and a row of marks, 1 for the tokens to predict and 0 elsewhere: ``(batch, 2, t)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch

from mesascope.errors import refuse
from mesascope.records import register
from mesascope.shapes import Int, Tensor
from mesascope.validate import Count

_Several = Annotated[int, msgspec.Meta(ge=2)]
Asked = Int[Tensor, "batch two t"]


@register("family", "associative-recall", of="text")
@dataclass(frozen=True)
class AssociativeRecall:
    """Pairs of a key and a value, then the keys in another order, each followed by its value, which is to be predicted.

    Keys are tokens 0 to ``tokens - 1``, all different within a sequence; values are the ``tokens`` tokens above. This
    is a simple form of multi-query associative recall (MQAR, Arora et al. 2023): values are drawn with replacement, so
    keys may share one, and the keys return one after the other, each with its value, where MQAR puts random tokens
    between them in gaps that follow a power law. Accuracies differ from those of MQAR.

    >>> from mesascope.streams import stream
    >>> tokens, asked = AssociativeRecall(pairs=2, tokens=4).sample(1, stream(0, "doc"))[0]
    >>> asked.tolist()
    [0, 0, 0, 0, 0, 1, 0, 1]
    """

    pairs: Count = 16
    tokens: _Several = 32

    def __post_init__(self) -> None:
        if self.pairs > self.tokens:
            refuse("pairs", f"be at most the number of keys, {self.tokens}", self.pairs, "raise tokens")

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return 2 * self.tokens

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return 4 * self.pairs

    def sample(self, batch: int, generator: torch.Generator) -> Asked:
        """Draw ``batch`` sequences."""
        device = generator.device
        keys = _different(batch, self.tokens, generator)[:, : self.pairs]
        values = self.tokens + torch.randint(self.tokens, keys.shape, generator=generator, device=device)
        pairs = torch.stack([keys, values], -1)
        order = _different(batch, self.pairs, generator)
        again = pairs.gather(1, order[..., None].expand(-1, -1, 2))
        tokens = torch.cat([pairs, again], 1).flatten(1)
        asked = torch.arange(self.length, device=device)
        return _with(tokens, (asked >= self.length // 2) & (asked % 2 == 1))


@register("family", "copying", of="text")
@dataclass(frozen=True)
class Copying:
    """Random tokens, a token that marks their end, and the same tokens again.

    >>> from mesascope.streams import stream
    >>> tokens, asked = Copying(length_of_text=3, tokens=9).sample(1, stream(0, "doc"))[0]
    >>> tokens[:3].equal(tokens[4:]), tokens[3].item(), asked.tolist()
    (True, 9, [0, 0, 0, 0, 1, 1, 1])
    """

    length_of_text: Count = 24
    tokens: _Several = 32

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.tokens + 1

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return 2 * self.length_of_text + 1

    def sample(self, batch: int, generator: torch.Generator) -> Asked:
        """Draw ``batch`` sequences."""
        text = torch.randint(self.tokens, (batch, self.length_of_text), generator=generator, device=generator.device)
        tokens = torch.cat([text, torch.full_like(text[:, :1], self.tokens), text], 1)
        return _with(tokens, torch.arange(self.length, device=tokens.device) > self.length_of_text)


@register("family", "automata", of="text")
@dataclass(frozen=True)
class Automata:
    """Words of the language of a random automaton, a new one for each sequence: a small form of RegBench.

    In each of ``states``, two of ``tokens`` symbols are equally likely, and each leads to a random state. Words of
    ``word`` symbols begin in the first state; an extra token ends them. The symbols of the second half are to be
    predicted: the optimal loss is log 2 nats on each.

    Source: Akyürek et al. (2024), In-context language learning.

    >>> from mesascope.streams import stream
    >>> Automata(words=4, word=5).sample(3, stream(0, "doc")).shape
    torch.Size([3, 2, 24])
    """

    states: Count = 4
    tokens: _Several = 8
    words: _Several = 8
    word: Count = 11

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.tokens + 1

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.words * (self.word + 1)

    def sample(self, batch: int, generator: torch.Generator) -> Asked:
        """Draw ``batch`` sequences."""
        device, shape = generator.device, (batch, self.states)
        symbols = _different(batch * self.states, self.tokens, generator)[:, :2].view(*shape, 2)
        follows = torch.randint(self.states, (*shape, 2), generator=generator, device=device)
        choices = torch.randint(2, (batch, self.words, self.word), generator=generator, device=device)
        rows, state, words = torch.arange(batch, device=device)[:, None], torch.zeros_like(choices[..., 0]), []
        for choice in choices.unbind(-1):
            words.append(symbols[rows, state, choice])
            state = follows[rows, state, choice]
        tokens = torch.stack([*words, torch.full_like(state, self.tokens)], -1).flatten(1)
        return _with(tokens, (torch.arange(self.length, device=device) >= self.length // 2) & (tokens < self.tokens))


def _different(rows: int, count: int, generator: torch.Generator) -> Int[Tensor, "rows count"]:
    """The numbers below ``count``, in a random order for each row."""
    return torch.rand(rows, count, generator=generator, device=generator.device).argsort(-1)


def _with(tokens: Tensor, asked: Tensor) -> Asked:
    return torch.stack([tokens, asked.expand_as(tokens).long()], 1)
