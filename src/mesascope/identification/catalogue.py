"""Catalogue of candidate algorithms, by family."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mesascope import learners
from mesascope.evidence.tables import Table
from mesascope.identification import estimators
from mesascope.identification.candidate import FAMILIES, Candidate
from mesascope.learners import Range
from mesascope.records import facts
from mesascope.shapes import Tensor
from mesascope.tasks import Learner, LinearRegression

# Numbers of steps for descents with one size per step.
_SIZES = range(2, 6)

Build = Callable[..., Learner]


class Catalogue(list[Candidate]):
    """List of candidates, printed as a table by family of algorithms.

    Costly candidates are compared only if the learner runs no cheap candidate, in the order of the list, until one
    equals the learner.
    """

    def __repr__(self) -> str:
        rows = [
            {"family": one.family, "candidate": one.name, "free parameters": ", ".join(one.free),
             "costly": "yes" if one.costly else ""}
            for one in sorted(self, key=lambda one: FAMILIES.index(one.family))
        ]  # fmt: skip
        return repr(Table(rows))


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
    found = Catalogue(replace(one, family=kind) for kind, listed in _by_family(family).items() for one in listed)
    if sklearn and importlib.util.find_spec("sklearn"):
        found += estimators.candidates()
    return found


def _free(learner: str) -> dict[str, Range]:
    """Ranges of the parameters of a registered learner."""
    return facts("learner", learner)["free"]


def around(outer: Callable[[Any], Learner], inner: Build) -> Build:
    """Builder of a learner within another one, from the parameters of the inner one."""
    return lambda **own: outer(inner(**own))


def _by_family(family: Any) -> dict[str, list[Candidate]]:
    alpha, gated, pool = _free("lasso"), _free("delta-rule"), []
    elastic_net = around(learners.WithIntercept, learners.ElasticNet)
    if getattr(family, "pool", None) is not None and isinstance(family, LinearRegression):
        bayes = partial(learners.BayesPool, family.teachers().double())
        pool = [Candidate("bayes-pool", bayes, _free("bayes-pool"))]
    return {
        "constants": [
            Candidate("zero", learners.Zero),
            Candidate("constant", learners.Constant, _free("constant"), formula=_mean),
        ],
        "averages": [Candidate("mean", learners.Mean), Candidate("last label", learners.LastLabel)],
        "neighbours": [*_neighbours(), *_of_kernels("kernel-smoother", learners.KernelSmoother, learners.KERNELS)],
        "kernel regression": _of_kernels("kernel-ridge", learners.KernelRidge, learners.RIDGE_KERNELS),
        "descent": _descents(family),
        "online descent": [  # in one pass: predictions depend on the order of pairs
            Candidate("delta-rule", learners.DeltaRule, {"eta": gated["eta"]}),
            Candidate("gated delta-rule", learners.DeltaRule, gated),
            Candidate("titans", learners.Titans, _free("titans")),
        ],
        "least squares": _least_squares(),
        "memorised tasks": pool,
        "sparse regression": [
            Candidate("lasso", learners.Lasso, alpha),
            Candidate("lasso with-intercept", around(learners.WithIntercept, learners.Lasso), alpha),
            Candidate("elastic-net with-intercept", elastic_net, {**alpha, "share": Range(0.05, 1.0, "linear")}),
        ],
    }


def _mean(answers: Mapping[str, Tensor]) -> dict[str, float]:
    """Best-fitting constant; all conditions have the same weight."""
    return {"value": float(torch.stack([one.mean() for one in answers.values()]).mean())}


def _neighbours() -> list[Candidate]:
    nearest = learners.NearestNeighbours
    builds = {
        "nearest-neighbours": nearest,
        "nearest-neighbours by distance": partial(nearest, weights="distance"),
        "manhattan nearest-neighbours": partial(nearest, metric="manhattan"),
        "standardised nearest-neighbours": around(learners.Standardised, nearest),
    }
    return [Candidate(name, build, {"k": Range(1, 10, "integer")}) for name, build in builds.items()]


def _of_kernels(name: str, build: Build, kernels: Iterable[str]) -> list[Candidate]:
    return [Candidate(f"{kernel} {name}", partial(build, kernel), _free(name)) for kernel in kernels]


def _descents(family: Any) -> list[Candidate]:
    descent, momentum = _free("gradient-descent"), _free("momentum")
    # Step sizes refer to the family's context length, if it is fixed.
    summed = partial(learners.Summed, pairs=getattr(family, "n_context", 1))
    found = [Candidate("averaging", learners.Averaging)]
    descents = {
        "gradient-descent": learners.GradientDescent,
        "gradient-descent-plus-plus": learners.GradientDescentPlusPlus,
    }
    for name, build in descents.items():
        found += _of_sizes(name, build, _free(name)) + _of_sizes(f"summed {name}", around(summed, build), _free(name))
    found += [
        Candidate("centred gradient-descent", around(learners.Centred, learners.GradientDescent), descent),
        Candidate(
            "kernel-gradient-descent on squares", partial(learners.KernelGradientDescent, learners.squares),
            _free("kernel-gradient-descent"),
        ),
        Candidate("conjugate-gradients", learners.ConjugateGradients, {"steps": Range(1, 6, "integer")}),
        Candidate("gradient-descent with momentum", learners.Momentum, momentum),
        Candidate("gradient-descent with Nesterov momentum", partial(learners.Momentum, nesterov=True), momentum),
        Candidate("normalised-descent", learners.NormalisedDescent, _free("normalised-descent")),
    ]  # fmt: skip
    if getattr(family, "d_out", 1) > 1:  # with one target, Muon is normalised descent
        found.append(Candidate("muon", learners.Muon, _free("muon")))
    d = getattr(family, "d_in", None)
    if d is not None:

        def preconditioned(eta: float) -> Learner:
            return learners.PreconditionedGradientDescent(eta * torch.eye(d, dtype=torch.float64))

        free = {"eta": descent["eta"]}
        found.append(Candidate("one-step preconditioned-gradient-descent", preconditioned, free, own_sizes=True))
    return found


def _of_sizes(name: str, build: Build, free: Mapping[str, Range]) -> list[Candidate]:
    """Descents with one size for all steps, and with one size per step."""
    real = {parameter: one for parameter, one in free.items() if parameter != "steps"}
    return [
        Candidate(name, build, free),
        *(
            Candidate(f"{name} of {count} sizes", partial(build, steps=count), real, own_sizes=True)
            for count in _SIZES
        ),
    ]  # fmt: skip


def _least_squares() -> list[Candidate]:
    ridge, components = _free("least-squares"), {"count": Range(1, 10, "integer")}
    with_intercept = around(learners.WithIntercept, learners.LeastSquares)
    on_squares = partial(learners.OnFeatures, features=learners.squares)

    def partial_least_squares(count: int) -> Learner:
        return learners.WithIntercept(learners.Standardised(learners.ConjugateGradients(count)))

    principal_components = around(learners.WithIntercept, learners.PrincipalComponents)
    return [
        Candidate("minimum-norm least-squares", learners.LeastSquares),
        Candidate("ridge least-squares", learners.LeastSquares, ridge),
        Candidate("newton", learners.Newton, _free("newton")),
        Candidate("centred least-squares", around(learners.Centred, learners.LeastSquares), ridge),
        Candidate("least-squares with-intercept", with_intercept),
        Candidate("ridge with-intercept", with_intercept, ridge),
        Candidate("standardised ridge with-intercept", around(learners.Standardised, with_intercept), ridge),
        Candidate("ridge on squares", around(on_squares, with_intercept), ridge),
        Candidate("partial least-squares", partial_least_squares, components),
        Candidate("principal-components regression", principal_components, components),
    ]
