"""Learners of other people's, to be named by what they run or by nothing: of NumPy, SciPy, scikit-learn, and networks.

Each has its truth: the candidate that it equals, or None if no candidate does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mesascope.tasks import LinearRegression

__all__ = ["alien", "aliens"]

Array = np.ndarray
# What makes a learner, and the candidate that it equals, by name.
Aliens = Mapping[str, tuple[Any, str | None]]


def alien(name: str, family: LinearRegression) -> tuple[Any, str | None]:
    """The learner of a name, and the candidate that it equals."""
    from mesascope.adapters import from_numpy, from_sklearn

    made, truth = aliens()[name]
    if name.startswith(("NumPy", "SciPy")):
        return from_numpy(made), truth
    if name.startswith("scikit-learn"):
        return from_sklearn(made), truth
    return made(family), truth


def _ridge(x: Array, y: Array, xq: Array, penalty: float = 0.5) -> Array:
    return xq @ np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)


def _far(x: Array, xq: Array) -> Array:
    return np.sqrt(((xq[:, None] - x[None]) ** 2).sum(-1))


def _nearest(x: Array, y: Array, xq: Array, k: int = 3) -> Array:
    """Labels (queries, neighbours) of the nearest pairs."""
    return y[np.argsort(_far(x, xq), 1)[:, :k], 0]


def _weighted(x: Array, y: Array, weights: Array, penalty: float = 0.01) -> Array:
    return np.linalg.solve((x.T * weights) @ x + penalty * np.eye(x.shape[1]), (x.T * weights) @ y)


def _locally(x: Array, y: Array, xq: Array) -> Array:
    weights = np.exp(-(_far(x, xq) ** 2))
    return np.stack([query @ _weighted(x, y, own) for query, own in zip(xq, weights, strict=True)])


def _reweighted(x: Array, y: Array, xq: Array, weight: Callable[[Array], Array]) -> Array:
    """Least squares, weighted anew by residuals ten times."""
    w = _weighted(x, y, np.ones(len(x)))
    for _ in range(10):
        w = _weighted(x, y, weight(np.abs(y - x @ w)[:, 0]))
    return xq @ w


def _descended(
    x: Array, y: Array, xq: Array, move: Callable[[Array, int], Array], steps: int = 5, start: float = 0.0
) -> Array:
    w = np.full((x.shape[1], 1), start)
    for step in range(steps):
        w = w + move(x.T @ (y - x @ w) / len(x), step)
    return xq @ w


def _flow(x: Array, y: Array, xq: Array) -> Array:
    values, basis = np.linalg.eigh(x.T @ x / len(x))
    gains = -np.expm1(-3 * values) / values.clip(1e-12)
    return xq @ basis @ (gains[:, None] * (basis.T @ x.T @ y) / len(x))


def _adam(x: Array, y: Array, xq: Array) -> Array:
    w, mean, square = np.zeros((x.shape[1], 1)), 0.0, 0.0
    for step in range(1, 11):
        slope = x.T @ (x @ w - y) / len(x)
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
        w = w - 0.2 * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    return xq @ w


def _validated(x: Array, y: Array, xq: Array) -> Array:
    """Ridge regression with the penalty of the lowest generalised cross-validation."""

    def error(penalty: float) -> float:
        hat = x @ np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T)
        return float((((y - hat @ y) / (1 - np.trace(hat) / len(x)).clip(0.05)) ** 2).sum())

    return _ridge(x, y, xq, min(10.0 ** np.arange(-3, 3), key=error))


def _random_features(x: Array, y: Array, xq: Array) -> Array:
    weights = np.random.default_rng(0).normal(size=(x.shape[1], 20))
    return _ridge(np.maximum(x @ weights, 0), y, np.maximum(xq @ weights, 0))


def _with_lines(x: Array, y: Array, xq: Array) -> Array:
    return _ridge(np.hstack([x, np.abs(x)]), y, np.hstack([xq, np.abs(xq)]))


def _online_absolute(x: Array, y: Array, xq: Array) -> Array:
    w = np.zeros((x.shape[1], 1))
    for row, target in zip(x, y, strict=True):
        w = w + 0.2 * np.sign(target - row @ w) * row[:, None]
    return xq @ w


def _shepard(x: Array, y: Array, xq: Array) -> Array:
    weights = 1 / (_far(x, xq) ** 3 + 1e-9)
    return weights @ y / weights.sum(1, keepdims=True)


def _one_feature(x: Array, y: Array, xq: Array) -> Array:
    """Least squares on the feature of the largest correlation."""
    index = np.argmax(np.abs(x.T @ y))
    return _ridge(x[:, [index]], y, xq[:, [index]], 1e-9)


def _scipy_nearest(x: Array, y: Array, xq: Array) -> Array:
    from scipy.interpolate import NearestNDInterpolator

    return NearestNDInterpolator(x, y)(xq)


def _radial(x: Array, y: Array, xq: Array, **settings: Any) -> Array:
    from scipy.interpolate import RBFInterpolator

    return RBFInterpolator(x, y, **settings)(xq)


def _non_negative(x: Array, y: Array, xq: Array) -> Array:
    from scipy.optimize import nnls

    return (xq @ nnls(x, y[:, 0])[0])[:, None]


@functools.cache
def aliens() -> Aliens:
    """All of them, by name."""
    return {**_OF_ARRAYS, **_of_sklearn(), **_NETWORKS}


def _trained(family: LinearRegression, attention: str, layers: int = 1) -> Any:
    from mesascope.nets import InContextRegressorConfig, TransformerConfig
    from mesascope.training import Training, train

    config = InContextRegressorConfig(TransformerConfig(family.d_in + 1, layers, attention=attention))
    plan = Training(steps=600, batch=256, learning_rate=1e-2, decay_from=0.3)
    return train(config.build, family, plan)[0]


def _perturbed(family: LinearRegression) -> Any:
    """A construction of two steps of gradient descent whose weights are 30 % off."""
    import torch

    from mesascope.constructions import gradient_descent
    from mesascope.streams import stream

    network, draw = gradient_descent(family.d_in, 1, 0.8, family.n_context, 2).network, stream(0, "perturbed")
    with torch.no_grad():
        for weight in network.parameters():
            weight *= 1 + 0.3 * torch.randn(weight.shape, generator=draw).to(weight)
    return network


def _untrained(family: LinearRegression, attention: str, layers: int = 1) -> Any:
    from mesascope.nets import InContextRegressorConfig, TransformerConfig
    from mesascope.streams import stream

    config = InContextRegressorConfig(TransformerConfig(family.d_in + 1, layers, attention=attention))
    return config.build(stream(0, "init"))


def _language_model(family: LinearRegression) -> Any:
    from mesascope.adapters import NumberWords, from_language_model
    from mesascope.nets import AttentionConfig, CausalTransformerConfig, LanguageModelConfig
    from mesascope.streams import stream

    words, transformer = NumberWords(), CausalTransformerConfig(AttentionConfig(16, 2), 1, "softmax")
    model = LanguageModelConfig(transformer, len(words), 400).build(stream(0, "init"))
    return from_language_model(model, words, "mean")


_OF_ARRAYS: Aliens = {
    "NumPy local linear regression": (_locally, None),
    "NumPy trimmed mean": (lambda x, y, xq: np.full((len(xq), 1), np.sort(y[:, 0])[1:-1].mean()), None),
    "NumPy median of neighbours": (lambda x, y, xq: np.median(_nearest(x, y, xq), 1)[:, None], None),
    "NumPy largest of neighbours": (lambda x, y, xq: _nearest(x, y, xq).max(1)[:, None], None),
    "NumPy farthest label": (lambda x, y, xq: _nearest(x, y, xq, len(x))[:, -1:], None),
    "NumPy clipped ridge": (lambda x, y, xq: _ridge(x, y, xq).clip(y.min(), y.max()), "clipped ridge least-squares"),
    "NumPy ridge with penalty 0.1 n": (lambda x, y, xq: _ridge(x, y, xq, 0.1 * len(x)), None),
    "NumPy ridge and neighbours": (lambda x, y, xq: (_ridge(x, y, xq) + _nearest(x, y, xq, 1)) / 2, None),
    "NumPy ridge times 0.8": (lambda x, y, xq: 0.8 * _ridge(x, y, xq), None),
    "NumPy sine of ridge": (lambda x, y, xq: np.sin(3 * _ridge(x, y, xq)), None),
    "NumPy sign of ridge": (lambda x, y, xq: np.sign(_ridge(x, y, xq)), None),
    "NumPy ridge rounded": (lambda x, y, xq: np.round(2 * _ridge(x, y, xq)) / 2, None),
    "NumPy hyperbolic tangent of ridge": (lambda x, y, xq: np.tanh(_ridge(x, y, xq)), None),
    "NumPy ridge of late pairs": (
        lambda x, y, xq: xq @ _weighted(x, y, 0.8 ** np.arange(len(x))[::-1], 0.5), None),
    "NumPy ridge on absolute values": (_with_lines, None),
    "NumPy ridge on random features": (_random_features, None),
    "NumPy cross-validated ridge": (_validated, None),
    "NumPy least absolute deviations": (
        lambda x, y, xq: _reweighted(x, y, xq, lambda r: 1 / r.clip(1e-3)), None),
    "NumPy Huber regression": (lambda x, y, xq: _reweighted(x, y, xq, lambda r: 1 / r.clip(0.3)), None),
    "NumPy Cauchy regression": (lambda x, y, xq: _reweighted(x, y, xq, lambda r: 1 / (1 + (r / 0.3) ** 2)), None),
    "NumPy sign descent": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: 0.1 * np.sign(g)), None),
    "NumPy slowing descent": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: 1.5 / (k + 1) * g, 8), None),
    "NumPy descent from ones": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: 0.8 * g, 3, 1.0), None),
    "NumPy clipped gradients": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: (2 * g).clip(-0.2, 0.2)), None),
    "NumPy descent": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: 0.8 * g, 3), "gradient-descent"),
    "NumPy gradient flow": (_flow, None),
    "NumPy Adam": (_adam, None),
    "NumPy online absolute loss": (_online_absolute, None),
    "NumPy inverse cubes of distances": (_shepard, None),
    "NumPy best feature": (_one_feature, None),
    "NumPy constant": (lambda x, y, xq: np.full((len(xq), 1), 3.0), "constant"),
    "NumPy function of the query": (lambda x, y, xq: np.sin(5 * xq).sum(1, keepdims=True), None),
    "SciPy nearest": (_scipy_nearest, "nearest-neighbours"),
    "SciPy smoothed linear splines": (functools.partial(_radial, smoothing=1.0, kernel="linear"), None),
    "SciPy inverse multiquadrics": (
        functools.partial(_radial, smoothing=0.1, kernel="inverse_multiquadric", epsilon=1.0), None),
    "SciPy smoothed Gaussians": (
        functools.partial(_radial, smoothing=0.3, kernel="gaussian", epsilon=1.0, degree=-1), "gaussian kernel-ridge"),
    "SciPy non-negative least squares": (_non_negative, None),
}  # fmt: skip


def _of_sklearn() -> Aliens:
    from sklearn import (
        compose,
        cross_decomposition,
        decomposition,
        dummy,
        ensemble,
        kernel_approximation,
        linear_model,
        neighbors,
        preprocessing,
        svm,
        tree,
    )
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.pipeline import make_pipeline as pipe

    def process(kernel: Any) -> Any:
        """A Gaussian process whose kernel stays as it is."""
        settings: dict[str, Any] = {"alpha": 0.1, "optimizer": None}
        return GaussianProcessRegressor(kernel, **settings)

    def kernel_ridge(**settings: Any) -> Any:
        return KernelRidge(**{"alpha": 0.3, "gamma": 0.5, **settings})

    return {
        "scikit-learn LinearRegression": (linear_model.LinearRegression(), "least-squares with-intercept"),
        "scikit-learn Ridge": (linear_model.Ridge(0.5), "ridge with-intercept"),
        "scikit-learn Lasso": (linear_model.Lasso(0.1, tol=1e-9), "lasso with-intercept"),
        "scikit-learn ElasticNet": (linear_model.ElasticNet(0.1, tol=1e-9), "elastic-net with-intercept"),
        "scikit-learn linear features": (
            pipe(preprocessing.PolynomialFeatures(1), linear_model.LinearRegression()), "least-squares with-intercept"),
        "scikit-learn PLS of 1": (cross_decomposition.PLSRegression(1), "partial least-squares"),
        "scikit-learn PCR": (
            pipe(decomposition.PCA(2), linear_model.LinearRegression()), "principal-components regression"),
        "scikit-learn Lars": (linear_model.Lars(), None),  # least squares in most tasks
        "scikit-learn standardised ridge": (
            pipe(preprocessing.StandardScaler(), linear_model.Ridge(1.0)), "standardised ridge with-intercept"),
        "scikit-learn ridge on squares": (
            pipe(preprocessing.PolynomialFeatures(2), linear_model.Ridge(1.0)), "ridge on squares"),
        "scikit-learn neighbours by distance": (
            neighbors.KNeighborsRegressor(3, weights="distance"), "nearest-neighbours by distance"),
        "scikit-learn Manhattan neighbours": (neighbors.KNeighborsRegressor(2, p=1), "manhattan nearest-neighbours"),
        "scikit-learn cubic kernel": (
            kernel_ridge(kernel="poly"), "cubic kernel-ridge"),
        "scikit-learn Laplacian kernel": (
            kernel_ridge(kernel="laplacian"), "manhattan kernel-ridge"),
        "scikit-learn Gaussian process": (
            process(kernels.RBF(1.0)), "gaussian kernel-ridge"),
        "scikit-learn mean": (dummy.DummyRegressor(), "mean"),
        "scikit-learn boosting of large leaves": (
            ensemble.HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=20), "mean"),
        "scikit-learn median": (dummy.DummyRegressor(strategy="median"), None),
        "scikit-learn histogram boosting": (
            ensemble.HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=2), None),
        "scikit-learn extra tree": (tree.ExtraTreeRegressor(random_state=0), None),
        "scikit-learn bagged ridge": (ensemble.BaggingRegressor(linear_model.Ridge(), 3, random_state=0), None),
        "scikit-learn vote": (
            ensemble.VotingRegressor([("a", linear_model.Ridge()), ("b", tree.DecisionTreeRegressor(max_depth=2))]),
            None),
        "scikit-learn cubed lasso": (
            compose.TransformedTargetRegressor(linear_model.Lasso(0.1), func=np.cbrt, inverse_func=lambda v: v**3),
            None),
        "scikit-learn TheilSen": (linear_model.TheilSenRegressor(random_state=0, max_subpopulation=50), None),
        "scikit-learn ARD": (linear_model.ARDRegression(), None),
        "scikit-learn cross-validated ridge": (linear_model.RidgeCV(alphas=(0.01, 0.1, 1.0, 10.0)), None),
        "scikit-learn quantile": (linear_model.QuantileRegressor(quantile=0.8, alpha=0.01), None),
        "scikit-learn Nystroem": (
            pipe(kernel_approximation.Nystroem(n_components=2, random_state=0), linear_model.Ridge()), None),
        "scikit-learn splines": (pipe(preprocessing.SplineTransformer(3, degree=2), linear_model.Ridge()), None),
        "scikit-learn ranks": (
            pipe(preprocessing.QuantileTransformer(n_quantiles=3), linear_model.Ridge()), None),
        "scikit-learn Chebyshev neighbours": (neighbors.KNeighborsRegressor(2, metric="chebyshev"), None),
        "scikit-learn nu-SVR": (svm.NuSVR(), None),
        "scikit-learn linear SVR": (svm.SVR(kernel="linear"), None),
        "scikit-learn Matern process": (
            process(kernels.Matern(1.0)), None),
        "scikit-learn centred kernel ridge": (
            compose.TransformedTargetRegressor(
                kernel_ridge(kernel="rbf"), transformer=preprocessing.StandardScaler()), None),
    }  # fmt: skip


_NETWORKS: Aliens = {
    "untrained linear attention": (lambda family: _untrained(family, "linear"), None),
    "untrained softmax attention": (lambda family: _untrained(family, "softmax", 2), None),
    "trained linear attention": (lambda family: _trained(family, "linear"), None),
    "trained softmax attention": (lambda family: _trained(family, "softmax", 2), None),
    "construction that is 30 % off": (_perturbed, None),
    "untrained language model": (_language_model, None),
}  # fmt: skip
