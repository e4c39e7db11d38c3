"""mesascope: an instrument for the learning algorithms inside neural networks.

The most used names are here; the rest is in `mesascope.tasks`, `learners`, `nets`, `constructions`, `training`,
`lenses` and `studies`. Names load on first use, so that reading a run directory does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesascope.constructions import gradient_descent, gradient_descent_plus_plus
    from mesascope.learners import (
        GradientDescent,
        GradientDescentPlusPlus,
        LeastSquares,
        Mean,
        OnlineGradientDescent,
        RecursiveLeastSquares,
        Zero,
        tune,
    )
    from mesascope.lenses import alignment, compare, interpolate, rollout, sweep, weights
    from mesascope.measurement import Measurement
    from mesascope.nets import (
        AttentionConfig,
        CausalTransformer,
        CausalTransformerConfig,
        InContextRegressor,
        SequencePredictor,
        Transformer,
        TransformerConfig,
    )
    from mesascope.tasks import Context, Episode, LinearDynamics, LinearRegression
    from mesascope.training import Training, train

__version__ = "0.1.0"

_HOMES = {
    "constructions": ("gradient_descent", "gradient_descent_plus_plus"),
    "learners": (
        "GradientDescent",
        "GradientDescentPlusPlus",
        "LeastSquares",
        "Mean",
        "OnlineGradientDescent",
        "RecursiveLeastSquares",
        "Zero",
        "tune",
    ),
    "lenses": ("alignment", "compare", "interpolate", "rollout", "sweep", "weights"),
    "measurement": ("Measurement",),
    "nets": (
        "AttentionConfig",
        "CausalTransformer",
        "CausalTransformerConfig",
        "InContextRegressor",
        "SequencePredictor",
        "Transformer",
        "TransformerConfig",
    ),
    "tasks": ("Context", "Episode", "LinearDynamics", "LinearRegression"),
    "training": ("Training", "train"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AttentionConfig",
    "CausalTransformer",
    "CausalTransformerConfig",
    "Context",
    "Episode",
    "GradientDescent",
    "GradientDescentPlusPlus",
    "InContextRegressor",
    "LeastSquares",
    "LinearDynamics",
    "LinearRegression",
    "Mean",
    "Measurement",
    "OnlineGradientDescent",
    "RecursiveLeastSquares",
    "SequencePredictor",
    "Training",
    "Transformer",
    "TransformerConfig",
    "Zero",
    "__version__",
    "alignment",
    "compare",
    "gradient_descent",
    "gradient_descent_plus_plus",
    "interpolate",
    "rollout",
    "sweep",
    "train",
    "tune",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"mesascope.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'mesascope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
