from .config import (
    LOSSES as LOSSES,
    METHODS as METHODS,
    MetaLearnerConfig as MetaLearnerConfig,
    outer_loss as outer_loss,
)
from .learner import MetaLearner as MetaLearner
from .maml import (
    ANIL as ANIL,
    BOIL as BOIL,
    MAML as MAML,
    ExpMAML as ExpMAML,
    MetaSGD as MetaSGD,
    SparseMAML as SparseMAML,
    SparseMAMLPlus as SparseMAMLPlus,
    SparseReLUMAML as SparseReLUMAML,
)
from .modulation import MODULATIONS as MODULATIONS, Modulation as Modulation, binary as binary
