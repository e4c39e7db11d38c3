from .claims import (
    Bound as Bound,
    Claim as Claim,
    Reported as Reported,
    Source as Source,
    above as above,
    below as below,
    derived as derived,
    ours as ours,
    printed as printed,
    two_sided as two_sided,
)
from .estimates import Arrays as Arrays, Estimates as Estimates, Stage as Stage
from .judging import LEVEL as LEVEL, judge as judge, least_replicates as least_replicates
from .readings import (
    Reading as Reading,
    StageReading as StageReading,
    beside as beside,
    column as column,
    stage as stage,
)
from .verdicts import Verdicts as Verdicts, controlled as controlled
