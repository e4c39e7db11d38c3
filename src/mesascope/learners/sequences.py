"""Predictors that fit a linear model to a sequence and predict its next element.

The pairs (s_{i-1}, s_i) up to t, with s_0 = 0, give a model W_t, which predicts s_{t+1} as W_t s_t. With
A_t = sum_{i<=t} s_{i-1} s_{i-1}^T + ridge I, the ridge solution is W_t = sum_{i<=t} s_i s_{i-1}^T A_t^{-1}.

Source: von Oswald (2024), sections 3.3 and 3.7.3.2.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import (
    ArgumentError,
    NumericalError,
    refuse,
    require_callable,
    require_count,
    require_instance,
    require_number,
)
from mesascope.learners.arguments import Algorithm, Matrix, Range, Sizes, size_at, step_sizes, tensor_of
from mesascope.ops import causal_linear_attention, mesa_attention
from mesascope.ops.checks import require_values
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import check_sequence

_BOUND, _RIDGE = Range(20.0, 1e4, "log"), Range(0.01, 10.0, "log")
_RAISE = "use a bound above the eigenvalues of every A_t, such as the sum of |s_i|^2 and the ridge"


@register(
    "predictor", "online-gradient-descent", free={"steps": Range(1, 6, "integer"), "eta": Range(1e-4, 0.1, "log")}
)
class OnlineGradientDescent(Algorithm):
    """``steps`` causal layers of gradient descent from W_0.

    Starting from p_t = W_0 s_t and residuals r_t = s_t - W_0 s_{t-1}, each step computes for all t at once

        p_t <- p_t + eta sum_{i<=t} r_i (s_{i-1} . s_t),    r_t <- r_t - eta sum_{i<=t} r_i (s_{i-1} . s_{t-1}).

    One step is gradient descent on 1/2 sum_{i<=t} |s_i - W s_{i-1}|^2. Further steps are not, because each residual is
    updated only from the pairs up to its own time.

    Args:
        steps: number of steps; 0 predicts W_0 s_t.
        eta: step size, one number or one per step; a parameter. It multiplies a sum over pairs, whereas the eta of
            `GradientDescent` multiplies a mean.
        w0: initial weights ``(d, d)``; zero if None.

    Source: von Oswald (2024), eq. 3.5 and section 3.7.3.2.

    >>> OnlineGradientDescent(1, eta=0.5)(torch.tensor([[1.0], [2.0], [4.0]])).squeeze(-1).tolist()
    [0.0, 2.0, 20.0]
    """

    w0: Tensor | None

    def __init__(self, steps: int, eta: Sizes, w0: Matrix | None = None) -> None:
        super().__init__()
        self.steps = require_count("steps", steps, least=0)
        self.eta = step_sizes("eta", eta, steps)
        self.register_buffer("w0", None if w0 is None else tensor_of("w0", w0, "d d"))

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        return self.trajectory(sequence)[-1]

    def trajectory(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "k *batch t d"]:
        """Predictions after 0, 1, ..., ``steps`` steps."""
        before, width = _before(sequence), sequence.shape[-1]
        if self.w0 is not None and self.w0.shape != (width, width):
            refuse("w0", f"have shape ({width}, {width})", tuple(self.w0.shape), "match it to the elements' width")
        w0 = sequence.new_zeros(width, width) if self.w0 is None else self.w0.to(sequence)
        predictions, residual = [sequence @ w0.mT], sequence - before @ w0.mT
        with _diverging("use a smaller eta"):
            for step in range(self.steps):
                eta = size_at(self.eta, step).to(sequence)
                predictions.append(predictions[-1] + eta * _through_pairs(sequence, before, residual))
                residual = residual - eta * _through_pairs(before, before, residual)
        return torch.stack(predictions)


@register("predictor", "pair-sums", free={})
class PairSums(Algorithm):
    """Prediction A_t s_t + B_t s_{t-1}: the general linear attention layer on tokens (0, s_t, s_{t-1}).

    A_t = sum_{i<=t} a_1 s_i s_i^T + a_2 s_{i-1} s_i^T + a_3 s_i s_{i-1}^T + a_4 s_{i-1} s_{i-1}^T, and B_t likewise. A
    step of gradient descent from W = 0 has step size a_3 and zeros elsewhere. A step from W = c I also has
    a_4 = -c a_3, and its prediction is this sum plus c s_t.

    Args:
        now: a_1 to a_4 of A; a parameter.
        before: the same coefficients of B; a parameter.

    Source: von Oswald (2024), eqs. 3.52 and 3.55, which have the opposite sign (minus the prediction).

    >>> PairSums((0, 0, 0.5, 0), (0, 0, 0, 0))(torch.tensor([[1.0], [2.0], [4.0]])).squeeze(-1).tolist()
    [0.0, 2.0, 20.0]
    """

    def __init__(self, now: Sequence[float], before: Sequence[float]) -> None:
        super().__init__()
        self.now, self.before = _weights("now", now), _weights("before", before)
        for name, values in (("now", now), ("before", before)):
            if len(values) != 4:
                refuse(name, "have four numbers", values, "pass the weights of the four products")

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        last, prediction = _before(sequence), torch.zeros_like(sequence)
        with _diverging("use smaller weights"):
            for query, weights in ((sequence, self.now), (last, self.before)):
                for key, (own, other) in zip((sequence, last), weights.to(sequence).view(2, 2), strict=True):
                    prediction = prediction + _through_pairs(query, key, own * sequence + other * last)
        return prediction


class Lags(Algorithm):
    """Concatenate the last ``count`` elements, the newest first: ``(*batch, t, count * d)``.

    The result is zero until there are ``count`` elements: zero inputs do not change a fit; incomplete inputs would.

    >>> Lags(2)(torch.tensor([[1.0], [2.0], [4.0]]))
    tensor([[0., 0.],
            [2., 1.],
            [4., 2.]])
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = require_count("count", count)

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t f"]:
        check_sequence(sequence)
        t = sequence.shape[-2]
        window = torch.cat([functional.pad(sequence, (0, 0, lag, 0))[..., :t, :] for lag in range(self.count)], -1)
        return window * (torch.arange(t, device=sequence.device) >= self.count - 1).to(sequence)[:, None]


