"""Lenses: from weights, derivatives and predictions to the algorithm behind them.

Each declares the access it needs - *prediction*, *gradient* or *network* - and refuses a learner that gives less.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
