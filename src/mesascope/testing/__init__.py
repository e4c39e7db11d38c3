"""The contracts of learners, predictors and families, as checks to call on classes of your own."""

from mesascope.testing.checks import check_family, check_learner, check_predictor

__all__ = ["check_family", "check_learner", "check_predictor"]
