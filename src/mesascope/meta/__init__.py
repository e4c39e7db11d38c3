"""Learning where to learn: gradient steps on a task, and what an outer loop learns of them.

A method such as `SparseMAML` adapts any torch module to a context; a `MetaLearner` is the two together, a learner.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
