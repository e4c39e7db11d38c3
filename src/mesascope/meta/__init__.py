"""Learning where to learn: gradient steps on a task, whose initial weights and rates an outer loop learns.

A method such as `SparseMAML` adapts any torch module to a context. A `MetaLearner` combines a module and a method to a
learner.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
