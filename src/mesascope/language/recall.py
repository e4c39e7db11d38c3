"""Small tasks that only what was read can solve: a yardstick for what a layer's state can hold and find again.

A task is tokens and, beside each, whether it is asked for: ``(batch, 2, t)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import refuse, require_count, require_instance
from mesascope.language.losses import losses_of
from mesascope.records import with_plain_numbers
from mesascope.shapes import Float, Int, Tensor
from mesascope.training import Ensemble

__all__ = ["AssociativeRecall", "Automata", "Copying", "asked_accuracy", "asked_each", "asked_loss"]

Asked = Int[Tensor, "batch two t"]


@with_plain_numbers
@dataclass(frozen=True)
class AssociativeRecall:
    """Pairs of a key and a value, and then the keys again, each to be answered by its value (multi-query recall).

    Tokens 0 to ``tokens - 1`` are keys, all different within a sequence, and as many from ``tokens`` on are values.

    Source: Arora et al. (2023), Zoology.

    >>> from mesascope.streams import stream
    >>> tokens, asked = AssociativeRecall(pairs=2, tokens=4).sample(1, stream(0, "doc"))[0]
    >>> asked.tolist()
    [0, 0, 0, 0, 0, 1, 0, 1]
    """

    pairs: int = 16
    tokens: int = 32

    def __post_init__(self) -> None:
        require_count("pairs", self.pairs)
        require_count("tokens", self.tokens, least=2)
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
        """Draw ``batch`` sequences; the keys come back in an order of their own."""
        device = generator.device
        keys = _different(batch, self.tokens, generator)[:, : self.pairs]
        values = self.tokens + torch.randint(self.tokens, keys.shape, generator=generator, device=device)
        pairs = torch.stack([keys, values], -1)
        order = _different(batch, self.pairs, generator)
        again = pairs.gather(1, order[..., None].expand(-1, -1, 2))
        tokens = torch.cat([pairs, again], 1).flatten(1)
        asked = torch.arange(self.length, device=device)
        return _with(tokens, (asked >= self.length // 2) & (asked % 2 == 1))


@with_plain_numbers
@dataclass(frozen=True)
class Copying:
    """Random tokens, a token that says so, and the same again.

    >>> from mesascope.streams import stream
    >>> tokens, asked = Copying(length_of_text=3, tokens=9).sample(1, stream(0, "doc"))[0]
    >>> tokens[:3].equal(tokens[4:]), tokens[3].item(), asked.tolist()
    (True, 9, [0, 0, 0, 0, 1, 1, 1])
    """

    length_of_text: int = 24
    tokens: int = 32

    def __post_init__(self) -> None:
        require_count("length_of_text", self.length_of_text)
        require_count("tokens", self.tokens, least=2)

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


@with_plain_numbers
@dataclass(frozen=True)
class Automata:
    """Words of a language that is new in each sequence, that of a random automaton: RegBench's, made small.

    In each of ``states``, two of ``tokens`` symbols are equally likely, and each leads to a state of its own. Words of
    ``word`` symbols begin in the first state; a token of its own ends them. The symbols of the second half are asked
    for: who knows the automaton loses log 2 nats on each.

    Source: Akyürek et al. (2024), In-context language learning.

    >>> from mesascope.streams import stream
    >>> Automata(words=4, word=5).sample(3, stream(0, "doc")).shape
    torch.Size([3, 2, 24])
    """

    states: int = 4
    tokens: int = 8
    words: int = 8
    word: int = 11

    def __post_init__(self) -> None:
        for name, least in (("states", 1), ("tokens", 2), ("words", 2), ("word", 1)):
            require_count(name, getattr(self, name), least=least)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.tokens + 1

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.words * (self.word + 1)

    def sample(self, batch: int, generator: torch.Generator) -> Asked:
        """Draw ``batch`` sequences, each of an automaton of its own."""
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


def asked_loss(model: Ensemble | nn.Module, tasks: Int[Tensor, "*batch two t"]) -> Float[Tensor, "*members"]:
    """The mean cross-entropy, in nats, of the tokens that are asked for; one number a member of an `Ensemble`."""
    tokens, asked = _parted(tasks)
    losses, weights = losses_of(model, tokens), asked[..., 1:]
    start = 1 if isinstance(model, Ensemble) else 0
    return (losses * weights).flatten(start).sum(-1) / weights.flatten(start).sum(-1)


def asked_accuracy(model: nn.Module, tasks: Asked) -> float:
    """The share of the tokens that are asked for which are the likeliest to the model, by sequence, on average."""
    return float(asked_each(model, tasks)[1].mean())


def asked_each(model: nn.Module, tasks: Asked) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Of what each sequence asks for, the mean cross-entropy in nats, and the share that is the likeliest to the model.

    Without gradients.
    """
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


def _different(rows: int, count: int, generator: torch.Generator) -> Int[Tensor, "rows count"]:
    """The numbers below ``count`` in an order of each row's own."""
    return torch.rand(rows, count, generator=generator, device=generator.device).argsort(-1)


def _with(tokens: Tensor, asked: Tensor) -> Asked:
    return torch.stack([tokens, asked.expand_as(tokens).long()], 1)
