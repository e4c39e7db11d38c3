"""Learners from outside the catalogue that test `identify`.

They are NumPy and SciPy functions, scikit-learn estimators, and networks. The correct answer for each is the candidate
that it equals, or None if no candidate does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import lazy_loader
import numpy as np

from mesascope import adapters, constructions, nets, tasks, training
from mesascope.streams import stream

Array = np.ndarray
# The learner, or a function that builds it, and the name of the candidate that it equals, or None; by name.
Aliens = Mapping[str, tuple[Any, str | None]]


def alien(name: str, family: tasks.LinearRegression) -> tuple[Any, str | None]:
    """Learner of a name, and the name of the candidate that it equals, or None."""
    made, truth = aliens()[name]
    if name.startswith(("NumPy", "SciPy")):
        return adapters.from_numpy(made), truth
    return adapters.from_sklearn(made()) if name.startswith("scikit-learn") else made(family), truth


def aliens() -> Aliens:
    tables = {"NumPy ": _NUMPY, "SciPy ": _SCIPY, "scikit-learn ": _SKLEARN, "": _NETWORKS}
    return {prefix + name: one for prefix, table in tables.items() for name, one in table.items()}


scipy: Any = lazy_loader.load("scipy")
sk: Any = lazy_loader.load("sklearn")


def _ridge(x: Array, y: Array, xq: Array, penalty: float = 0.5) -> Array:
    return xq @ np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)


def _far(x: Array, xq: Array) -> Array:
    return np.sqrt(((xq[:, None] - x[None]) ** 2).sum(-1))


def _nearest(x: Array, y: Array, xq: Array, k: int = 3) -> Array:
    """Labels ``(queries, k)`` of the ``k`` nearest pairs, the nearest first."""
    return y[np.argsort(_far(x, xq), 1)[:, :k], 0]


def _weighted(x: Array, y: Array, weights: Array, penalty: float = 0.01) -> Array:
    return np.linalg.solve((x.T * weights) @ x + penalty * np.eye(x.shape[1]), (x.T * weights) @ y)


def _locally(x: Array, y: Array, xq: Array) -> Array:
    weights = np.exp(-(_far(x, xq) ** 2))
    return np.stack([query @ _weighted(x, y, own) for query, own in zip(xq, weights, strict=True)])


def _reweighted(x: Array, y: Array, xq: Array, weight: Callable[[Array], Array]) -> Array:
    """Iteratively reweighted least squares, with ten updates of the weights."""
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
    """Ridge regression with the penalty of the lowest generalised cross-validation error."""

    def error(penalty: float) -> float:
        hat = x @ np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T)
        return float((((y - hat @ y) / (1 - np.trace(hat) / len(x)).clip(0.05)) ** 2).sum())

    return _ridge(x, y, xq, min(10.0 ** np.arange(-3, 3), key=error))


def _ridge_of(features: Callable[[Array], Array]) -> Callable[[Array, Array, Array], Array]:
    return lambda x, y, xq: _ridge(features(x), y, features(xq))


def _random_features(x: Array) -> Array:
    return np.maximum(x @ np.random.default_rng(0).normal(size=(x.shape[1], 20)), 0)


def _online_absolute(x: Array, y: Array, xq: Array) -> Array:
    w = np.zeros((x.shape[1], 1))
    for row, target in zip(x, y, strict=True):
        w = w + 0.2 * np.sign(target - row @ w) * row[:, None]
    return xq @ w


def _shepard(x: Array, y: Array, xq: Array) -> Array:
    weights = 1 / (_far(x, xq) ** 3 + 1e-9)
    return weights @ y / weights.sum(1, keepdims=True)


def _one_feature(x: Array, y: Array, xq: Array) -> Array:
    """Least squares on the feature with the largest |x^T y|."""
    index = np.argmax(np.abs(x.T @ y))
    return _ridge(x[:, [index]], y, xq[:, [index]], 1e-9)


def _radial(x: Array, y: Array, xq: Array, **settings: Any) -> Array:
    return scipy.interpolate.RBFInterpolator(x, y, **settings)(xq)


def _config(family: tasks.LinearRegression, attention: str, layers: int) -> Any:
    return nets.InContextRegressorConfig(nets.TransformerConfig(family.d_in + 1, layers, attention=attention))


def _trained(family: tasks.LinearRegression, attention: str, layers: int) -> Any:
    plan = training.Training(steps=600, batch=256, learning_rate=1e-2, decay_from=0.3)
    return training.train(_config(family, attention, layers).build, family, plan)[0]


def _untrained(family: tasks.LinearRegression, attention: str, layers: int) -> Any:
    return _config(family, attention, layers).build(stream(0, "init"))


def _perturbed(family: tasks.LinearRegression) -> Any:
    """A construction of two steps of gradient descent, with 30 % noise on its weights."""
    import torch

    network = constructions.gradient_descent(family.d_in, 1, 0.8, family.n_context, 2).network
    draw = stream(0, "perturbed")
    with torch.no_grad():
        for weight in network.parameters():
            weight *= 1 + 0.3 * torch.randn(weight.shape, generator=draw).to(weight)
    return network


def _language_model(family: tasks.LinearRegression) -> Any:
    words = adapters.NumberTokenizer()
    transformer = nets.CausalTransformerConfig(nets.AttentionConfig(16, 2), 1, "softmax")
    model = nets.LanguageModelConfig(transformer, len(words), 400).build(stream(0, "init"))
    return adapters.from_language_model(model, words, "mean")


_NUMPY: Aliens = {
    "local linear regression": (_locally, None),
    "trimmed mean": (lambda x, y, xq: np.full((len(xq), 1), np.sort(y[:, 0])[1:-1].mean()), None),
    "median of neighbours": (lambda x, y, xq: np.median(_nearest(x, y, xq), 1)[:, None], None),
    "largest of neighbours": (lambda x, y, xq: _nearest(x, y, xq).max(1)[:, None], None),
    "farthest label": (lambda x, y, xq: _nearest(x, y, xq, len(x))[:, -1:], None),
    "clipped ridge": (lambda x, y, xq: _ridge(x, y, xq).clip(y.min(), y.max()), "clipped ridge least-squares"),
    "ridge with penalty 0.1 n": (lambda x, y, xq: _ridge(x, y, xq, 0.1 * len(x)), None),
    "ridge and neighbours": (lambda x, y, xq: (_ridge(x, y, xq) + _nearest(x, y, xq, 1)) / 2, None),
    "ridge times 0.8": (lambda x, y, xq: 0.8 * _ridge(x, y, xq), None),
    "sine of ridge": (lambda x, y, xq: np.sin(3 * _ridge(x, y, xq)), None),
    "sign of ridge": (lambda x, y, xq: np.sign(_ridge(x, y, xq)), None),
    "ridge rounded": (lambda x, y, xq: np.round(2 * _ridge(x, y, xq)) / 2, None),
    "hyperbolic tangent of ridge": (lambda x, y, xq: np.tanh(_ridge(x, y, xq)), None),
    "ridge of late pairs": (lambda x, y, xq: xq @ _weighted(x, y, 0.8 ** np.arange(len(x))[::-1], 0.5), None),
    "ridge on absolute values": (_ridge_of(lambda x: np.hstack([x, np.abs(x)])), None),
    "ridge on random features": (_ridge_of(_random_features), None),
    "cross-validated ridge": (_validated, None),
    "least absolute deviations": (lambda x, y, xq: _reweighted(x, y, xq, lambda r: 1 / r.clip(1e-3)), None),
    "Huber regression": (lambda x, y, xq: _reweighted(x, y, xq, lambda r: 1 / r.clip(0.3)), None),
    "Cauchy regression": (lambda x, y, xq: _reweighted(x, y, xq, lambda r: 1 / (1 + (r / 0.3) ** 2)), None),
    "sign descent": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: 0.1 * np.sign(g)), None),
    "slowing descent": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: 1.5 / (k + 1) * g, 8), None),
    "descent from ones": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: 0.8 * g, 3, 1.0), None),
    "clipped gradients": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: (2 * g).clip(-0.2, 0.2)), None),
    "descent": (lambda x, y, xq: _descended(x, y, xq, lambda g, k: 0.8 * g, 3), "gradient-descent"),
    "gradient flow": (_flow, None),
    "Adam": (_adam, None),
    "online absolute loss": (_online_absolute, None),
    "inverse cubes of distances": (_shepard, None),
    "best feature": (_one_feature, None),
    "constant": (lambda x, y, xq: np.full((len(xq), 1), 3.0), "constant"),
    "function of the query": (lambda x, y, xq: np.sin(5 * xq).sum(1, keepdims=True), None),
}
_SCIPY: Aliens = {
    "nearest": (lambda x, y, xq: scipy.interpolate.NearestNDInterpolator(x, y)(xq), "nearest-neighbours"),
    "smoothed linear splines": (functools.partial(_radial, smoothing=1.0, kernel="linear"), None),
    "inverse multiquadrics": (
        functools.partial(_radial, smoothing=0.1, kernel="inverse_multiquadric", epsilon=1.0), None),
    "smoothed Gaussians": (
        functools.partial(_radial, smoothing=0.3, kernel="gaussian", epsilon=1.0, degree=-1), "gaussian kernel-ridge"),
    "non-negative least squares": (lambda x, y, xq: (xq @ scipy.optimize.nnls(x, y[:, 0])[0])[:, None], None),
}  # fmt: skip


def _kernel_ridge(kernel: str) -> Any:
    return sk.kernel_ridge.KernelRidge(alpha=0.3, gamma=0.5, kernel=kernel)


def _process(kernel: str) -> Any:
    made = getattr(sk.gaussian_process.kernels, kernel)(1.0)
    return sk.gaussian_process.GaussianProcessRegressor(made, alpha=0.1, optimizer=None)


def _transformed(regressor: Any, **transform: Any) -> Any:
    return sk.compose.TransformedTargetRegressor(regressor, **transform)


def _on(transformer: Any, regressor: str = "Ridge") -> Any:
    return sk.pipeline.make_pipeline(transformer, getattr(sk.linear_model, regressor)())


def _vote() -> Any:
    ridge, tree = sk.linear_model.Ridge(), sk.tree.DecisionTreeRegressor(max_depth=2)
    return sk.ensemble.VotingRegressor([("a", ridge), ("b", tree)])


_SKLEARN: Aliens = {
    "LinearRegression": (lambda: sk.linear_model.LinearRegression(), "least-squares with-intercept"),
    "Ridge": (lambda: sk.linear_model.Ridge(0.5), "ridge with-intercept"),
    "Lasso": (lambda: sk.linear_model.Lasso(0.1, tol=1e-9), "lasso with-intercept"),
    "ElasticNet": (lambda: sk.linear_model.ElasticNet(0.1, tol=1e-9), "elastic-net with-intercept"),
    "linear features": (
        lambda: _on(sk.preprocessing.PolynomialFeatures(1), "LinearRegression"), "least-squares with-intercept"),
    "PLS of 1": (lambda: sk.cross_decomposition.PLSRegression(1), "partial least-squares"),
    "PCR": (lambda: _on(sk.decomposition.PCA(2), "LinearRegression"), "principal-components regression"),
    "Lars": (lambda: sk.linear_model.Lars(), None),  # least squares in most tasks
    "standardised ridge": (lambda: _on(sk.preprocessing.StandardScaler()), "standardised ridge with-intercept"),
    "ridge on squares": (lambda: _on(sk.preprocessing.PolynomialFeatures(2)), "ridge on squares"),
    "neighbours by distance": (
        lambda: sk.neighbors.KNeighborsRegressor(3, weights="distance"), "nearest-neighbours by distance"),
    "Manhattan neighbours": (lambda: sk.neighbors.KNeighborsRegressor(2, p=1), "manhattan nearest-neighbours"),
    "cubic kernel": (lambda: _kernel_ridge("poly"), "cubic kernel-ridge"),
    "Laplacian kernel": (lambda: _kernel_ridge("laplacian"), "manhattan kernel-ridge"),
    "Gaussian process": (lambda: _process("RBF"), "gaussian kernel-ridge"),
    "mean": (lambda: sk.dummy.DummyRegressor(), "mean"),
    "boosting of large leaves": (
        lambda: sk.ensemble.HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=20), "mean"),
    "median": (lambda: sk.dummy.DummyRegressor(strategy="median"), None),
    "histogram boosting": (lambda: sk.ensemble.HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=2), None),
    "extra tree": (lambda: sk.tree.ExtraTreeRegressor(random_state=0), None),
    "bagged ridge": (lambda: sk.ensemble.BaggingRegressor(sk.linear_model.Ridge(), 3, random_state=0), None),
    "vote": (_vote, None),
    "cubed lasso": (lambda: _transformed(sk.linear_model.Lasso(0.1), func=np.cbrt, inverse_func=lambda v: v**3), None),
    "TheilSen": (lambda: sk.linear_model.TheilSenRegressor(random_state=0, max_subpopulation=50), None),
    "ARD": (lambda: sk.linear_model.ARDRegression(), None),
    "cross-validated ridge": (lambda: sk.linear_model.RidgeCV(alphas=(0.01, 0.1, 1.0, 10.0)), None),
    "quantile": (lambda: sk.linear_model.QuantileRegressor(quantile=0.8, alpha=0.01), None),
    "Nystroem": (lambda: _on(sk.kernel_approximation.Nystroem(n_components=2, random_state=0)), None),
    "splines": (lambda: _on(sk.preprocessing.SplineTransformer(3, degree=2)), None),
    "ranks": (lambda: _on(sk.preprocessing.QuantileTransformer(n_quantiles=3)), None),
    "Chebyshev neighbours": (lambda: sk.neighbors.KNeighborsRegressor(2, metric="chebyshev"), None),
    "nu-SVR": (lambda: sk.svm.NuSVR(), None),
    "linear SVR": (lambda: sk.svm.SVR(kernel="linear"), None),
    "Matern process": (lambda: _process("Matern"), None),
    "centred kernel ridge": (
        lambda: _transformed(_kernel_ridge("rbf"), transformer=sk.preprocessing.StandardScaler()), None),
}  # fmt: skip
_NETWORKS: Aliens = {
    "untrained linear attention": (lambda family: _untrained(family, "linear", 1), None),
    "untrained softmax attention": (lambda family: _untrained(family, "softmax", 2), None),
    "trained linear attention": (lambda family: _trained(family, "linear", 1), None),
    "trained softmax attention": (lambda family: _trained(family, "softmax", 2), None),
    "construction that is 30 % off": (_perturbed, None),
    "untrained language model": (_language_model, None),
}
