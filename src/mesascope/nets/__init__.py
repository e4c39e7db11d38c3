"""Networks: token layouts, transformers, and the learners and predictors built from them.

Build a network with ``config.build(generator)``. Initial weights are drawn from the generator, or from torch's global
generator if it is None.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
