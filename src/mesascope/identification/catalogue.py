"""Catalogue of candidate algorithms, by family."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from mesascope import learners
from mesascope.evidence.tables import Table
from mesascope.identification import estimators
from mesascope.identification.candidate import FAMILIES, Candidate
from mesascope.learners import Range
from mesascope.records import facts
from mesascope.shapes import Tensor
from mesascope.tasks import LinearRegression

# Numbers of steps for descents with one size per step.
_SIZES = range(2, 6)
_NEIGHBOURS = {"k": Range(1, 10, "integer")}
_COMPONENTS = {"count": Range(1, 10, "integer")}


class Catalogue(list[Candidate]):
    """List of candidates, printed as a table by family of algorithms.

    Costly candidates are compared only if the learner runs no cheap candidate, in the order of the list, until one
    equals the learner.
    """

    def __repr__(self) -> str:
        return repr(
            Table(
                {
                    "family": one.family,
                    "candidate": one.name,
                    "free parameters": ", ".join(one.free),
                    "costly": "yes" if one.costly else "",
                }
                for one in sorted(self, key=lambda one: FAMILIES.index(one.family))
            )
        )


def candidates(family: Any = None, *, sklearn: bool = True) -> Catalogue:
    """Complete catalogue: the learners of `mesascope.learners`, and scikit-learn estimators.

    `identify` also compares the nearest candidates with clipping (to the range of the context's labels) or label
    copying (the label nearest to the prediction), if the learner's answers suggest either.

    Args:
        family: family of tasks. Some candidates need its attributes: the Bayesian pool learner ``pool``, summed
            descents ``n_context``, and the preconditioner ``d_in``.
        sklearn: add scikit-learn's estimators, if it is installed.

    >>> [one.name for one in candidates(sklearn=False)][:4]
    ['zero', 'constant', 'mean', 'last label']
    """
    found = Catalogue(one for kind in _KINDS for one in kind(family))
    if sklearn and importlib.util.find_spec("sklearn"):
        found += estimators.candidates()
    return found


def _constants_and_averages(family: Any) -> Iterator[Candidate]:
    yield Candidate("zero", learners.Zero, family="constants")
    yield Candidate("constant", learners.Constant, facts("learner", "constant")["free"], "constants", formula=_mean)
    yield Candidate("mean", learners.Mean, family="averages")
    yield Candidate("last label", learners.LastLabel, family="averages")


def _mean(answers: Mapping[str, Tensor]) -> dict[str, float]:
    """Best-fitting constant; all conditions have the same weight."""
    return {"value": float(torch.stack([one.mean() for one in answers.values()]).mean())}


def _neighbours(family: Any) -> Iterator[Candidate]:
    def nearest(metric: str, weights: str) -> Callable[..., nn.Module]:
        return functools.partial(learners.NearestNeighbours, metric=metric, weights=weights)

    def standardised(k: int) -> nn.Module:
        return learners.Standardised(learners.NearestNeighbours(k))

    yield Candidate("nearest-neighbours", nearest("euclidean", "uniform"), _NEIGHBOURS, "neighbours")
    yield Candidate("nearest-neighbours by distance", nearest("euclidean", "distance"), _NEIGHBOURS, "neighbours")
    yield Candidate("manhattan nearest-neighbours", nearest("manhattan", "uniform"), _NEIGHBOURS, "neighbours")
    yield Candidate("standardised nearest-neighbours", standardised, _NEIGHBOURS, "neighbours")
    free = facts("learner", "kernel-smoother")["free"]
    for kernel in learners.KERNELS:
        build = functools.partial(learners.KernelSmoother, kernel)
        yield Candidate(f"{kernel} kernel-smoother", build, free, "neighbours")


def _kernel_ridge(family: Any) -> Iterator[Candidate]:
    free = facts("learner", "kernel-ridge")["free"]
    for kernel in learners.RIDGE_KERNELS:
        build = functools.partial(learners.KernelRidge, kernel)
        yield Candidate(f"{kernel} kernel-ridge", build, free, "kernel regression")


def _descents(family: Any) -> Iterator[Candidate]:
    yield Candidate("averaging", learners.Averaging, family="descent")
    pairs = getattr(family, "n_context", 1)
    for name, kind in _DESCENTS.items():
        free = facts("learner", name)["free"]
        yield from _of_sizes(name, kind, free)
        # Step sizes refer to the family's context length, if it is fixed.
        yield from _of_sizes(f"summed {name}", lambda kind=kind, **own: learners.Summed(kind(**own), pairs), free)
    yield Candidate(
        "centred gradient-descent",
        lambda **own: learners.Centred(learners.GradientDescent(**own)),
        facts("learner", "gradient-descent")["free"],
        "descent",
    )
    yield Candidate(
        "kernel-gradient-descent on squares",
        functools.partial(learners.KernelGradientDescent, learners.squares),
        facts("learner", "kernel-gradient-descent")["free"],
        "descent",
    )
    built = {
        "conjugate-gradients": (learners.ConjugateGradients, {"steps": Range(1, 6, "integer")}),
        "gradient-descent with momentum": (learners.Momentum, facts("learner", "momentum")["free"]),
        "gradient-descent with Nesterov momentum": (
            functools.partial(learners.Momentum, nesterov=True),
            facts("learner", "momentum")["free"],
        ),
        "normalised-descent": (learners.NormalisedDescent, facts("learner", "normalised-descent")["free"]),
    }
    if getattr(family, "d_out", 1) > 1:  # with one target, Muon is normalised descent
        built["muon"] = (learners.Muon, facts("learner", "muon")["free"])
    for name, (build, free) in built.items():
        yield Candidate(name, build, free, "descent")
    d = getattr(family, "d_in", None)
    if d is not None:
        yield Candidate(
            "one-step preconditioned-gradient-descent",
            lambda eta: learners.PreconditionedGradientDescent(eta * torch.eye(d, dtype=torch.float64)),
            {"eta": facts("learner", "gradient-descent")["free"]["eta"]},
            "descent",
            own_sizes=True,
        )


_DESCENTS = {
    "gradient-descent": learners.GradientDescent,
    "gradient-descent-plus-plus": learners.GradientDescentPlusPlus,
}


def _of_sizes(name: str, build: Callable[..., Any], free: Mapping[str, Range]) -> Iterator[Candidate]:
    """Descents with one size for all steps, and with one size per step."""
    yield Candidate(name, build, free, "descent")
    real = {parameter: one for parameter, one in free.items() if parameter != "steps"}
    for count in _SIZES:
        own = functools.partial(build, steps=count)
        yield Candidate(f"{name} of {count} sizes", own, real, "descent", own_sizes=True)


def _online(family: Any) -> Iterator[Candidate]:
    """One-pass descents, whose predictions depend on the order of pairs."""
    gated, titans = (facts("learner", name)["free"] for name in ("delta-rule", "titans"))
    built = {
        "delta-rule": (learners.DeltaRule, {"eta": gated["eta"]}),
        "gated delta-rule": (learners.DeltaRule, gated),
        "titans": (learners.Titans, titans),
    }
    for name, (build, free) in built.items():
        yield Candidate(name, build, free, "online descent")


def _least_squares(family: Any) -> Iterator[Candidate]:
    ridge = facts("learner", "least-squares")["free"]

    def ridge_with_intercept(**own: float) -> nn.Module:
        return learners.WithIntercept(learners.LeastSquares(**own))

    def partial_least_squares(count: int) -> nn.Module:
        return learners.WithIntercept(learners.Standardised(learners.ConjugateGradients(count)))

    def principal_components(count: int) -> nn.Module:
        return learners.WithIntercept(learners.PrincipalComponents(count))

    built = {
        "minimum-norm least-squares": (learners.LeastSquares, {}),
        "ridge least-squares": (learners.LeastSquares, ridge),
        "newton": (learners.Newton, facts("learner", "newton")["free"]),
        "centred least-squares": (lambda **own: learners.Centred(learners.LeastSquares(**own)), ridge),
        "least-squares with-intercept": (ridge_with_intercept, {}),
        "ridge with-intercept": (ridge_with_intercept, ridge),
        "standardised ridge with-intercept": (lambda **own: learners.Standardised(ridge_with_intercept(**own)), ridge),
        "ridge on squares": (lambda **own: learners.OnFeatures(ridge_with_intercept(**own), learners.squares), ridge),
        "partial least-squares": (partial_least_squares, _COMPONENTS),
        "principal-components regression": (principal_components, _COMPONENTS),
    }
    for name, (build, free) in built.items():
        yield Candidate(name, build, free, "least squares")
    if getattr(family, "pool", None) is not None and isinstance(family, LinearRegression):
        build = functools.partial(learners.BayesPool, family.teachers().double())
        yield Candidate("bayes-pool", build, facts("learner", "bayes-pool")["free"], "memorised tasks")


def _sparse(family: Any) -> Iterator[Candidate]:
    alpha = facts("learner", "lasso")["free"]
    elastic = {**alpha, "share": Range(0.05, 1.0, "linear")}
    yield Candidate("lasso", learners.Lasso, alpha, "sparse regression")
    yield Candidate(
        "lasso with-intercept", lambda **own: learners.WithIntercept(learners.Lasso(**own)), alpha, "sparse regression"
    )
    yield Candidate(
        "elastic-net with-intercept",
        lambda **own: learners.WithIntercept(learners.ElasticNet(**own)),
        elastic,
        "sparse regression",
    )


_KINDS = (_constants_and_averages, _neighbours, _kernel_ridge, _descents, _online, _least_squares, _sparse)
