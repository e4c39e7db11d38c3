"""Learners from functions of NumPy arrays and from scikit-learn estimators."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, raised, refuse, require_callable, require_package, shown
from mesascope.evidence.numbers import unmasked
from mesascope.progress import tracked
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs
from mesascope.tasks.calling import LearnerError, display_name, takes


def from_numpy(function: Callable[..., Any]) -> NumpyLearner:
    """A learner from ``function(x, y, xq)``, which is called once per task, in double precision.

    Args:
        function: takes x ``(n, dx)``, y ``(n, dy)`` and queries ``(m, dx)``; returns ``(m, dy)``, or ``(m,)`` for one
            target. It may modify its arguments in place.

    Raises:
        ArgumentTypeError: the function does not take these three arguments.
        ArgumentError: from a call, if the function does not return numbers ``(m, dy)``.

    >>> import numpy as np
    >>> last = from_numpy(lambda x, y, xq: np.repeat(y[-1:], len(xq), axis=0))
    >>> last(Context(torch.ones(1, 2, 1), torch.tensor([[[3.0], [4.0]]])), torch.ones(1, 1, 1))
    tensor([[[4.]]])
    """
    require_callable("function", function)
    if not takes(function, (None,) * 3):
        raise ArgumentTypeError(
            f"function must take (x, y, xq) for from_numpy, but {display_name(function)} does not: write it so, or "
            "leave from_numpy out if it takes (context, xq)."
        )
    return NumpyLearner(function)


class NumpyLearner:
    """Return type of `from_numpy`; in tables it has the function's name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = display_name(function)

    def __repr__(self) -> str:
        return f"from_numpy({self.__name__})"

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        return _by_task(self.__name__, self.function, context, xq, torch.float64)


def _by_task(
    name: str, function: Callable[..., Any], context: Context, xq: Float[Tensor, "*batch m dx"], dtype: torch.dtype
) -> Float[Tensor, "*batch m dy"]:
    """Call ``function(x, y, xq)`` on copies of each task's arrays; error messages use ``name``."""
    check_inputs(context, xq)
    shape = (*xq.shape[:-1], context.y.shape[-1])
    parts = (part.detach().cpu().to(dtype) for part in (*context, xq))
    tasks = zip(*(part.flatten(0, -3) if part.ndim > 2 else part[None] for part in parts), strict=True)
    answers = [
        _predicted(name, function(*(part.clone().numpy() for part in task)), shape[-2:])
        for task in tracked(tasks, name, xq.shape[:-2].numel())
    ]
    return torch.stack(answers).to(xq).reshape(shape) if answers else xq.new_zeros(shape)


def _predicted(name: str, answer: Any, shape: tuple[int, ...]) -> Float[Tensor, "m dy"]:
    """Convert the answer of ``name`` (array, tensor or lists) to float64; the last axis may be missing if dy = 1.

    Raises:
        ArgumentError: the answer has the wrong shape, or entries that are not real numbers.
    """
    try:
        found = unmasked(answer.detach().cpu().double() if isinstance(answer, Tensor) else answer)
    except (TypeError, ValueError, RuntimeError):
        found = np.array(None)
    if isinstance(answer, tuple) or found.dtype.kind not in "biuf":  # a tuple may be (mean, error)
        of = f" of {answer.dtype}" if isinstance(answer, np.ndarray) else ""
        raise ArgumentError(
            f"{name} must return numbers {shape}, but returned a {type(answer).__name__}{of}: return an array of "
            "floats."
        )
    if found.shape != shape and (shape[-1] != 1 or found.shape != shape[:1]):
        refuse(f"the answer of {name}", f"have shape {shape}", found.shape, "return (m, dy)")
    return torch.as_tensor(found.astype(np.float64)).reshape(shape)


def from_sklearn(estimator: Any) -> SklearnLearner:
    """A learner that fits a clone of a scikit-learn regressor to each context.

    Tasks are fitted one after another: pass ``compare(..., tasks=500)`` if the estimator is slow. If the estimator is
    random, set its ``random_state`` for reproducible predictions. An empty context gives predictions of 0. Arrays have
    the queries' dtype, but at least float32. Linear algebra runs on one thread, as contexts are small.

    Args:
        estimator: a regressor or a pipeline that ends in one; it is not changed.

    Raises:
        MissingPackageError: scikit-learn is not installed; ``pip install '.[sklearn]'``.
        ArgumentTypeError: the estimator is not a regressor (``fit``, ``predict``, ``get_params``), or is a class.
        ArgumentError: from a call, if the estimator fails or does not return numbers ``(m, dy)``.
    """
    require_package("sklearn", "from_sklearn", "sklearn")
    # Some instances get predict only after fitting; their class always has it.
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
    """Tags of an estimator; None before scikit-learn 1.6 and for classes that do not inherit BaseEstimator."""
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
        with _threads().limit(limits=1):
            return _by_task(self.__name__, self._answer, context, xq, torch.promote_types(xq.dtype, torch.float32))

    def _answer(self, x: np.ndarray, y: np.ndarray, xq: np.ndarray) -> Any:
        from sklearn.base import clone
        from sklearn.pipeline import Pipeline

        if not len(x) or not len(xq):
            return np.zeros((len(xq), y.shape[-1]))
        last = self.estimator
        while isinstance(last, Pipeline) and last.steps:  # which does not pass on these tags of its last step
            last = last.steps[-1][1]
        kinds = getattr(_tags(last), "target_tags", None)
        # Most estimators need a single target as (n,); multi-target estimators need (n, 1).
        targets = y[:, 0] if y.shape[-1] == 1 and getattr(kinds, "single_output", True) else y
        try:
            fitted: Any = clone(self.estimator)
            fitted.fit(x, targets)
            return fitted.predict(xq)
        except Exception as error:
            remedy = "convert tasks with .float()" if "dtype" in str(error) else "mend it, or draw longer contexts"
            if y.shape[-1] > 1:
                remedy = "if it takes one target, wrap it in sklearn.multioutput.MultiOutputRegressor"
            raise LearnerError(
                f"estimator must predict {len(xq)} queries from x {x.shape} and y {targets.shape}, but "
                f"{self.__name__} raised {raised(error)}: {remedy}."
            ) from error
