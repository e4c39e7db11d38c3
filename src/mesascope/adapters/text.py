"""Learners from language models: prompts contain pairs and a query, answers contain a number."""

from __future__ import annotations

import itertools
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
from mesascope.measurement import Measurement
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, RealTable, check_inputs
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
    """A learner from a language model.

    Each query has its own prompt: the pairs of the context, then the query. The prediction is nan, never 0, if an
    answer is missing or has no number; ``learner.table()`` counts the reasons. Numbers in prompts are rounded, and
    `identify` passes the same rounded numbers to its candidates.

    Args:
        model: maps a prompt to a text; may be asynchronous, or map a list of prompts to a list of texts
            (``batched=True``). Examples: `openai_model`, `LocalModel`.
        format: words-to-numbers, letters (values 1 to 26 of features become a to z), compact, digits, or a `Format`.
        name: name of the model and its settings; the function's name if None. Required with ``cache`` for your own
            model: answers are stored under this name, so use a new name when the model or its settings change.
        decimals: number of decimals in prompts.
        order: order of the pairs: given, random (one order per task), or distance (nearest to the query last).
        scale: range to which each feature and the labels of a context are mapped; no scaling if None.
        features: names of the inputs; Feature 0, Feature 1, ... if None.
        cache: JSON Lines file of answers; prompts in it are not sent again.
        most_calls, most_tokens: maximum number of calls and tokens; predictions beyond this budget are nan.
        concurrency: prompts sent at the same time; if None, 8, or 64 for a batched model.
        answer_decimals: number of decimals in answers; ``decimals`` if None.

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
        refuse("name", "name the model and its settings if there is a cache", name, 'pass name="model, settings"')
    calls = CachedModel(
        model, name or display_name(model), cache=cache, most_calls=most_calls, most_tokens=most_tokens,
        concurrency=(64 if batched else 8) if concurrency is None else concurrency, batched=batched,
    )  # fmt: skip
    return TextLearner(calls, writing)


class _Scale(NamedTuple):
    """Map from numbers to prompt numbers, (number - shift) * factor; each field is ``(*batch, 1, d)``."""

    shift: Tensor
    factor: Tensor

    def written(self, part: Tensor, decimals: int) -> Tensor:
        return ((part.detach().cpu().double() - self.shift) * self.factor).round(decimals=decimals)

    def read(self, part: Tensor) -> Tensor:
        return part / self.factor + self.shift


@frozen
class _Writing:
    """Prompt settings; see `from_text`."""

    format: Format
    decimals: Whole
    order: Literal["given", "random", "distance"]
    scale: tuple[float, float] | None
    features: Sequence[str] | None
    answer_decimals: Whole | None

    def __post_init__(self) -> None:
        if self.scale is not None and self.scale[0] >= self.scale[1]:
            refuse("scale", "be a range, the lower end first", self.scale, "pass (0, 100), say")

    def prompts(self, context: Context, xq: Tensor) -> list[str]:
        """Write one prompt per query."""
        if not all(bool(part.isfinite().all()) for part in (*context, xq)):
            refuse("each number of context and xq", "be finite", "nan or inf", "leave those rows out")
        parts = zip((*context, xq), self.scales(context), strict=True)
        x, y, queries = (scale.written(part, self.decimals).flatten(0, -3) for part, scale in parts)
        generator, prompts = stream(0, "order of pairs"), []
        for pairs, labels, several in zip(x, y, queries, strict=True):
            shuffled = torch.randperm(len(pairs), generator=generator)
            rows = shuffled if self.order == "random" else torch.arange(len(pairs))
            for query in several:
                if self.order == "distance":
                    rows = (pairs - query).norm(dim=-1).argsort(descending=True, stable=True)
                numbers = pairs[rows].tolist(), labels[rows, 0].tolist(), query.tolist()
                prompts.append(self.format.prompt(*numbers, self.features, self.decimals))
        return prompts

    def scales(self, context: Context) -> tuple[_Scale, _Scale, _Scale]:
        """Scales of a context's features, of its labels, and of queries."""
        x, y = (self._scale(part.detach().cpu().double()) for part in context)
        return x, y, x

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
        """Smallest difference between two answers; 0 for scaled labels."""
        decimals = self.writing.decimals if self.writing.answer_decimals is None else self.writing.answer_decimals
        return 10.0**-decimals if self.writing.scale is None else 0.0

    def table(self) -> Table:
        """Counts of prompts and parsed answers, the cost (estimated tokens), and the number of nans by reason.

        A prediction is nan if the model failed or refused the prompt, or the prompt was beyond the budget. It is also
        nan if the answer is cut (for example at the token limit), empty, without digits, or not clearly one number.
        """
        calls, reasons = self.calls, self.calls.unanswered + self.unread
        row = {
            "asked": self.asked, "read": self.parsed, "parse rate": self.parsed / max(self.asked, 1),
            "from file": calls.from_file, "calls": calls.calls, "tokens": calls.tokens,
        }  # fmt: skip
        return Table([row | {reason: reasons[reason] for reason in REASONS}])

    def estimate(self, family: Any, calls: int, price: float | None = None) -> Table:
        """Estimate tokens and price of ``calls`` prompts, without answers, on tasks of a family. Sends no prompts.

        ``price`` is that of a million tokens.
        """
        calls = require_count("calls", calls)
        episode = sample_tasks(family, 8, stream(0, "estimate"))
        prompts = self.writing.prompts(episode.context, episode.xq)
        tokens = calls * sum(map(len, prompts)) / len(prompts) / CHARACTERS
        cost = {} if price is None else {"price": tokens * price / 1e6}
        return Table([{"calls": calls, "tokens": round(tokens), **cost}])

    def as_written(self, tasks: Episode) -> Episode:
        """Tasks with the rounded numbers that the model reads, and unchanged targets."""
        numbers = zip((*tasks.context, tasks.xq), self.writing.scales(tasks.context), strict=True)
        x, y, xq = (scale.read(scale.written(part, self.writing.decimals)).to(part) for part, scale in numbers)
        return Episode(Context(x, y), xq, tasks.yq)

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m 1"]:
        check_inputs(context, xq)
        if context.y.shape[-1] != 1:
            refuse("context.y", "have one target", context.y.shape[-1], "predict one target at a time")
        texts = self.calls.ask(self.writing.prompts(context, xq))
        numbers = [math.nan if text is None else self._number(text) for text in texts]
        self.asked, self.parsed = self.asked + len(numbers), self.parsed + sum(map(math.isfinite, numbers))
        found = torch.tensor(numbers, dtype=torch.float64).reshape(*xq.shape[:-1], 1)
        found = self.writing.scales(context)[1].read(found).to(xq)
        return found.masked_fill(found.isinf(), math.nan)  # overflow in this dtype

    def _number(self, text: str) -> float:
        number = self.writing.format.read(text, self.writing.decimals)
        if math.isfinite(number):
            return number
        self.unread["unclear number" if any(map(str.isdigit, text)) else "no number"] += 1
        return math.nan


