"""The algorithms that a learner is compared with, each with the parameters that are free in it."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mesascope import learners
from mesascope.adapters import from_sklearn
from mesascope.errors import (
    ArgumentError,
    ArgumentTypeError,
    require_callable,
    require_count,
    require_instance,
    shown,
)
from mesascope.learners import Range
from mesascope.records import facts, registered, with_plain_numbers
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Learner, LinearRegression

__all__ = ["Candidate", "candidates", "require_candidates"]

# Steps of descents whose steps have sizes of their own.
_SIZES = range(2, 6)
# Tasks under each condition that estimators of scikit-learn are fitted on: they take a task at a time.
_FEW = 16


@with_plain_numbers
@dataclass(frozen=True)
class Candidate:
    """An algorithm that a learner may run.

    Args:
        name: what the answer calls it.
        build: makes the learner from the free parameters, by name.
        free: each parameter's range.
        own_sizes: whether steps have sizes of their own, which are sought from one size for all.
        draws: makes the same algorithm with another seed, from the free parameters and ``seed=``, where it draws at
            random.
        most_tasks: that it is fitted on under each condition, two or more, for one that takes long; None for all.

    >>> ridge = Candidate("ridge", learners.LeastSquares, {"ridge": Range(1e-4, 100.0, "log")})
    >>> ridge.build(ridge=0.5)
    LeastSquares(ridge=0.5)
    """

    name: str
    build: Callable[..., Learner]
    free: Mapping[str, Range] = field(default_factory=dict)
    own_sizes: bool = False
    draws: Callable[..., Learner] | None = None
    most_tasks: int | None = None

    def __post_init__(self) -> None:
        require_instance("name", self.name, str)
        require_callable("build", self.build)
        require_instance("free", self.free, Mapping)
        for name, one in self.free.items():
            require_instance(f"free[{name!r}]", one, Range, "pass Range(low, high, scale)")
        if self.most_tasks is not None:
            require_count("most_tasks", self.most_tasks, least=2)  # one has no standard error


def candidates(family: Any = None, *, sklearn: bool = True) -> list[Candidate]:
    """The whole catalogue: every registered learner, and estimators of scikit-learn.

    Args:
        family: what tasks come from: a Bayesian learner of a pool needs one with a ``pool``.
        sklearn: whether to add scikit-learn's, where it is installed.

    >>> [one.name for one in candidates(sklearn=False)][:3]
    ['averaging', 'centred gradient-descent', 'centred least-squares']
    """
    found = [one for name in registered("learner") for one in _BUILT.get(name, _plainly)(name, family)]
    if sklearn and importlib.util.find_spec("sklearn"):
        found += _estimators()
    return found


def require_candidates(given: Iterable[Candidate]) -> list[Candidate]:
    """``given`` as a list; refuses what are no candidates, and names given twice."""
    if isinstance(given, Candidate) or not isinstance(given, Iterable):
        raise ArgumentTypeError(f"candidates must be a list of some, but is {shown(given)}: pass [candidate].")
    found = list(given)
    for one in found:
        require_instance("a candidate", one, Candidate, "pass Candidate(name, build, free)")
    if not found:
        raise ArgumentError("candidates must hold one at least, but are none: pass some, or None for the catalogue.")
    names = [one.name for one in found]
    if len({*names}) < len(names):
        raise ArgumentError(f"candidates must have names of their own, but are {shown(names)}: rename some.")
    return found


def _plainly(name: str, family: Any) -> list[Candidate]:
    """A learner that is built from nothing but its free parameters."""
    return [Candidate(name, registered("learner")[name], facts("learner", name)["free"])]


def _descent(name: str, family: Any) -> list[Candidate]:
    one = _plainly(name, family)[0]
    real = {parameter: range for parameter, range in one.free.items() if parameter != "steps"}

    def steps(count: int) -> Candidate:
        build = functools.partial(one.build, steps=count)
        return Candidate(f"{name} of {count} sizes", build, real, own_sizes=True)

    return [one, *map(steps, _SIZES)]


def _summed(name: str, family: Any) -> list[Candidate]:
    """Steps in the unit of contexts as long as the family's, where it says how long these are."""
    pairs = getattr(family, "n_context", 1)

    def summed(one: Candidate) -> Candidate:
        build = lambda **own: learners.Summed(one.build(**own), pairs)  # type: ignore[arg-type]  # noqa: E731
        return dataclasses.replace(one, name=f"{name} {one.name}", build=build)

    both = ("gradient-descent", "gradient-descent-plus-plus")
    return [summed(one) for descent in both for one in _descent(descent, family)]


def _centred(name: str, family: Any) -> list[Candidate]:
    descent = facts("learner", "gradient-descent")["free"]
    ridge = facts("learner", "least-squares")["free"]
    return [
        Candidate("centred gradient-descent", lambda **own: learners.Centred(learners.GradientDescent(**own)), descent),
        Candidate("centred least-squares", lambda **own: learners.Centred(learners.LeastSquares(**own)), ridge),
    ]


def _with_intercept(name: str, family: Any) -> list[Candidate]:
    """scikit-learn's LinearRegression, Ridge and Lasso."""
    ridge, alpha = facts("learner", "least-squares")["free"], facts("learner", "lasso")["free"]
    return [
        Candidate("least-squares with-intercept", lambda: learners.WithIntercept(learners.LeastSquares())),
        Candidate("ridge with-intercept", lambda **own: learners.WithIntercept(learners.LeastSquares(**own)), ridge),
        Candidate("lasso with-intercept", lambda **own: learners.WithIntercept(learners.Lasso(**own)), alpha),
    ]


