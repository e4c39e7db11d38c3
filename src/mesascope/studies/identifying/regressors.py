"""What language models are compared with: regressors that read the same numbers."""

from __future__ import annotations

from typing import Any

__all__ = ["LABELS", "PAIRS", "SLOW", "estimators", "references"]

# Of a whole context.
PAIRS = 20

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
        "neighbours": learners.NearestNeighbours(3),
        "kernel": learners.KernelRidge("gaussian", 0.05, 2.0),
        "linear": learners.WithIntercept(learners.LeastSquares()),
        "origin": learners.LeastSquares(),
        "bayes": learners.LeastSquares((family().noise / family().w_scale) ** 2),
    }


def estimators() -> dict[str, Any]:
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
    from sklearn.svm import SVR

    from mesascope.adapters import from_sklearn

    forest = RandomForestRegressor(max_depth=3, random_state=0)
    return {
        "forest": from_sklearn(forest),
        "boosting": from_sklearn(GradientBoostingRegressor(random_state=0)),
        "svr": from_sklearn(SVR()),
    }
