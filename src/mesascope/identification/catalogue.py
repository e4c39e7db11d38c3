"""Catalogue of candidate algorithms: learners, scikit-learn regressors, and wrappers (clipping, label copying)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from mesascope import learners
from mesascope.adapters import from_sklearn
from mesascope.evidence.tables import Table
from mesascope.identification.candidate import FAMILIES, Candidate
from mesascope.identification.comparing import Compared
from mesascope.identification.seen import Seen
from mesascope.identification.verdict import ENOUGH
from mesascope.learners import Range
from mesascope.records import facts
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Learner, LinearRegression

# Numbers of steps for descents with one size per step.
_SIZES = range(2, 6)
# Wrappers of candidates, by name.
FORMS = {"clipped": learners.Clipped, "label-copying": learners.LabelCopying}
# Number of candidates to wrap, in addition to the nearest of each family.
_NEAREST = 8
# Minimum share of a clipping learner's answers at the ends of the labels' range, under at least one condition.
_ENDS = 0.01
# Rounding error in single precision, relative to the largest label.
_ROUNDING = 1e-6

Build = Callable[..., Learner]


class Catalogue(list[Candidate]):
    """List of candidates, printed as a table by family of algorithms.

    If the learner runs no cheap candidate, costly candidates are compared in the order of the list, until one equals
    the learner.
    """

    def __repr__(self) -> str:
        rows = [
            {"family": one.family, "candidate": one.name, "free parameters": ", ".join(one.free),
             "costly": "yes" if one.costly else ""}
            for one in sorted(self, key=lambda one: FAMILIES.index(one.family))
        ]  # fmt: skip
        return repr(Table(rows))


def contains_catalogue(chosen: Iterable[Candidate], family: Any) -> bool:
    """True if ``chosen`` contains the catalogue for a family, apart from scikit-learn's estimators."""
    return {one.name for one in candidates(family, sklearn=False)} <= {one.name for one in chosen}


def candidates(family: Any = None, *, sklearn: bool = True) -> Catalogue:
    """Complete catalogue: the learners of `mesascope.learners`, and scikit-learn estimators.

    `identify` also tries the nearest candidates with predictions clipped to the range of the context's labels, or
    replaced by the nearest label, if the learner's answers suggest either.

    Args:
        family: family of tasks. Some candidates depend on its attributes: ``pool`` (Bayesian pool learner),
            ``n_context`` (summed descents), ``d_in`` (preconditioner) and ``d_out`` (Muon).
        sklearn: add scikit-learn's estimators, if it is installed.

    >>> [one.name for one in candidates(sklearn=False)][:4]
    ['zero', 'constant', 'mean', 'last label']
    """
    found = Catalogue(replace(one, family=kind) for kind, listed in _by_family(family).items() for one in listed)
    if sklearn and importlib.util.find_spec("sklearn"):
        found += _estimators()
    return found


def _free(learner: str) -> dict[str, Range]:
    """Ranges of the parameters of a registered learner."""
    return facts("learner", learner)["free"]


def _around(outer: Callable[[Any], Learner], inner: Build) -> Build:
    """Builder that wraps the learner of ``inner`` in ``outer``; it takes the parameters of ``inner``."""
    return lambda **own: outer(inner(**own))


