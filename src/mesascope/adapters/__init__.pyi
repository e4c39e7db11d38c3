from .protocols import AsLearner as AsLearner, AsPredictor as AsPredictor
