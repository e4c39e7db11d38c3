"""Models of text as learners: pairs and a query in a prompt, a number in the answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mesascope.adapters.calls import CHARACTERS, Calls
from mesascope.adapters.prompts import FORMATS, Format
from mesascope.errors import refuse, require_callable, require_choice, require_count, require_instance
from mesascope.evidence.tables import Table
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, check_inputs
from mesascope.tasks.asking import drawn, named

__all__ = ["TextLearner", "from_text"]

ORDERS = ("given", "random", "distance")
REASONS = ("failed", "refused", "cut", "empty", "no number", "unclear number", "beyond the budget")


def from_text(
    model: Callable[[Any], Any],
    format: str | Format = "words-to-numbers",
    *,
    name: str | None = None,
    decimals: int = 2,
    order: str = "given",
    scale: tuple[float, float] | None = None,
    features: Sequence[str] | None = None,
    cache: str | Path | None = None,
    most_calls: int | None = None,
    most_tokens: int | None = None,
    concurrency: int | None = None,
    batched: bool = False,
    answer_decimals: int | None = None,
) -> TextLearner:
    """A learner from a model of text.

    Each query is a prompt of its own: the pairs of the context, then the query. An answer without a number, and one
    that was not given, is nan, never 0; ``learner.table()`` counts them. Numbers are rounded, and the learner says so:
    `identify` has candidates see what the model sees.

    Args:
        model: takes a prompt and returns a text; may be asynchronous, or take a list of prompts and return one of texts
            (``batched=True``). `openai_model` makes one.
        format: one of words-to-numbers, letters (features are places in the alphabet), compact, digits, or a `Format`.
        name: of the model and its settings; its function's name if None. Needed with ``cache`` for a model of your own:
            answers are kept under it, so that another model, or other settings, need another name.
        decimals: that numbers are rounded to.
        order: of the pairs: given, random (one order for each task), or distance, the nearest to the query last.
        scale: the range that each feature and the labels of a context are mapped to; as they are if None.
        features: names of the inputs; Feature 0, Feature 1, ... if None.
        cache: a file of JSON lines; what is in it is not asked again.
        most_calls, most_tokens: what may be spent; what is beyond is nan.
        concurrency: prompts asked at the same time; 8 if None, and 64 of a batched model.
        answer_decimals: that answers are rounded to, if not to those of the prompts.

    >>> def last(prompt):  # repeats the label that it read last
    ...     return prompt.split("Output:")[-2].split()[0]
    >>> learner = from_text(last)
    >>> learner(Context(torch.ones(1, 2, 1), torch.tensor([[[3.0], [4.0]]])), torch.ones(1, 1, 1))
    tensor([[[4.]]])
    """
    require_callable("model", model)
    if isinstance(format, str):
        require_choice("format", format, FORMATS)
        format = FORMATS[format]
    require_instance("format", format, Format)
    decimals = require_count("decimals", decimals, least=0)
    if answer_decimals is not None:
        answer_decimals = require_count("answer_decimals", answer_decimals, least=0)
    require_choice("order", order, ORDERS)
    if scale is not None and not (len(scale) == 2 and scale[0] < scale[1]):
        refuse("scale", "be a range, the lower end first", scale, "pass (0, 100), say")
    if cache is not None and name is None and not hasattr(model, "settings"):
        refuse("name", "name the model and its settings where answers are kept", name, 'pass name="model, settings"')
    calls = Calls(
        model, name or named(model), cache=cache, most_calls=most_calls, most_tokens=most_tokens,
        concurrency=(64 if batched else 8) if concurrency is None else concurrency, batched=batched,
    )  # fmt: skip
    return TextLearner(calls, format, decimals, order, scale, features, answer_decimals)


class _Scaling(NamedTuple):
    """From numbers to what is written, (value - shift) * factor: of each feature, and of the labels."""

    x_shift: Tensor
    x_factor: Tensor
    y_shift: Tensor
    y_factor: Tensor


class TextLearner:
    """Return type of `from_text`; in tables it has the model's name."""

    def __init__(
        self,
        calls: Calls,
        format: Format,
        decimals: int,
        order: str,
        scale: tuple[float, float] | None,
        features: Sequence[str] | None,
        answer_decimals: int | None = None,
    ) -> None:
        self.calls, self.format, self.decimals, self.order = calls, format, decimals, order
        self.scale, self.features = scale, features
        self.answer_decimals = decimals if answer_decimals is None else answer_decimals
        self.asked = self.parsed = 0
        self.unread: Counter[str] = Counter()
        self.__name__ = calls.name

    def __repr__(self) -> str:
        return f"from_text({self.__name__})"

    @property
    def resolution(self) -> float:
        """The distance of two numbers that it can answer, where labels are written as they are."""
        return 10.0**-self.answer_decimals if self.scale is None else 0.0

    def table(self) -> Table:
        """Counts of prompts and numbers read, their cost (tokens are estimated), and the reasons of each nan.

        The model failed, refused the prompt, or stopped before its end, at its limit of tokens say (cut); the answer is
        empty, holds no digits (no number), or digits that are not clearly one number.
        """
        calls, reasons = self.calls, self.calls.unanswered + self.unread
        row = {
            "asked": self.asked, "read": self.parsed, "parse rate": self.parsed / max(self.asked, 1),
            "from file": calls.from_file, "calls": calls.calls, "tokens": calls.tokens,
        }  # fmt: skip
        return Table([row | {reason: reasons[reason] for reason in REASONS}])

    def estimate(self, family: Any, calls: int, price: float | None = None) -> Table:
        """What so many calls on tasks of a family would take, without any: tokens of prompts, and their price.

        Args:
            price: of a million tokens.
        """
        calls = require_count("calls", calls)
        episode = drawn(family, 8, stream(0, "estimate"))
        prompts = self._prompts(episode.context, episode.xq)
        tokens = calls * sum(map(len, prompts)) / len(prompts) / CHARACTERS
        cost = {} if price is None else {"price": tokens * price / 1e6}
        return Table([{"calls": calls, "tokens": round(tokens), **cost}])

    def as_written(self, tasks: Episode) -> Episode:
        """Tasks with the numbers that the model reads, rounded; right answers stay as they are."""
        scaling = self._scaling(tasks.context)
        context = Context(
            self._rounded(tasks.context.x, scaling.x_shift, scaling.x_factor),
            self._rounded(tasks.context.y, scaling.y_shift, scaling.y_factor),
        )
        return Episode(context, self._rounded(tasks.xq, scaling.x_shift, scaling.x_factor), tasks.yq)

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m 1"]:
        check_inputs(context, xq)
        if context.y.shape[-1] != 1:
            refuse("context.y", "have one target", context.y.shape[-1], "ask for one target after the other")
        texts = self.calls.ask(self._prompts(context, xq))
        numbers = [math.nan if text is None else self._read(text) for text in texts]
        self.asked, self.parsed = self.asked + len(numbers), self.parsed + sum(map(math.isfinite, numbers))
        scaling = self._scaling(context)
        found = torch.tensor(numbers, dtype=torch.float64).reshape(*xq.shape[:-1], 1)
        found = (found / scaling.y_factor + scaling.y_shift).to(xq)
        return found.masked_fill(found.isinf(), math.nan)  # beyond the dtype

    def _read(self, text: str) -> float:
        number = self.format.read(text, self.decimals)
        if math.isfinite(number):
            return number
        self.unread["unclear number" if any(map(str.isdigit, text)) else "no number"] += 1
        return math.nan

    def _prompts(self, context: Context, xq: Tensor) -> list[str]:
        if not all(bool(part.isfinite().all()) for part in (*context, xq)):
            refuse("context and xq", "be finite", "nan or inf in one of them", "leave those rows out")
        scaling = self._scaling(context)
        x, y, queries = (
            ((part.detach().cpu().double() - shift) * factor).round(decimals=self.decimals).flatten(0, -3)
            for part, shift, factor in (
                (context.x, scaling.x_shift, scaling.x_factor),
                (context.y, scaling.y_shift, scaling.y_factor),
                (xq, scaling.x_shift, scaling.x_factor),
            )
        )
        generator = stream(0, "order of pairs")
        prompts = []
        for pairs, labels, several in zip(x, y, queries, strict=True):
            shuffled = torch.randperm(len(pairs), generator=generator)
            for query in several:
                rows = {
                    "given": torch.arange(len(pairs)),
                    "random": shuffled,
                    "distance": (pairs - query).norm(dim=-1).argsort(descending=True, stable=True),
                }[self.order]
                prompts.append(
                    self.format.prompt(
                        pairs[rows].tolist(), labels[rows, 0].tolist(), query.tolist(), self.features, self.decimals
                    )
                )
        return prompts

    def _scaling(self, context: Context) -> _Scaling:
        ends = [self._column(part.detach().cpu().double()) for part in context]
        return _Scaling(*ends[0], *ends[1])

    def _column(self, rows: Float[Tensor, "*batch n d"]) -> tuple[Tensor, Tensor]:
        """Shift and factor ``(*batch, 1, d)``; of numbers that are all the same the factor is 1."""
        shape = (*rows.shape[:-2], 1, rows.shape[-1])
        if self.scale is None or not rows.shape[-2]:
            return torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
        low, high = rows.amin(-2, keepdim=True), rows.amax(-2, keepdim=True)
        bottom, top = self.scale
        factor = torch.where(high > low, (top - bottom) / (high - low), torch.ones_like(low))
        return low - bottom / factor, factor

    def _rounded(self, part: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
        written = ((part.double().cpu() - shift) * factor).round(decimals=self.decimals)
        return (written / factor + shift).to(part)
