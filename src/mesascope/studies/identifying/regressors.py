"""What language models are compared with: regressors that read the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mesascope.tasks import Episode

__all__ = ["COUNTS", "LABELS", "MODEL", "PAIRS", "SLOW", "errors_by_pairs", "errors_with_all", "references"]

# Of a whole context.
PAIRS = 20
# Pairs that an algorithm may be told of.
COUNTS = tuple(range(1, PAIRS + 1))

# What regresses by text.
MODEL = "model"

# Those that take a batch of tasks, and those that take one at a time and are told of with all pairs alone.
LABELS = {
    "mean": "mean of labels", "last": "last label", "neighbour": "nearest neighbour", "neighbours": "3 neighbours",
    "kernel": "kernel ridge", "linear": "LinearRegression", "origin": "least squares", "bayes": "ridge, tuned",
}  # fmt: skip
SLOW = {"forest": "random forest", "boosting": "gradient boosting", "svr": "SVR"}


def references() -> dict[str, Any]:
    """Regressors that take a batch of tasks; ridge regression has the family's own ratio of noise to weights."""
    from mesascope import learners
    from mesascope.studies.identifying.regression_text import family

    return {
        "mean": learners.Mean(),
        "last": lambda context, xq: context.y[..., -1:, :].expand(*xq.shape[:-1], -1),
        "neighbour": learners.NearestNeighbours(1),
        "neighbours": _three_neighbours,
        "kernel": learners.KernelRidge("gaussian", 0.05, 2.0),
        "linear": learners.WithIntercept(learners.LeastSquares()),
        "origin": learners.LeastSquares(),
        "bayes": learners.LeastSquares((family().noise / family().w_scale) ** 2),
    }


def _three_neighbours(context: Any, xq: Any) -> Any:
    """The nearest alone where there are fewer."""
    from mesascope.learners import NearestNeighbours

    return NearestNeighbours(3 if context.x.shape[-2] >= 3 else 1)(context, xq)


def _estimators() -> dict[str, Any]:
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
    from sklearn.svm import SVR

    from mesascope.adapters import from_sklearn

    forest = RandomForestRegressor(max_depth=3, random_state=0)
    return {
        "forest": from_sklearn(forest),
        "boosting": from_sklearn(GradientBoostingRegressor(random_state=0)),
        "svr": from_sklearn(SVR()),
    }


def _error(learner: Any, context: Any, xq: Any, yq: Any) -> np.ndarray:
    """A number a task."""
    return (learner(context, xq) - yq).detach()[:, 0, 0].cpu().numpy()


def errors_by_pairs(model: Any, exact: Episode, read: Episode) -> dict[str, np.ndarray]:
    """Errors ``(numbers of pairs, tasks)`` of each regressor on the numbers that a model reads, and the labels."""
    from mesascope.tasks import Context

    known, rows = references(), []
    for count in COUNTS:
        first, whole = (Context(x[:, :count], y[:, :count]) for x, y in (read.context, exact.context))
        row = {name: _error(one, first, read.xq, exact.yq) for name, one in {MODEL: model, **known}.items()}
        row["unrounded"] = _error(known["bayes"], whole, exact.xq, exact.yq)
        row["label"] = exact.yq[:, 0, 0].cpu().numpy()
        rows.append(row)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def errors_with_all(model: Any, exact: Episode, read: Episode) -> dict[str, np.ndarray]:
    """With all pairs: of estimators that take a task at a time, and of the model where no pair has its own label."""
    from mesascope.tasks import Context

    shuffled = Context(read.context.x, read.context.y.flip(1))
    errors = {name: _error(one, read.context, read.xq, exact.yq) for name, one in _estimators().items()}
    return errors | {"shuffled": _error(model, shuffled, read.xq, exact.yq)}