@register(
    "predictor",
    "recursive-least-squares",
    free={"ridge": Range(1e-4, 100.0, "log"), "forget": Range(0.5, 1.0, "linear")},
)
class RecursiveLeastSquares(Algorithm):
    """Minimise 1/2 sum_{i<=t} forget^(t-i) |s_i - W x_{i-1}|^2 + forget^t ridge/2 |W|^2 over W, at every t.

    Inputs x_i are the elements s_i, or features of the elements up to s_i. Predicts W x_t.

    Args:
        ridge: 1/lambda, greater than 0: with 0, the problems at small t are singular. The optimal value is noise^2 over
            the variance of W's entries.
        forget: factor by which each new element scales the earlier terms; 1 for no forgetting.
        features: a causal function from sequences ``(*batch, t, d)`` to inputs ``(*batch, t, f)``, such as `Lags`; None
            for the elements themselves.

    Raises:
        NumericalError: the problem is singular in this precision.

    Source: von Oswald (2024), eqs. 3.8 and 3.9; with forgetting, section 3.7.1.

    >>> RecursiveLeastSquares(ridge=1e-9)(torch.tensor([[1.0], [2.0], [4.0]])).squeeze(-1)
    tensor([0., 4., 8.])
    """

    def __init__(self, ridge: float, forget: float = 1.0, features: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        if features is not None:
            require_callable("features", features)
        self.ridge, self.features = require_number("ridge", ridge, above=0), features
        self.forget = require_number("forget", forget, above=0, most=1)

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        check_sequence(sequence)
        inputs = sequence if self.features is None else self.features(sequence)
        if inputs.ndim != sequence.ndim or inputs.shape[:-1] != sequence.shape[:-1]:
            refuse("features", "give one row an element", tuple(inputs.shape), "map (*batch, t, d) to (*batch, t, f)")
        q, k, v = (part.unsqueeze(-3) for part in (inputs, _before(inputs), sequence))
        gate = None if self.forget == 1 else torch.full_like(q[..., 0], math.log(self.forget))
        return mesa_attention(q, k, v, ridge=self.ridge, log_forget=gate).squeeze(-3)


@register(
    "predictor", "neumann-least-squares", free={"terms": Range(0, 30, "integer"), "bound": _BOUND, "ridge": _RIDGE}
)
class NeumannLeastSquares(Algorithm):
    """Least squares by ``terms`` steps of a Neumann series: W_t s_t = 1/c sum_i s_i (s_{i-1} . x_t).

    Starting from x_t = s_t, each step computes x_t <- s_t + (I - A_t/c) x_t, with limit c A_t^{-1} s_t. The error falls
    at least as fast as (1 - ridge/c)^terms; it grows if c is below half of A_t's largest eigenvalue.

    Args:
        terms: number of steps; 0 gives one step of gradient descent with step size 1/c.
        bound: c, an upper bound of the eigenvalues of every A_t = sum_{i<=t} s_{i-1} s_{i-1}^T + ridge I.
        ridge: 1/lambda, at least 0.

    Source: von Oswald (2024), eqs. 3.44 to 3.51 and 3.57.
    """

    def __init__(self, terms: int, bound: float, ridge: float = 1.0) -> None:
        super().__init__()
        self.terms = require_count("terms", terms, least=0)
        self.ridge, self.bound = _interval(ridge, bound)

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        return self.trajectory(sequence)[-1]

    def trajectory(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "k *batch t d"]:
        """Predictions after 0, 1, ..., ``terms`` steps."""
        before = _before(sequence)
        x, predictions = sequence, [_through_pairs(sequence, before, sequence)]
        with _diverging(_RAISE):
            for _ in range(self.terms):
                x = sequence + x - (_through_pairs(x, before, before) + self.ridge * x) / self.bound
                predictions.append(_through_pairs(x, before, sequence))
        return torch.stack(predictions) / self.bound


@register("predictor", "chebyshev-least-squares", free={"bound": _BOUND, "ridge": _RIDGE})
class ChebyshevLeastSquares(Algorithm):
    """Least squares by a polynomial of A_t: W_t s_t = sum_i s_i (s_{i-1} . x_t), x_t = sum_j c_j T_j(B_t) s_t.

    T_j are Chebyshev polynomials and B_t = (2 A_t - bound - ridge) / (bound - ridge), whose eigenvalues lie in [-1, 1].

    Args:
        coefficients: c_j, a parameter; `inverse` chooses them so that the polynomial approximates A_t^{-1}.
        bound: an upper bound of the eigenvalues of every A_t = sum_{i<=t} s_{i-1} s_{i-1}^T + ridge I.
        ridge: 1/lambda, at least 0.

    Source: von Oswald et al. (2023b), arXiv 2309.05858, who approximate the inverse with six terms.
    """

    def __init__(self, coefficients: Sequence[float], bound: float, ridge: float = 1.0) -> None:
        super().__init__()
        self.coefficients = _weights("coefficients", coefficients)
        require_count("len(coefficients)", len(coefficients))
        self.ridge, self.bound = _interval(ridge, bound)

    @classmethod
    def inverse(cls, terms: int, bound: float, ridge: float = 1.0) -> ChebyshevLeastSquares:
        """Make the predictor whose polynomial is the Chebyshev series of 1/a on [ridge, bound] up to degree ``terms``.

        c_j = (2 - [j = 0]) (-rho)^j / sqrt(ridge bound) with rho = (sqrt(bound) - sqrt(ridge)) / (sqrt(bound) +
        sqrt(ridge)). The largest error, at a = ridge, is (1 - sqrt(ridge / bound)) rho^terms / ridge.
        """
        require_count("terms", terms, least=0)
        require_number("ridge", ridge, above=0)
        _interval(ridge, bound)
        rho = (math.sqrt(bound) - math.sqrt(ridge)) / (math.sqrt(bound) + math.sqrt(ridge))
        scale = 1 / math.sqrt(ridge * bound)
        return cls([scale, *(2 * scale * (-rho) ** j for j in range(1, terms + 1))], bound, ridge)

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        before = _before(sequence)
        centre, radius = (self.bound + self.ridge) / 2, (self.bound - self.ridge) / 2
        polynomial, last = sequence, torch.zeros_like(sequence)
        coefficients = self.coefficients.to(sequence)
        x = coefficients[0] * polynomial
        with _diverging(_RAISE):
            for j, coefficient in enumerate(coefficients[1:]):
                image = _through_pairs(polynomial, before, before) + (self.ridge - centre) * polynomial
                polynomial, last = (2 if j else 1) / radius * image - last, polynomial
                x = x + coefficient * polynomial
            return _through_pairs(x, before, sequence)


def _interval(ridge: float, bound: float) -> tuple[float, float]:
    ridge, bound = require_number("ridge", ridge, least=0), require_number("bound", bound)
    if bound <= ridge:
        refuse("bound", f"be greater than ridge = {ridge:g}", bound, "pass an upper bound of A_t's eigenvalues")
    return ridge, bound


def _weights(name: str, values: Sequence[float]) -> nn.Parameter:
    require_instance(name, values, Sequence)
    numbers = [require_number(name, value) for value in values]
    return nn.Parameter(torch.tensor(numbers, dtype=torch.float64))


def _before(sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
    """Previous element at each position; zero at the first."""
    check_sequence(sequence)
    require_values({"sequence": sequence}, sequence.shape[-2])
    return functional.pad(sequence, (0, 0, 1, 0))[..., :-1, :]


@contextlib.contextmanager
def _diverging(remedy: str) -> Iterator[None]:
    """Convert an overflow in the iteration to an error that states the divergence and a remedy."""
    try:
        yield
    except (ArgumentError, NumericalError) as error:
        raise NumericalError(f"the iteration must stay finite, but diverged: {remedy}.") from error


def _through_pairs(query: Tensor, before: Tensor, values: Tensor) -> Float[Tensor, "*batch t d"]:
    """sum_{i<=t} values_i (s_{i-1} . query_t)."""
    q, k, v = (part.unsqueeze(-3) for part in (query, before, values))
    return causal_linear_attention(q, k, v).squeeze(-3)
