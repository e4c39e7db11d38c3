"""Everything on disk about a run. `mesascope.runs.checkpoints` alone imports torch, and is imported by its name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
