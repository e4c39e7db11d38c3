"""Examples of everything registered, which the contract tests walk; an entry without one fails them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mesascope.constructions import (
    copy_tokens,
    gradient_descent,
    gradient_descent_plus_plus,
    kernel_gradient_descent,
    mesa_gradient_descent,
    mesa_least_squares,
    neumann_preconditioning,
    online_gradient_descent,
    softmax_gradient_descent,
)
from mesascope.learners import (
    Averaging,
    BayesPool,
    Centred,
    ChebyshevLeastSquares,
    GradientDescent,
    GradientDescentPlusPlus,
    KernelGradientDescent,
    KernelSmoother,
    Lasso,
    LeastSquares,
    Mean,
    NearestNeighbours,
    NeumannLeastSquares,
    Newton,
    OnlineGradientDescent,
    PreconditionedGradientDescent,
    RecursiveLeastSquares,
    Zero,
)
from mesascope.nets import MLP
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics, LinearRegression, SineWaves

__all__ = ["EXAMPLES", "examples"]

# Learners meet contexts of ten pairs of three inputs and one target; predictors sequences of 12 elements of three
# entries of order 1. Constructions are built for the sizes (d_in, d_out, n_context, steps, w0), those of sequences for
# (d, steps, w0); those that start from zero weights take no notice of w0.
EXAMPLES: dict[str, dict[str, list[Callable[..., Any]]]] = {
    "family": {
        "linear-regression": [LinearRegression],
        "sine-waves": [SineWaves],
        "linear-dynamics": [LinearDynamics],
    },
    "learner": {
        "gradient-descent": [lambda: GradientDescent(steps=3, eta=0.3)],
        "gradient-descent-plus-plus": [lambda: GradientDescentPlusPlus(steps=3, eta=0.3, gamma=0.01)],
        "preconditioned-gradient-descent": [
            lambda: PreconditionedGradientDescent(torch.diag(torch.tensor([0.3, 0.4, 0.5])))
        ],
        "newton": [lambda: Newton(steps=5)],
        "least-squares": [LeastSquares, lambda: LeastSquares(ridge=0.1)],
        "lasso": [lambda: Lasso(alpha=0.05)],
        "kernel-smoother": [KernelSmoother],
        "kernel-gradient-descent": [lambda: KernelGradientDescent(torch.tanh, steps=3, eta=0.3)],
        "nearest-neighbours": [NearestNeighbours],
        "bayes-pool": [lambda: BayesPool(torch.eye(3).unsqueeze(1), noise=0.5)],
        "centred": [lambda: Centred(GradientDescent(steps=3, eta=0.3))],
        "averaging": [Averaging],
        "mean": [Mean],
        "zero": [Zero],
    },
    "predictor": {
        "online-gradient-descent": [lambda: OnlineGradientDescent(steps=3, eta=0.03)],
        "recursive-least-squares": [
            lambda: RecursiveLeastSquares(ridge=0.1),
            lambda: RecursiveLeastSquares(ridge=0.1, forget=0.9),
        ],
        "neumann-least-squares": [lambda: NeumannLeastSquares(terms=20, bound=100.0)],
        "chebyshev-least-squares": [lambda: ChebyshevLeastSquares.inverse(terms=10, bound=100.0)],
    },
    "construction": {
        "gradient-descent": [lambda d_in, d_out, n, steps, w0: gradient_descent(d_in, d_out, 0.4, n, steps, w0)],
        "gradient-descent-plus-plus": [
            lambda d_in, d_out, n, steps, w0: gradient_descent_plus_plus(
                d_in, d_out, [0.4 / (k + 1) for k in range(steps)], 0.02 / n, n, steps, w0
            )
        ],
        "kernel-gradient-descent": [
            lambda d_in, d_out, n, steps, w0: kernel_gradient_descent(
                MLP(d_in, 3 * d_in, 1.0, stream(0, "init")), d_out, 0.1, n, steps
            )
        ],
        "copy-tokens": [
            lambda d_in, d_out, n, steps, w0: copy_tokens(d_in, d_out, 0.4, n, steps),
            lambda d_in, d_out, n, steps, w0: copy_tokens(d_in, d_out, 0.4, n, steps, "softmax"),
        ],
        # equals its algorithm only in the limit of a small scale
        "softmax-gradient-descent": [
            lambda d_in, d_out, n, steps, w0: softmax_gradient_descent(d_in, d_out, 0.4, steps, scale=1e-4)
        ],
    },
    "sequence-construction": {
        "mesa-gradient-descent": [lambda d, steps, w0: mesa_gradient_descent(d, 0.03, w0)],
        "online-gradient-descent": [
            lambda d, steps, w0: online_gradient_descent(d, [0.03 / (k + 1) for k in range(steps)], steps, w0)
        ],
        # of orthogonal dynamics, where |s_t|^2 is near d
        "neumann-preconditioning": [lambda d, steps, w0: neumann_preconditioning(d, steps, bound=60.0 * d)],
        "mesa-least-squares": [lambda d, steps, w0: mesa_least_squares(d, 0.5)],
    },
}


def examples(kind: str) -> list[tuple[str, Callable[..., Any]]]:
    """Name and builder of every example of a kind; raises AssertionError where an entry has none.

    Only mesascope's own entries need one.
    """
    own = EXAMPLES[kind]
    for name, target in registered(kind).items():
        if target.__module__.startswith("mesascope.") and name not in own:
            raise AssertionError(f"{kind} {name!r} must have an example in mesascope.testing.examples.")
    return [(name, builder) for name, builders in own.items() for builder in builders]
