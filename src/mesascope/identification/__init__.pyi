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
from .catalogue import Catalogue as Catalogue, candidates as candidates
from .conditions import CONDITIONS as CONDITIONS, battery as battery
from .course import Course as Course, Transition as Transition, along as along, by_layer as by_layer
from .estimating import Estimate as Estimate
from .mixture import Mixture as Mixture
from .naming import identify as identify
