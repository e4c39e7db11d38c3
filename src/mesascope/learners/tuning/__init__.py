"""Tuning: step sizes that minimise a learner's mean squared error on a family of tasks."""

from mesascope.learners.tuning.tuned import Tuned, tune, tune_spectral

__all__ = ["Tuned", "tune", "tune_spectral"]
