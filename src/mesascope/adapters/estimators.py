"""Estimators of scikit-learn as learners."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from mesascope.adapters.arrays import predicted
from mesascope.errors import ArgumentTypeError, require_package, shown
from mesascope.progress import tracked
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs
from mesascope.tasks.asking import UnansweredError, raised

__all__ = ["from_sklearn"]


def from_sklearn(estimator: Any) -> SklearnLearner:
    """A learner that fits a clone of a scikit-learn regressor to each context.

    Tasks are fitted one after another: pass ``compare(..., tasks=500)`` if the estimator is slow. Set its
    ``random_state`` if it is random; otherwise the same call gives other predictions. It predicts 0 from an empty
    context. Arrays have the context's precision, at least single. Libraries of linear algebra use one thread, as
    contexts are small.

    Args:
        estimator: an estimator with ``fit`` and ``predict``, or a pipeline; it is not changed.

    Raises:
        MissingPackageError: scikit-learn is not installed; ``pip install '.[sklearn]'``.
        ArgumentTypeError: the estimator is not a regressor, or is a class in place of an instance.
        ArgumentError: from a call, if the estimator raised an error, or returned no numbers ``(m, dy)``.
    """
    require_package("sklearn", "from_sklearn", "sklearn")
    # Some instances have predict only once they are fitted, but their class has it.
    both = (estimator, type(estimator))
    missing = [name for name in ("fit", "predict", "get_params") if not any(hasattr(one, name) for one in both)]
    if isinstance(estimator, type) or missing:
        remedy = "pass a regressor of scikit-learn"
        if isinstance(estimator, type):
            remedy = f"pass {estimator.__name__}()"
        elif missing == ["get_params"]:
            remedy = "make sklearn.base.BaseEstimator its base"
        raise ArgumentTypeError(
            f"estimator must have the methods fit, predict and get_params, but is {shown(estimator)}: {remedy}."
        )
    kind = getattr(_tags(estimator), "estimator_type", getattr(estimator, "_estimator_type", None))
    if kind not in ("regressor", None):
        raise ArgumentTypeError(
            f"estimator must be a regressor, but is {shown(estimator)} ({kind}): pass a regressor of scikit-learn."
        )
    return SklearnLearner(estimator)


@functools.cache
def _threads() -> Any:
    from threadpoolctl import ThreadpoolController  # a dependency of scikit-learn

    return ThreadpoolController()


def _tags(estimator: Any) -> Any:
    """Tags of an estimator; None before scikit-learn 1.6, or without BaseEstimator."""
    with contextlib.suppress(AttributeError):
        return estimator.__sklearn_tags__()
    return None


class SklearnLearner:
    """Return type of `from_sklearn`; in tables it has the estimator's name."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.__name__ = type(estimator).__name__

    def __repr__(self) -> str:
        return f"from_sklearn({' '.join(repr(self.estimator).split())})"

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        shape = (*xq.shape[:-1], context.y.shape[-1])
        dtype = torch.promote_types(xq.dtype, torch.float32)
        parts = (part.detach().cpu().to(dtype) for part in (*context, xq))
        x, y, queries = (part.flatten(0, -3) if part.ndim > 2 else part[None] for part in parts)
        tasks = tracked(zip(x, y, queries, strict=True), self.__name__, len(x))
        with _threads().limit(limits=1):
            answers = [self._answer(*task) for task in tasks]
        return torch.stack(answers).to(xq).reshape(shape) if answers else xq.new_zeros(shape)

    def _answer(self, x: Tensor, y: Tensor, xq: Tensor) -> Tensor:
        from sklearn.base import clone

        if not len(x) or not len(xq):
            return y.new_zeros(len(xq), y.shape[-1])
        kinds = getattr(_tags(self.estimator), "target_tags", None)
        # Many estimators take one target only without its axis, and multi-target estimators only with it.
        targets = y[:, 0] if y.shape[-1] == 1 and getattr(kinds, "single_output", True) else y
        try:
            fitted: Any = clone(self.estimator)
            fitted.fit(x.clone().numpy(), targets.clone().numpy())  # it may write into them, with copy_X=False
            answer = fitted.predict(xq.clone().numpy())
        except Exception as error:
            remedy = "convert tasks with .float()" if "dtype" in str(error) else "mend it, or draw longer contexts"
            if y.shape[-1] > 1:
                remedy = "if it takes one target, wrap it in sklearn.multioutput.MultiOutputRegressor"
            raise UnansweredError(
                f"estimator must predict {len(xq)} queries from x {tuple(x.shape)} and y {tuple(targets.shape)}, but "
                f"{self.__name__} raised {raised(error)}: {remedy}."
            ) from error
        return predicted(self.__name__, answer, (len(xq), y.shape[-1]))
