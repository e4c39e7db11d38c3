"""Task families: distributions over tasks, and the episodes they draw."""

from mesascope.tasks.episodes import Context, Episode, Family, Learner, check_episode, check_inputs
from mesascope.tasks.linear_regression import LinearRegression
from mesascope.tasks.sine_waves import SineWaves

__all__ = [
    "FAMILIES",
    "Context",
    "Episode",
    "Family",
    "Learner",
    "LinearRegression",
    "SineWaves",
    "check_episode",
    "check_inputs",
]

FAMILIES = {"linear-regression": LinearRegression, "sine-waves": SineWaves}
