"""Contract checks for your own learners, predictors and families."""

from mesascope.testing.checks import check_family, check_learner, check_predictor

__all__ = ["check_family", "check_learner", "check_predictor"]
