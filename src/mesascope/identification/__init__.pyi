from .answer import Identification as Identification
from .behaviour import (
    INVARIANCES as INVARIANCES,
    Behaviour as Behaviour,
    behaviour_of as behaviour_of,
    controls as controls,
    implicit_weights as implicit_weights,
    invariances as invariances,
    smoother_weights as smoother_weights,
    spectral_filter as spectral_filter,
    superposition as superposition,
    untrained as untrained,
)
from .candidate import FAMILIES as FAMILIES, Candidate as Candidate
from .catalogue import candidates as candidates
from .conditions import CONDITIONS as CONDITIONS, battery as battery
from .naming import identify as identify
