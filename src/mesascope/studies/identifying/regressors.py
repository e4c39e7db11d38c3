"""Regression tasks as text of numbers, language models trained on it, and regressors that read the same numbers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import adapters, learners, nets, tasks, training
from mesascope.streams import stream
from mesascope.study import Line

if TYPE_CHECKING:
    from torch import Tensor

# Pairs of a whole context, and the numbers of pairs that regressors are given.
PAIRS = 20
COUNTS = tuple(range(1, PAIRS + 1))
# Tokens of a line: input, arrow, label, end.
_LINE = 4

# The name of the language model.
MODEL = "model"
# Regressors that take a batch of tasks, and slow ones that take one task at a time and are fitted to all pairs only.
LABELS = {
    "mean": "mean of labels", "last": "last label", "neighbour": "nearest neighbour", "neighbours": "3 neighbours",
    "kernel": "kernel ridge", "linear": "LinearRegression", "origin": "least squares", "bayes": "ridge, tuned",
}  # fmt: skip
SLOW = {"forest": "random forest", "boosting": "gradient boosting", "svr": "SVR"}
SHOWN = {MODEL: "language model", **LABELS}


@functools.cache
def family() -> tasks.LinearRegression:
    """Tasks "x -> w x + noise" with positive inputs, as most numbers in text are positive."""
    return tasks.LinearRegression(n_context=PAIRS, d_in=1, x="exponential", x_scale=1.2, w_scale=0.8, noise=0.2)


def drawn(family: Any, count: int, seed: int, name: str) -> tasks.Episode:
    """Tasks of a seed in double precision; each name has its own tasks."""
    import torch

    return family.sample(count, stream(seed, name)).to(torch.float64)


@functools.cache
def words() -> adapters.NumberTokenizer:
    """Tokenizer of numbers with one decimal."""
    return adapters.NumberTokenizer(largest=19.9, decimals=1)


def network(width: int, layers: int) -> nets.LanguageModelConfig:
    """Config of a language model: layers of softmax attention with four heads, each with an MLP."""
    attention = nets.AttentionConfig(width, 4)
    transformer = nets.CausalTransformerConfig(attention, layers, "softmax", mlp=4, layer_norm=True)
    return nets.LanguageModelConfig(transformer, len(words()), _LINE * (PAIRS + 1))


def tokens_of(tasks: tasks.Episode) -> Tensor:
    """Tokens ``(*batch, t)`` of each task: the pairs, the query, and the query's label."""
    import torch

    (x, y), xq, yq = tasks
    x, y = (words().of_numbers(torch.cat(both, -2)) for both in ((x, xq), (y, yq)))
    arrow, end = (torch.full_like(x, words().signs[sign]) for sign in ("->", "\n"))
    return torch.cat([x, arrow, y, end], -1).flatten(-2)


def label_loss(model: Any, tasks: tasks.Episode) -> Tensor:
    """Mean cross-entropy of labels given the text before them, in nats; one number per member of an ensemble."""
    from torch.nn.functional import cross_entropy

    tokens = tokens_of(tasks)
    logits = model(tokens)[..., _LINE // 2 - 1 :: _LINE, :]
    losses = cross_entropy(logits.movedim(-1, 1), tokens[..., _LINE // 2 :: _LINE], reduction="none")
    return losses.flatten(1).mean(1) if isinstance(model, training.Ensemble) else losses.mean()


def reader(model: Any, read: str = "mean") -> adapters.TextLearner:
    """A trained model as a learner; see `from_language_model`."""
    return adapters.from_language_model(model.eval(), words(), read)


def references() -> dict[str, Any]:
    """Regressors that take a batch of tasks; ridge regression has the family's own ratio of noise to weights."""
    return {
        "mean": learners.Mean(),
        "last": lambda context, xq: context.y[..., -1:, :].expand(*xq.shape[:-1], -1),
        "neighbour": learners.NearestNeighbours(1),
        # One neighbour if there are fewer than three pairs.
        "neighbours": lambda context, xq: learners.NearestNeighbours(3 if context.x.shape[-2] >= 3 else 1)(context, xq),
        "kernel": learners.KernelRidge("gaussian", 0.05, 2.0),
        "linear": learners.WithIntercept(learners.LeastSquares()),
        "origin": learners.LeastSquares(),
        "bayes": learners.LeastSquares((family().noise / family().w_scale) ** 2),
    }


def _error(learner: Any, context: Any, xq: Any, yq: Any) -> np.ndarray:
    """Prediction minus target of the query of each task."""
    return (learner(context, xq) - yq).detach()[:, 0, 0].cpu().numpy()


def errors_by_pairs(model: Any, exact: tasks.Episode, read: tasks.Episode) -> dict[str, np.ndarray]:
    """Errors ``(pairs, tasks)`` on the numbers that the model reads, of ridge also on exact numbers; and labels."""
    known, rows = references(), []
    for count in COUNTS:
        first, whole = (tasks.Context(x[:, :count], y[:, :count]) for x, y in (read.context, exact.context))
        row = {name: _error(one, first, read.xq, exact.yq) for name, one in {MODEL: model, **known}.items()}
        row["unrounded"] = _error(known["bayes"], whole, exact.xq, exact.yq)
        row["label"] = exact.yq[:, 0, 0].cpu().numpy()
        rows.append(row)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def errors_with_all(model: Any, exact: tasks.Episode, read: tasks.Episode) -> dict[str, np.ndarray]:
    """Errors with all pairs, of the slow regressors and of the model with labels in reverse order (``shuffled``)."""
    from sklearn import ensemble, svm

    made = {
        "forest": ensemble.RandomForestRegressor(max_depth=3, random_state=0),
        "boosting": ensemble.GradientBoostingRegressor(random_state=0),
        "svr": svm.SVR(),
    }
    known, shuffled = read.context, tasks.Context(read.context.x, read.context.y.flip(1))
    errors = {name: _error(adapters.from_sklearn(one), known, read.xq, exact.yq) for name, one in made.items()}
    return errors | {"shuffled": _error(model, shuffled, read.xq, exact.yq)}


def marks(rows: Mapping[str, np.ndarray]) -> list[Line]:
    """A mark for each set of tasks, in a column for each label."""
    return [Line(np.full(len(values), place), values, place / len(rows), label, marks="o")
            for place, (label, values) in enumerate(rows.items())]  # fmt: skip
