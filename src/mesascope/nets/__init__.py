"""Networks: token layouts, transformers, and the learners and predictors built from them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
