"""Evidence: claims, the samples they are read from, and the verdicts that intervals give. Imports no torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
