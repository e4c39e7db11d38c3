"""Step sizes that minimise the mean squared error of a learner on a family of tasks."""

from mesascope.learners.tuning.tuned import Tuned, tune, tune_spectral

__all__ = ["Tuned", "tune", "tune_spectral"]
