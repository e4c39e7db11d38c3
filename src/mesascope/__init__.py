"""mesascope: an instrument for the learning algorithms inside neural networks.

The most used names are here; the rest is in `mesascope.tasks`, `learners`, `nets`, `constructions`, `adapters`,
`training`, `lenses` and `studies`. Names load on first use (each package lists its own in an ``__init__.pyi``), so that
the command line answers at once and reading a run directory imports no torch.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
