"""Models of text as learners: pairs and a query in a prompt, a number in the answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from mesascope.adapters.calls import CHARACTERS, CachedModel
from mesascope.adapters.prompts import FORMATS, Format
from mesascope.errors import refuse, require_callable, require_choice, require_count, require_instance
from mesascope.evidence.tables import Table
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, check_inputs
from mesascope.tasks.calling import display_name, sample_tasks
from mesascope.validate import Whole, frozen

REASONS = ("failed", "refused", "cut", "empty", "no number", "unclear number", "beyond the budget")


def from_text(
    model: Callable[[Any], Any], format: str | Format = "words-to-numbers", *, name: str | None = None,
    decimals: int = 2, order: str = "given", scale: tuple[float, float] | None = None,
    features: Sequence[str] | None = None, cache: str | Path | None = None, most_calls: int | None = None,
    most_tokens: int | None = None, concurrency: int | None = None, batched: bool = False,
    answer_decimals: int | None = None,
) -> TextLearner:  # fmt: skip
    """A learner from a model of text.

    Each query is a prompt of its own: the pairs of the context, then the query. The prediction is nan, never 0, if an
    answer is missing or has no number; ``learner.table()`` counts the reasons. Numbers in prompts are rounded, and
    `identify` gives its candidates the rounded numbers.

    Args:
        model: takes a prompt and returns a text; may be asynchronous, or take a list of prompts and return a list of
            texts (``batched=True``). `openai_model` makes one.
        format: words-to-numbers, letters (features are places in the alphabet), compact, digits, or a `Format`.
        name: name of the model and its settings; the function's name if None. Required with ``cache`` for a model of
            your own: answers are stored under it, so another model, or other settings, must have another name.
        decimals: decimals of numbers in prompts.
        order: order of the pairs: given, random (one order for each task), or distance, the nearest to the query last.
        scale: range to which each feature and the labels of a context are mapped; None leaves them as they are.
        features: names of the inputs; Feature 0, Feature 1, ... if None.
        cache: file of JSON lines with answers; a prompt in it is not sent again.
        most_calls, most_tokens: budget; predictions beyond it are nan.
        concurrency: prompts sent at the same time; if None 8, or 64 for a batched model.
        answer_decimals: decimals of answers; those of the prompts if None.

    >>> def last(prompt):  # repeats the last label
    ...     return prompt.split("Output:")[-2].split()[0]
    >>> learner = from_text(last)
    >>> learner(Context(torch.ones(1, 2, 1), torch.tensor([[[3.0], [4.0]]])), torch.ones(1, 1, 1))
    tensor([[[4.]]])
    """
    require_callable("model", model)
    if isinstance(format, str):
        require_choice("format", format, FORMATS)
        format = FORMATS[format]
    writing = _Writing(format, decimals, order, scale, features, answer_decimals)  # type: ignore[arg-type]
    if cache is not None and name is None and not hasattr(model, "settings"):
        refuse("name", "name the model and its settings where answers are kept", name, 'pass name="model, settings"')
    calls = CachedModel(
        model, name or display_name(model), cache=cache, most_calls=most_calls, most_tokens=most_tokens,
        concurrency=(64 if batched else 8) if concurrency is None else concurrency, batched=batched,
    )  # fmt: skip
    return TextLearner(calls, writing)


class _Scale(NamedTuple):
    """Map from numbers to those in a prompt, (number - shift) * factor; ``(*batch, 1, d)`` each."""

    shift: Tensor
    factor: Tensor

    def written(self, part: Tensor, decimals: int) -> Tensor:
        return ((part.detach().cpu().double() - self.shift) * self.factor).round(decimals=decimals)

    def read(self, part: Tensor) -> Tensor:
        return part / self.factor + self.shift


@frozen
class _Writing:
    """Settings for prompts, see `from_text`."""

    format: Format
    decimals: Whole
    order: Literal["given", "random", "distance"]
    scale: tuple[float, float] | None
    features: Sequence[str] | None
    answer_decimals: Whole | None

    def __post_init__(self) -> None:
        require_instance("format", self.format, Format)
        if self.scale is not None and self.scale[0] >= self.scale[1]:
            refuse("scale", "be a range, the lower end first", self.scale, "pass (0, 100), say")

    def prompts(self, context: Context, xq: Tensor) -> list[str]:
        """One prompt for each query."""
        if not all(bool(part.isfinite().all()) for part in (*context, xq)):
            refuse("context and xq", "be finite", "nan or inf in one of them", "leave those rows out")
        of_x, of_y = self.scales(context)
        parts = ((context.x, of_x), (context.y, of_y), (xq, of_x))
        x, y, queries = (scale.written(part, self.decimals).flatten(0, -3) for part, scale in parts)
        generator, prompts = stream(0, "order of pairs"), []
        for pairs, labels, several in zip(x, y, queries, strict=True):
            shuffled = torch.randperm(len(pairs), generator=generator)
            for query in several:
                rows = {
                    "given": torch.arange(len(pairs)),
                    "random": shuffled,
                    "distance": (pairs - query).norm(dim=-1).argsort(descending=True, stable=True),
                }[self.order]
                numbers = pairs[rows].tolist(), labels[rows, 0].tolist(), query.tolist()
                prompts.append(self.format.prompt(*numbers, self.features, self.decimals))
        return prompts

    def as_written(self, tasks: Episode) -> Episode:
        """Tasks with the numbers of the prompts."""
        of_x, of_y = self.scales(tasks.context)
        parts = ((tasks.context.x, of_x), (tasks.context.y, of_y), (tasks.xq, of_x))
        x, y, xq = (scale.read(scale.written(part, self.decimals)).to(part) for part, scale in parts)
        return Episode(Context(x, y), xq, tasks.yq)

    def scales(self, context: Context) -> tuple[_Scale, _Scale]:
        """Scales of each feature and of the labels of a context."""
        x, y = (self._scale(part.detach().cpu().double()) for part in context)
        return x, y

    def _scale(self, rows: Float[Tensor, "*batch n d"]) -> _Scale:
        if self.scale is None or not rows.shape[-2]:
            shape = (*rows.shape[:-2], 1, rows.shape[-1])
            return _Scale(torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64))
        low, high = rows.amin(-2, keepdim=True), rows.amax(-2, keepdim=True)
        bottom, top = self.scale
        factor = torch.where(high > low, (top - bottom) / (high - low), torch.ones_like(low))
        return _Scale(low - bottom / factor, factor)


class TextLearner:
    """Return type of `from_text`; in tables it has the model's name."""

    def __init__(self, calls: CachedModel, writing: _Writing) -> None:
        self.calls, self.writing = calls, writing
        self.asked = self.parsed = 0
        self.unread: Counter[str] = Counter()
        self.__name__ = calls.name

    def __repr__(self) -> str:
        return f"from_text({self.__name__})"

    @property
    def resolution(self) -> float:
        """Distance between two neighbouring answers; 0 for scaled labels."""
        decimals = self.writing.decimals if self.writing.answer_decimals is None else self.writing.answer_decimals
        return 10.0**-decimals if self.writing.scale is None else 0.0

    def table(self) -> Table:
        """Counts of prompts and numbers read, their cost (tokens are estimated), and the reasons of each nan.

        The model failed, refused the prompt, or was cut, at its limit of tokens say. The answer is empty, has no digits
        (no number), or its digits are not clearly one number.
        """
        calls, reasons = self.calls, self.calls.unanswered + self.unread
        row = {
            "asked": self.asked, "read": self.parsed, "parse rate": self.parsed / max(self.asked, 1),
            "from file": calls.from_file, "calls": calls.calls, "tokens": calls.tokens,
        }  # fmt: skip
        return Table([row | {reason: reasons[reason] for reason in REASONS}])

    def estimate(self, family: Any, calls: int, price: float | None = None) -> Table:
        """Estimate the tokens and the price of ``calls`` prompts on tasks of a family, without sending any.

        Args:
            price: price of a million tokens.
        """
        calls = require_count("calls", calls)
        episode = sample_tasks(family, 8, stream(0, "estimate"))
        prompts = self.writing.prompts(episode.context, episode.xq)
        tokens = calls * sum(map(len, prompts)) / len(prompts) / CHARACTERS
        cost = {} if price is None else {"price": tokens * price / 1e6}
        return Table([{"calls": calls, "tokens": round(tokens), **cost}])

    def as_written(self, tasks: Episode) -> Episode:
        """Tasks with the rounded numbers that the model reads, and the same right answers."""
        return self.writing.as_written(tasks)

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m 1"]:
        check_inputs(context, xq)
        if context.y.shape[-1] != 1:
            refuse("context.y", "have one target", context.y.shape[-1], "ask for one target after the other")
        texts = self.calls.ask(self.writing.prompts(context, xq))
        numbers = [math.nan if text is None else self._number(text) for text in texts]
        self.asked, self.parsed = self.asked + len(numbers), self.parsed + sum(map(math.isfinite, numbers))
        found = torch.tensor(numbers, dtype=torch.float64).reshape(*xq.shape[:-1], 1)
        found = self.writing.scales(context)[1].read(found).to(xq)
        return found.masked_fill(found.isinf(), math.nan)  # beyond the dtype

    def _number(self, text: str) -> float:
        number = self.writing.format.read(text, self.writing.decimals)
        if math.isfinite(number):
            return number
        self.unread["unclear number" if any(map(str.isdigit, text)) else "no number"] += 1
        return math.nan
