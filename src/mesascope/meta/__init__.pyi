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
from .modulation import MODULATIONS as MODULATIONS, Modulation as Modulation
