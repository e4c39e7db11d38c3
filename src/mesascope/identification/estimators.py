"""Candidates from scikit-learn regressors that are not learners of mesascope."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from mesascope.adapters import from_sklearn
from mesascope.identification.candidate import Candidate
from mesascope.identification.verdict import ENOUGH
from mesascope.learners import Range
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Learner

_DEPTHS = {"max_depth": Range(1, 6, "integer")}
_COUNTS = Range(1, 5, "integer")


def candidates() -> list[Candidate]:
    """One candidate per regressor; ``random`` regressors are seeded.

    They take one task at a time, so the comparison uses the minimum number of tasks, `ENOUGH`.
    """
    from sklearn import ensemble, linear_model, neural_network, svm, tree

    return [
        _candidate(linear_model.BayesianRidge, "least squares"),
        _candidate(linear_model.HuberRegressor, "least squares", {"epsilon": Range(1.05, 3.0, "log")}),
        _candidate(linear_model.OrthogonalMatchingPursuit, "sparse regression", {"n_nonzero_coefs": _COUNTS}),
        _candidate(linear_model.Lars, "sparse regression", {"n_nonzero_coefs": _COUNTS}),
        _candidate(linear_model.LassoCV, "sparse regression", cv=3),
        _candidate(linear_model.SGDRegressor, "descent", random=True),
        _candidate(svm.SVR, "kernel regression", {"C": Range(0.1, 100.0, "log")}),
        _candidate(_gaussian_process, "kernel regression", name="GaussianProcessRegressor"),
        _candidate(tree.DecisionTreeRegressor, "trees", _DEPTHS, random=True),
        _candidate(tree.DecisionTreeRegressor, "trees", random=True, name="DecisionTreeRegressor of any depth"),
        _candidate(ensemble.RandomForestRegressor, "trees", _DEPTHS, random=True, n_estimators=20),
        _candidate(ensemble.GradientBoostingRegressor, "trees", _DEPTHS, random=True),
        _candidate(ensemble.AdaBoostRegressor, "trees", random=True, n_estimators=20),
        _candidate(neural_network.MLPRegressor, "small networks", random=True, max_iter=200),
    ]  # fmt: skip


def _gaussian_process(**own: Any) -> Any:
    """Gaussian process whose length scale and noise maximise the marginal likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    return GaussianProcessRegressor(kernels.RBF() + kernels.WhiteKernel(), **own)


def _candidate(
    kind: Any,
    family: str,
    free: Mapping[str, Range] | None = None,
    *,
    random: bool = False,
    name: str = "",
    **fixed: Any,
) -> Candidate:
    def build(**own: Any) -> Learner:
        return _Cached(kind, {**fixed, **({"random_state": 0} if random else {}), **own})

    def again(seed: int, **own: Any) -> Learner:
        return _Cached(kind, {**fixed, "random_state": seed, **own})

    name = f"sklearn {name or kind.__name__}"
    return Candidate(name, build, free or {}, family, draws=again if random else None, most_tasks=ENOUGH, costly=True)


class _Cached:
    """A scikit-learn estimator as a learner, with a cache of recent tasks."""

    def __init__(self, kind: Any, settings: Mapping[str, Any]) -> None:
        self.kind, self.settings = kind, tuple(settings.items())

    def __call__(self, context: Context, xq: Float[Tensor, "tasks m dx"]) -> Float[Tensor, "tasks m dy"]:
        tasks = zip(*(part.detach().double().cpu() for part in (*context, xq)), strict=True)
        answers = [_answered(self.kind, self.settings, *(_Rows(part) for part in task)) for task in tasks]
        return torch.stack(answers).to(xq)


class _Rows:
    """A hashable matrix, compared by its numbers."""

    def __init__(self, rows: Float[Tensor, "n d"]) -> None:
        self.rows, self.key = rows, (tuple(rows.shape), rows.numpy().tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rows) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@functools.lru_cache(1 << 15)
def _answered(kind: Any, settings: tuple[tuple[str, Any], ...], x: _Rows, y: _Rows, xq: _Rows) -> Tensor:
    import sklearn

    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):  # these checks are slow
        return from_sklearn(kind(**dict(settings)))(Context(x.rows, y.rows), xq.rows)
