"""Identification of a learner's learning algorithm from its predictions.

`identify` compares a learner with a catalogue of candidate algorithms on the same tasks. It fits the free parameters of
each candidate and names the candidates that equal the learner.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
