"""Identification of the learning algorithm that a learner runs, from its predictions.

`identify` gives the same tasks to a learner and to a catalogue of algorithms, fits the free parameters of the
algorithms, and names those that equal the learner.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
