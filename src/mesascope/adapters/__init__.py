"""Adapters: learners from functions, estimators, language models and sequence predictors."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
