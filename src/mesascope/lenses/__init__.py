"""Lenses: methods that infer a learner's algorithm from its weights, derivatives and predictions.

Each lens is registered with the access to a learner that it needs (*prediction*, *gradient*, *products*, *tokens*,
*rule*, *trajectory* and others) and raises an error if the learner does not provide it. Modules are called in eval()
mode, and their modes are then restored.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
