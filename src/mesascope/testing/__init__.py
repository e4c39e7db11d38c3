"""Contract checks for your own learners, predictors and families, and a pytest plugin that judges claims."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
