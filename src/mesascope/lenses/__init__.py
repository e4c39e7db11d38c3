"""Lenses: from weights, derivatives and predictions to the algorithm behind them.

Each declares the access it needs - *prediction*, *gradient* or *network* - and refuses a learner that gives less.
"""

from mesascope.lenses.access import access_of, per_task_errors
from mesascope.lenses.alignment import Agreement, Alignment, agreement, alignment
from mesascope.lenses.comparison import Comparison, compare
from mesascope.lenses.flow import token_sensitivity
from mesascope.lenses.sweep import SweepPoint, rollout, sweep, trajectory_errors
from mesascope.lenses.weights import StepSizes, WeightReading, interpolate, rescaled_products, step_sizes, weights

__all__ = [
    "Agreement",
    "Alignment",
    "Comparison",
    "StepSizes",
    "SweepPoint",
    "WeightReading",
    "access_of",
    "agreement",
    "alignment",
    "compare",
    "interpolate",
    "per_task_errors",
    "rescaled_products",
    "rollout",
    "step_sizes",
    "sweep",
    "token_sensitivity",
    "trajectory_errors",
    "weights",
]
