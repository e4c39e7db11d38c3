"""Explicit learning algorithms, each a torch module called as ``learner(context, xq)`` or ``predictor(sequence)``."""

import torch

from mesascope.learners.baselines import Averaging, Mean, Zero
from mesascope.learners.bayes import BayesPool
from mesascope.learners.centred import Centred
from mesascope.learners.descent import GradientDescent, GradientDescentPlusPlus
from mesascope.learners.kernels import KERNELS, KernelGradientDescent, KernelSmoother, NearestNeighbours
from mesascope.learners.least_squares import LeastSquares
from mesascope.learners.second_order import Newton, PreconditionedGradientDescent
from mesascope.learners.sequences import (
    ChebyshevLeastSquares,
    NeumannLeastSquares,
    OnlineGradientDescent,
    RecursiveLeastSquares,
)
from mesascope.learners.sparse import Lasso
from mesascope.learners.spectra import (
    Optimum,
    Preconditioner,
    gram_spectra,
    one_step_optimum,
    one_step_preconditioner,
    spectral_mse,
    tune_spectral,
)
from mesascope.learners.tuning import Tuned, tune

__all__ = [
    "KERNELS",
    "LEARNERS",
    "PREDICTORS",
    "Averaging",
    "BayesPool",
    "Centred",
    "ChebyshevLeastSquares",
    "GradientDescent",
    "GradientDescentPlusPlus",
    "KernelGradientDescent",
    "KernelSmoother",
    "Lasso",
    "LeastSquares",
    "Mean",
    "NearestNeighbours",
    "NeumannLeastSquares",
    "Newton",
    "OnlineGradientDescent",
    "Optimum",
    "PreconditionedGradientDescent",
    "Preconditioner",
    "RecursiveLeastSquares",
    "Tuned",
    "Zero",
    "gram_spectra",
    "one_step_optimum",
    "one_step_preconditioner",
    "spectral_mse",
    "tune",
    "tune_spectral",
]

# One example of each for the contract test, whose contexts have ten pairs of three inputs and one target.
LEARNERS = {
    "gradient-descent": lambda: GradientDescent(steps=3, eta=0.3),
    "gradient-descent-plus-plus": lambda: GradientDescentPlusPlus(steps=3, eta=0.3, gamma=0.01),
    "preconditioned-gradient-descent": lambda: PreconditionedGradientDescent(torch.diag(torch.tensor([0.3, 0.4, 0.5]))),
    "newton": lambda: Newton(steps=5),
    "least-squares": LeastSquares,
    "ridge": lambda: LeastSquares(ridge=0.1),
    "lasso": lambda: Lasso(alpha=0.05),
    "kernel-smoother": KernelSmoother,
    "kernel-gradient-descent": lambda: KernelGradientDescent(torch.tanh, steps=3, eta=0.3),
    "nearest-neighbours": NearestNeighbours,
    "bayes-pool": lambda: BayesPool(torch.eye(3).unsqueeze(1), noise=0.5),
    "centred": lambda: Centred(GradientDescent(steps=3, eta=0.3)),
    "averaging": Averaging,
    "mean": Mean,
    "zero": Zero,
}

# The same for predictors, whose sequences have 12 elements of three entries of order 1.
PREDICTORS = {
    "online-gradient-descent": lambda: OnlineGradientDescent(steps=3, eta=0.03),
    "recursive-least-squares": lambda: RecursiveLeastSquares(ridge=0.1),
    "recursive-least-squares-with-forgetting": lambda: RecursiveLeastSquares(ridge=0.1, forget=0.9),
    "neumann-least-squares": lambda: NeumannLeastSquares(terms=20, bound=100.0),
    "chebyshev-least-squares": lambda: ChebyshevLeastSquares.inverse(terms=10, bound=100.0),
}
