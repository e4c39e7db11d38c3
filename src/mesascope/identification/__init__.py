"""Which learning algorithm a learner runs, as far as its predictions tell.

`identify` puts tasks to a learner and to a catalogue of algorithms, whose free parameters it fits, and says which of
them cannot be told apart from the learner.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
