"""Language models whose layers are softmax, linear, delta or mesa: text, training, evaluation, sampling, inspection."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
