"""Language models with softmax, linear, delta and mesa layers: text, training, evaluation, sampling, inspection."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