def names_matter(
    model: Callable[[Any], Any], table: RealTable | None = None, tasks: int = 50, seed: int = 0, **options: Any
) -> Table:
    """Errors of a language model on a real table with feature names, without names, and with exchanged names.

    An algorithm that ignores names has the same error in all cases. A smaller error with names, or a larger error with
    exchanged names (each input has the name of the next one), shows prior knowledge about the names, not learning in
    context. The formats compact and digits write no names, so that equal errors show nothing.

    Args:
        model: a language model; see `from_text`.
        table: source of the rows; diabetes if None.
        tasks: number of tasks, the same in each case.
        seed: seed for the rows.
        options: options of `from_text`, except ``features``.

    Returns:
        One row per case: the parse rate, the mean absolute error, and its increase over the case without names. The
        increase is over tasks with a prediction in both cases.

    >>> found = names_matter(lambda prompt: "150", tasks=4)
    >>> [(row["names"], row["more than without"].value) for row in found]
    [('own', 0.0), ('none', 0.0), ('exchanged', 0.0)]
    """
    table = RealTable() if table is None else table
    require_instance("table", table, RealTable)
    tasks = require_count("tasks", tasks, least=2)
    episode = table.sample(tasks, stream(seed, "names")).to(torch.float64)
    turned = list(itertools.islice(itertools.cycle(table.features), 1, 1 + table.d_in))  # the next feature's name
    errors, read = {}, {}
    for kind, names in (("own", table.features), ("none", None), ("exchanged", turned)):
        learner = from_text(model, features=names, **options)
        errors[kind] = (learner(episode.context, episode.xq) - episode.yq).abs().mean((-2, -1))
        read[kind] = learner.table()[0]["parse rate"]
    if not all(bool(one.isfinite().any()) for one in errors.values()):
        refuse("model", "answer with a number at least once", read, "print its answers, or choose another format")
    rows = []
    for kind, own in errors.items():
        both = own.isfinite() & errors["none"].isfinite()
        if not both.any():
            refuse("model", "answer some tasks with and without names", read, "ask about more tasks")
        rows.append({
            "names": kind, "parse rate": read[kind], "error": Measurement.of(own[own.isfinite()]),
            "more than without": Measurement.of((own - errors["none"])[both]),
        })  # fmt: skip
    return Table(rows)