def _by_family(family: Any) -> dict[str, list[Candidate]]:
    alpha, gated, pool = _free("lasso"), _free("delta-rule"), []
    elastic_net = _around(learners.WithIntercept, learners.ElasticNet)
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
        "online descent": [  # one pass, so predictions depend on the order of pairs
            Candidate("delta-rule", learners.DeltaRule, {"eta": gated["eta"]}),
            Candidate("gated delta-rule", learners.DeltaRule, gated),
            Candidate("titans", learners.Titans, _free("titans")),
        ],
        "least squares": _least_squares(),
        "memorised tasks": pool,
        "sparse regression": [
            Candidate("lasso", learners.Lasso, alpha),
            Candidate("lasso with-intercept", _around(learners.WithIntercept, learners.Lasso), alpha),
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
        "standardised nearest-neighbours": _around(learners.Standardised, nearest),
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
        found += _of_sizes(name, build, _free(name)) + _of_sizes(f"summed {name}", _around(summed, build), _free(name))
    found += [
        Candidate("centred gradient-descent", _around(learners.Centred, learners.GradientDescent), descent),
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
    with_intercept = _around(learners.WithIntercept, learners.LeastSquares)
    on_squares = partial(learners.OnFeatures, features=learners.squares)

    def partial_least_squares(count: int) -> Learner:
        return learners.WithIntercept(learners.Standardised(learners.ConjugateGradients(count)))

    principal_components = _around(learners.WithIntercept, learners.PrincipalComponents)
    return [
        Candidate("minimum-norm least-squares", learners.LeastSquares),
        Candidate("ridge least-squares", learners.LeastSquares, ridge),
        Candidate("newton", learners.Newton, _free("newton")),
        Candidate("centred least-squares", _around(learners.Centred, learners.LeastSquares), ridge),
        Candidate("least-squares with-intercept", with_intercept),
        Candidate("ridge with-intercept", with_intercept, ridge),
        Candidate("standardised ridge with-intercept", _around(learners.Standardised, with_intercept), ridge),
        Candidate("ridge on squares", _around(on_squares, with_intercept), ridge),
        Candidate("partial least-squares", partial_least_squares, components),
        Candidate("principal-components regression", principal_components, components),
    ]


def _estimators() -> list[Candidate]:
    """One candidate per regressor; ``random`` regressors are seeded.

    They take one task at a time, so the comparison uses the minimum number of tasks, `ENOUGH`.
    """
    from sklearn import ensemble, linear_model, neural_network, svm, tree

    depths, counts = {"max_depth": Range(1, 6, "integer")}, {"n_nonzero_coefs": Range(1, 5, "integer")}
    return [
        _estimator(linear_model.BayesianRidge, "least squares"),
        _estimator(linear_model.HuberRegressor, "least squares", {"epsilon": Range(1.05, 3.0, "log")}),
        _estimator(linear_model.OrthogonalMatchingPursuit, "sparse regression", counts),
        _estimator(linear_model.Lars, "sparse regression", counts),
        _estimator(linear_model.LassoCV, "sparse regression", cv=3),
        _estimator(linear_model.SGDRegressor, "descent", random=True),
        _estimator(svm.SVR, "kernel regression", {"C": Range(0.1, 100.0, "log")}),
        _estimator(_gaussian_process, "kernel regression", name="GaussianProcessRegressor"),
        _estimator(tree.DecisionTreeRegressor, "trees", depths, random=True),
        _estimator(tree.DecisionTreeRegressor, "trees", random=True, name="DecisionTreeRegressor of any depth"),
        _estimator(ensemble.RandomForestRegressor, "trees", depths, random=True, n_estimators=20),
        _estimator(ensemble.GradientBoostingRegressor, "trees", depths, random=True),
        _estimator(ensemble.AdaBoostRegressor, "trees", random=True, n_estimators=20),
        _estimator(neural_network.MLPRegressor, "small networks", random=True, max_iter=200),
    ]  # fmt: skip


def _gaussian_process(**own: Any) -> Any:
    """Gaussian process whose length scale and noise maximise the marginal likelihood."""
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    return GaussianProcessRegressor(kernels.RBF() + kernels.WhiteKernel(), **own)


def _estimator(
    kind: Any, family: str, free: Mapping[str, Range] | None = None, *, random: bool = False, name: str = "",
    **fixed: Any,
) -> Candidate:  # fmt: skip
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
        answers = [
            _answered(self.kind, self.settings, *((part.shape, part.numpy().tobytes()) for part in task))
            for task in tasks
        ]
        return torch.stack(answers).to(xq)


@lru_cache(1 << 15)
def _answered(
    kind: Any, settings: tuple[tuple[str, Any], ...], *matrices: tuple[torch.Size, bytes]
) -> Float[Tensor, "m dy"]:
    """Predictions for one task; ``matrices`` are x, y and queries as hashable pairs (shape, bytes)."""
    import sklearn

    x, y, xq = (torch.from_numpy(np.frombuffer(numbers).reshape(shape).copy()) for shape, numbers in matrices)
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):  # these checks are slow
        return from_sklearn(kind(**dict(settings)))(Context(x, y), xq)


def wrapped(found: Sequence[Compared], seen: Seen) -> list[Candidate]:
    """Wrap the nearest candidates in clipping or label copying, if the learner's answers suggest it.

    A learner copies labels if all its answers are labels of their context. Otherwise it clips if all its answers lie in
    the range of the labels and, in at least one condition, at least 1 % lie at an end of this range.
    """
    nearest = sorted(found, key=lambda one: one.row.own_difference.mean.value)
    plain = [one.candidate for one in nearest if isinstance(one.own.learner, nn.Module) and not one.candidate.own_sizes]
    first = {one.family: one for one in reversed(plain)}
    inner = {one.name: one for one in (*plain[:_NEAREST], *first.values())}.values()
    return [
        replace(one, name=f"{form} {one.name}", build=_around(FORMS[form], one.build), formula=None)
        for form in _forms(seen)
        for one in inner
    ]


def _forms(seen: Seen) -> Iterator[str]:
    copies, inside, ends = [], [], []
    for name, answer in seen.test.items():
        labels = seen.tasks["test"][name].context.y[:, None]
        slack = seen.resolution / 2 + _ROUNDING * labels.abs().amax()
        low, high = labels.aminmax(dim=-2)
        copies.append(bool(((answer[:, :, None] - labels).abs() <= slack).all(-1).any(-1).all()))
        inside.append(bool(((answer >= low - slack) & (answer <= high + slack)).all()))
        ends.append(float(((answer - low).abs() <= slack).logical_or((answer - high).abs() <= slack).double().mean()))
    if all(copies):
        yield "label-copying"
    elif all(inside) and max(ends) >= _ENDS:
        yield "clipped"
