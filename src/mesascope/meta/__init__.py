"""Learning where to learn: gradient steps on a task, with initial weights and rates learned by an outer loop.

A method such as `SparseMAML` adapts any torch module to a context. A `MetaLearner` is made of a module and a method.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
