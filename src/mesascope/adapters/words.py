"""Learners from small language models with number tokens."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import torch

from mesascope.adapters.text import TextLearner, from_text
from mesascope.errors import ArgumentError, refuse, require_choice, require_count, require_instance, require_number
from mesascope.shapes import Float, Int, Tensor
from mesascope.streams import stream

READS = ("mode", "mean", "sample")
_FINE = 6  # decimals of an answer
_PARTS = re.compile(r"->|,|\n|[^\s,]+?(?=->|[\s,]|$)")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


class NumberTokenizer:
    """A tokenizer for prompts in format compact: each number and each separator is one token.

    Args:
        largest: numbers range from -largest to largest.
        decimals: number of decimals.

    >>> words = NumberTokenizer(largest=9.9, decimals=1)
    >>> len(words), words.encode("1.5, -0.2 -> 3.0")
    (202, [114, 199, 97, 200, 129])
    >>> words.decode([114, 200])
    '1.5 ->'
    """

    def __init__(self, largest: float = 9.9, decimals: int = 1) -> None:
        largest = require_number("largest", largest, above=0)
        decimals = require_count("decimals", decimals, least=0)
        self.decimals, self.most = decimals, round(largest * 10**decimals)
        self.signs: Mapping[str, int] = {sign: place for place, sign in enumerate((",", "->", "\n"), 2 * self.most + 1)}

    def __len__(self) -> int:
        return 2 * self.most + 1 + len(self.signs)

    @cached_property
    def values(self) -> Float[Tensor, " numbers"]:
        """Values of the number tokens, in float64; the separators have the next token ids."""
        return torch.arange(-self.most, self.most + 1, dtype=torch.float64) / 10**self.decimals

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; raise for words, and for numbers outside the vocabulary."""
        return [self.signs[part] if part in self.signs else self._number(part) for part in _PARTS.findall(text)]

    def of_numbers(self, numbers: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Tokens of numbers after rounding and clamping to the vocabulary; raise for nan."""
        if bool(numbers.isnan().any()):
            refuse("each of numbers", "be a number", math.nan, "leave it out")
        return (numbers * 10**self.decimals).round().clamp(-self.most, self.most).long() + self.most

    def decode(self, tokens: Sequence[int] | Int[Tensor, " t"]) -> str:
        """Text of tokens."""
        tokens = torch.as_tensor(tokens).long().tolist()
        if strange := [token for token in tokens if not 0 <= token < len(self)]:
            refuse("tokens", f"be from 0 to {len(self) - 1}", strange[0], "pass what encode returned")
        signs = {token: sign for sign, token in self.signs.items()}
        texts = [signs[token] if token in signs else str(self.values[token].item()) for token in tokens]
        return " ".join(texts).replace(" ,", ",").replace(" \n ", "\n")

    def _number(self, text: str) -> int:
        scaled = float(text) * 10**self.decimals if _NUMBER.fullmatch(text) else math.inf
        if not abs(scaled) <= self.most + 0.5 or abs(scaled - round(scaled)) > 1e-6:
            most = self.most / 10**self.decimals
            rule = f"consist of numbers from -{most} to {most} with at most {self.decimals} decimals in format compact"
            refuse("text", rule, text, "scale or round it")
        return round(scaled) + self.most


def from_language_model(
    model: Callable[[Tensor], Tensor],
    words: NumberTokenizer,
    read: str = "mode",
    *,
    seed: int = 0,
    name: str | None = None,
) -> TextLearner:
    """A learner from a language model of numbers, with prompts in format compact; see `from_text`.

    The prediction is nan if a number in the prompt is outside the vocabulary.

    Args:
        model: maps tokens ``(batch, t)`` to logits ``(batch, t, vocabulary)``, such as `LanguageModel`.
        read: mode, mean or sample of the distribution over numbers.
        seed: seed for sampling.

    >>> from mesascope.tasks import Context
    >>> words = NumberTokenizer()
    >>> flat = lambda tokens: torch.zeros(*tokens.shape, len(words))  # all tokens are equally likely
    >>> learner = from_language_model(flat, words, "mean")
    >>> learner(Context(torch.ones(1, 2, 1), torch.ones(1, 2, 1)), torch.ones(1, 1, 1)).abs().item()
    0.0
    """
    require_instance("words", words, NumberTokenizer)
    require_choice("read", read, READS)
    generator = stream(seed, "answers")
    return from_text(
        partial(_answers, model, words, read, generator), "compact", batched=True,
        name=name or type(model).__name__, decimals=words.decimals, concurrency=256,
        answer_decimals=_FINE if read == "mean" else None,
    )  # fmt: skip


def _answers(
    model: Callable[[Tensor], Tensor],
    words: NumberTokenizer,
    read: str,
    generator: torch.Generator,
    prompts: Sequence[str],
) -> list[str]:
    """Text of the predicted number after each prompt; empty if the prompt is not in the vocabulary."""
    tokens, answers = [[] for _ in prompts], [""] * len(prompts)
    for place, prompt in enumerate(prompts):
        with contextlib.suppress(ArgumentError):
            tokens[place] = words.encode(prompt)
    device = next((weight.device for weight in getattr(model, "parameters", list)()), None)
    for length in {len(one) for one in tokens} - {0}:
        places = [place for place, one in enumerate(tokens) if len(one) == length]
        with torch.no_grad():
            logits = model(torch.tensor([tokens[place] for place in places], device=device))[:, -1].double().cpu()
        numbers = _read(logits[:, : len(words.values)].softmax(-1), words.values, read, generator)
        for place, number in zip(places, numbers.tolist(), strict=True):
            answers[place] = f"{number:.{_FINE}f}"
    return answers


def _read(
    shares: Float[Tensor, "prompts numbers"], values: Float[Tensor, " numbers"], read: str, generator: torch.Generator
) -> Float[Tensor, " prompts"]:
    """Reduce each distribution over numbers to one number."""
    if read == "mean":
        return shares @ values
    return values[shares.argmax(-1) if read == "mode" else torch.multinomial(shares, 1, generator=generator)[:, 0]]
