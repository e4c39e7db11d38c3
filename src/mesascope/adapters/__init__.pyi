from .arrays import from_numpy as from_numpy
from .estimators import from_sklearn as from_sklearn
from .fla import chunk_mesa_net as chunk_mesa_net, from_mesa_net as from_mesa_net
from .protocols import AsLearner as AsLearner, AsPredictor as AsPredictor
from .recorded import record as record, replay as replay
