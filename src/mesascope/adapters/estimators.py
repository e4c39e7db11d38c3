"""Estimators of scikit-learn as learners."""

from __future__ import annotations

from typing import Any

import torch

from mesascope.errors import ArgumentTypeError, require_package, shown
from mesascope.progress import tracked
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs

__all__ = ["from_sklearn"]


def from_sklearn(estimator: Any) -> SklearnLearner:
    """A learner that fits a clone of a scikit-learn regressor to each context and has it predict the queries.

    It fits one task after another: pass ``compare(..., tasks=500)`` to a slow one. One that draws at random should have
    its ``random_state`` set, or the same call gives other answers. Predicts 0 from an empty context.

    Args:
        estimator: an estimator with ``fit`` and ``predict``, or a pipeline of such; it stays as it is.

    Raises:
        MissingPackageError: scikit-learn is not installed; ``pip install '.[sklearn]'``.
        ArgumentTypeError: what is no regressor, or a class in place of an instance.
    """
    require_package("sklearn", "from_sklearn", "sklearn")
    if isinstance(estimator, type) or not all(hasattr(estimator, name) for name in ("fit", "predict", "get_params")):
        remedy = f"pass {estimator.__name__}()" if isinstance(estimator, type) else "pass a regressor of scikit-learn"
        raise ArgumentTypeError(
            f"estimator must have the methods fit, predict and get_params, but is {shown(estimator)}: {remedy}."
        )
    kind = _kind(estimator)
    if kind not in ("regressor", None):
        raise ArgumentTypeError(
            f"estimator must be a regressor, but is {shown(estimator)}, a {kind}: pass a regressor of scikit-learn."
        )
    return SklearnLearner(estimator)


def _kind(estimator: Any) -> str | None:
    """What it says that it is, as scikit-learn from 1.6 on or before it asks; None for one that does not say."""
    if hasattr(estimator, "__sklearn_tags__"):
        return estimator.__sklearn_tags__().estimator_type
    return getattr(estimator, "_estimator_type", None)


class SklearnLearner:
    """What `from_sklearn` returns; in tables it has the estimator's name."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.__name__ = type(estimator).__name__

    def __repr__(self) -> str:
        return f"from_sklearn({' '.join(repr(self.estimator).split())})"

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        shape = (*xq.shape[:-1], context.y.shape[-1])
        x, y, queries = (
            part.detach().cpu().flatten(0, -3) if part.ndim > 2 else part.detach().cpu()[None]
            for part in (context.x, context.y, xq)
        )
        tasks = tracked(zip(x, y, queries, strict=True), self.__name__, len(x))
        answers = [self._answer(*task) for task in tasks]
        return torch.stack(answers).to(xq).reshape(shape) if answers else xq.new_zeros(shape)

    def _answer(self, x: Tensor, y: Tensor, xq: Tensor) -> Tensor:
        from sklearn.base import clone

        if not len(x) or not len(xq):
            return y.new_zeros(len(xq), y.shape[-1])
        targets = y[:, 0] if y.shape[-1] == 1 else y  # several estimators take one target without its axis only
        fitted: Any = clone(self.estimator)
        predicted = fitted.fit(x.numpy(), targets.numpy()).predict(xq.numpy())
        return torch.as_tensor(predicted).reshape(len(xq), y.shape[-1])
