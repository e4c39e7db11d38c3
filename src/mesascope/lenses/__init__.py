"""Lenses: from weights, derivatives and predictions to the algorithm behind them.

Each is registered with what it needs of a learner - *prediction*, *gradient*, *products*, *tokens*, *rule* or
*trajectory* - and refuses one that gives less. Modules are called in evaluation mode and left as they were.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
