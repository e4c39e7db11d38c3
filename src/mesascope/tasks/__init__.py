"""Task families: distributions over tasks, from which episodes or sequences are drawn."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
