"""The contracts of learners, predictors and families, as checks, and examples of everything registered."""

from mesascope.testing.checks import check_family, check_learner, check_predictor
from mesascope.testing.examples import EXAMPLES, examples

__all__ = ["EXAMPLES", "check_family", "check_learner", "check_predictor", "examples"]
