"""Explicit learning algorithms, each a torch module called as ``learner(context, xq)`` or ``predictor(sequence)``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
