"""Explicit learning algorithms, each a torch module called as ``learner(context, xq)``."""

from mesascope.learners.baselines import Mean, Zero
from mesascope.learners.descent import GradientDescent, GradientDescentPlusPlus
from mesascope.learners.least_squares import LeastSquares
from mesascope.learners.spectra import Optimum, gram_spectra, one_step_optimum, spectral_mse, tune_spectral
from mesascope.learners.tuning import Tuned, tune

__all__ = [
    "LEARNERS",
    "GradientDescent",
    "GradientDescentPlusPlus",
    "LeastSquares",
    "Mean",
    "Optimum",
    "Tuned",
    "Zero",
    "gram_spectra",
    "one_step_optimum",
    "spectral_mse",
    "tune",
    "tune_spectral",
]

# One example of each for the contract test and for `mesascope list`.
LEARNERS = {
    "gradient-descent": lambda: GradientDescent(steps=3, eta=0.3),
    "gradient-descent-plus-plus": lambda: GradientDescentPlusPlus(steps=3, eta=0.3, gamma=0.01),
    "least-squares": LeastSquares,
    "ridge": lambda: LeastSquares(ridge=0.1),
    "mean": Mean,
    "zero": Zero,
}
