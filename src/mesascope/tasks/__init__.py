"""Task families: distributions over tasks, and the episodes or sequences they draw."""

from mesascope.tasks.episodes import (
    Context,
    Episode,
    Family,
    Learner,
    Predictor,
    SequenceFamily,
    check_episode,
    check_inputs,
    check_sequence,
)
from mesascope.tasks.linear_dynamics import LinearDynamics
from mesascope.tasks.linear_regression import LinearRegression
from mesascope.tasks.sine_waves import SineWaves

__all__ = [
    "FAMILIES",
    "SEQUENCES",
    "Context",
    "Episode",
    "Family",
    "Learner",
    "LinearDynamics",
    "LinearRegression",
    "Predictor",
    "SequenceFamily",
    "SineWaves",
    "check_episode",
    "check_inputs",
    "check_sequence",
]

FAMILIES = {"linear-regression": LinearRegression, "sine-waves": SineWaves}
SEQUENCES = {"linear-dynamics": LinearDynamics}
