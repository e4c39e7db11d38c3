from .continual import (
    GEM as GEM,
    MER as MER,
    ContinualMethod as ContinualMethod,
    ExperienceReplay as ExperienceReplay,
    LaMAML as LaMAML,
    Learning as Learning,
    OnlineSGD as OnlineSGD,
    Reservoir as Reservoir,
    SparseLaMAML as SparseLaMAML,
    Sync as Sync,
    TaskMemory as TaskMemory,
)
from .continual_state import (
    ContinualBatch as ContinualBatch,
    ContinualState as ContinualState,
    batch_of as batch_of,
    retained_accuracy as retained_accuracy,
)
from .gradients import Gradient as Gradient, LookAhead as LookAhead
from .learner import (
    LOSSES as LOSSES,
    METHODS as METHODS,
    MetaLearner as MetaLearner,
    MetaLearnerConfig as MetaLearnerConfig,
    TaskCopy as TaskCopy,
    outer_loss as outer_loss,
)
from .maml import (
    ANIL as ANIL,
    BOIL as BOIL,
    MAML as MAML,
    ExpMAML as ExpMAML,
    MetaSGD as MetaSGD,
    SparseMAML as SparseMAML,
    SparseReLUMAML as SparseReLUMAML,
)
from .modulation import MODULATIONS as MODULATIONS, Modulation as Modulation, binary as binary
from .online import (
    BayesianDescent as BayesianDescent,
    BayesianDescentState as BayesianDescentState,
    ContinualMAML as ContinualMAML,
    ContinualMAMLState as ContinualMAMLState,
    OnlineDescent as OnlineDescent,
    OnlineDescentState as OnlineDescentState,
)
from .preconditioning import (
    MetaCurvature as MetaCurvature,
    MTNet as MTNet,
    Shrinkage as Shrinkage,
    SparseMAMLPlus as SparseMAMLPlus,
)
