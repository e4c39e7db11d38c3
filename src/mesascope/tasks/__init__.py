"""Task families: distributions over tasks, and the episodes they draw."""

from mesascope.tasks.episodes import Context, Episode, Family, Learner, check_episode, check_inputs
from mesascope.tasks.linear_regression import LinearRegression

__all__ = [
    "FAMILIES",
    "Context",
    "Episode",
    "Family",
    "Learner",
    "LinearRegression",
    "check_episode",
    "check_inputs",
]

FAMILIES = {"linear-regression": LinearRegression}
