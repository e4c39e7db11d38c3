"""Constructions: weights for which a network equals a learning algorithm."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
