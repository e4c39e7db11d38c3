"""Networks: token layouts, transformers, and the learners and predictors built from them.

A network is built by ``config.build(generator)`` or ``Network(config, generator)``. Its initial weights are drawn from
the generator, or from torch's global one if None.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
