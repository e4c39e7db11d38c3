from .estimators import from_sklearn as from_sklearn
from .protocols import AsLearner as AsLearner, AsPredictor as AsPredictor