def _smoothers(name: str, family: Any) -> list[Candidate]:
    free = facts("learner", name)["free"]

    def smoother(kernel: str) -> Callable[..., Learner]:
        return lambda **own: learners.KernelSmoother(kernel, **own)

    return [Candidate(f"{kernel} {name}", smoother(kernel), free) for kernel in learners.KERNELS]


def _kernel_ridge(name: str, family: Any) -> list[Candidate]:
    free = facts("learner", name)["free"]

    def regression(kernel: str) -> Callable[..., Learner]:
        return lambda **own: learners.KernelRidge(kernel, **own)

    return [Candidate(f"{kernel} {name}", regression(kernel), free) for kernel in ("gaussian", "laplace")]


def _least_squares(name: str, family: Any) -> list[Candidate]:
    return [
        Candidate("minimum-norm least-squares", learners.LeastSquares),
        Candidate("ridge least-squares", learners.LeastSquares, facts("learner", name)["free"]),
    ]


def _on_features(name: str, family: Any) -> list[Candidate]:
    return [
        Candidate(
            "kernel-gradient-descent on squares",
            lambda **own: learners.KernelGradientDescent(_squares, **own),
            facts("learner", name)["free"],
        )
    ]


def _squares(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n f"]:
    """1, x, and all products of two entries."""
    products = (x[..., :, None] * x[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(x[..., :1]), x, products], -1)


def _of_a_pool(name: str, family: Any) -> list[Candidate]:
    if getattr(family, "pool", None) is None or not isinstance(family, LinearRegression):
        return []
    teachers = family.teachers().double()
    return [
        Candidate(name, lambda **own: learners.BayesPool(teachers, **own), facts("learner", name)["free"]),
    ]


def _preconditioned(name: str, family: Any) -> list[Candidate]:
    d = getattr(family, "d_in", None)
    if d is None:
        return []
    return [
        Candidate(
            f"{name}, one step",
            lambda eta: learners.PreconditionedGradientDescent(eta * torch.eye(d, dtype=torch.float64)),
            {"eta": facts("learner", "gradient-descent")["free"]["eta"]},
            own_sizes=True,
        )
    ]


# How candidates are made of registered learners that are not built from their free parameters alone.
_BUILT: dict[str, Callable[[str, Any], list[Candidate]]] = {
    "gradient-descent": _descent,
    "gradient-descent-plus-plus": _descent,
    "centred": _centred,
    "summed": _summed,
    "kernel-smoother": _smoothers,
    "kernel-ridge": _kernel_ridge,
    "with-intercept": _with_intercept,
    "least-squares": _least_squares,
    "kernel-gradient-descent": _on_features,
    "bayes-pool": _of_a_pool,
    "preconditioned-gradient-descent": _preconditioned,
}


def _estimators() -> list[Candidate]:
    """Regressors of scikit-learn that no learner above is equal to."""
    from sklearn.ensemble import AdaBoostRegressor, GradientBoostingRegressor, RandomForestRegressor
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.neural_network import MLPRegressor
    from sklearn.svm import SVR
    from sklearn.tree import DecisionTreeRegressor

    depth = {"max_depth": Range(1, 6, "integer")}
    return [
        _estimator(
            "sklearn KNeighborsRegressor by distance", KNeighborsRegressor, {"n_neighbors": Range(1, 10, "integer")},
            weights="distance",
        ),
        _estimator("sklearn DecisionTreeRegressor", DecisionTreeRegressor, depth, random=True),
        _estimator("sklearn RandomForestRegressor", RandomForestRegressor, depth, random=True, n_estimators=20),
        _estimator("sklearn GradientBoostingRegressor", GradientBoostingRegressor, depth, random=True),
        _estimator("sklearn AdaBoostRegressor", AdaBoostRegressor, random=True, n_estimators=20),
        _estimator("sklearn SVR", SVR, {"C": Range(0.1, 100.0, "log")}),
        _estimator("sklearn MLPRegressor", MLPRegressor, random=True, max_iter=200),
    ]  # fmt: skip


def _estimator(
    name: str, kind: Any, free: Mapping[str, Range] | None = None, random: bool = False, **fixed: Any
) -> Candidate:
    def build(**own: Any) -> Learner:
        return _Remembered(kind, {**fixed, **({"random_state": 0} if random else {}), **own})

    def again(seed: int, **own: Any) -> Learner:
        return _Remembered(kind, {**fixed, "random_state": seed, **own})

    return Candidate(name, build, free or {}, draws=again if random else None, most_tasks=_FEW)


class _Remembered:
    """An estimator of scikit-learn as a learner. What it has answered lately it answers again at once."""

    def __init__(self, kind: Any, settings: Mapping[str, Any]) -> None:
        self.kind, self.settings = kind, tuple(settings.items())

    def __call__(self, context: Context, xq: Float[Tensor, "tasks m dx"]) -> Float[Tensor, "tasks m dy"]:
        tasks = zip(*(part.detach().double().cpu() for part in (*context, xq)), strict=True)
        answers = [_answered(self.kind, self.settings, *(_Rows(part) for part in task)) for task in tasks]
        return torch.stack(answers).to(xq)


class _Rows:
    """A matrix that is the same as another of the same numbers."""

    def __init__(self, rows: Float[Tensor, "n d"]) -> None:
        self.rows, self.key = rows, (tuple(rows.shape), rows.numpy().tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rows) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@functools.lru_cache(1 << 15)
def _answered(kind: Any, settings: tuple[tuple[str, Any], ...], x: _Rows, y: _Rows, xq: _Rows) -> Tensor:
    import sklearn

    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):  # most of a small fit's time
        return from_sklearn(kind(**dict(settings)))(Context(x.rows, y.rows), xq.rows)
