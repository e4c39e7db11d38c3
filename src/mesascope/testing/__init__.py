"""The contracts of learners, predictors and families, as checks for classes of your own."""

from mesascope.testing.checks import check_family, check_learner, check_predictor

__all__ = ["check_family", "check_learner", "check_predictor"]
