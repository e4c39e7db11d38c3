from .costs import keep_freed_memory as keep_freed_memory
from .ensemble import Ensemble as Ensemble, Module as Module
from .ensemble_state import EnsembleState as EnsembleState
from .family import half_mse as half_mse, pair_half_mse as pair_half_mse, train as train
from .loop import (
    Checkpoints as Checkpoints,
    Metrics as Metrics,
    Observer as Observer,
    ProgressBar as ProgressBar,
    TrainingState as TrainingState,
    fit as fit,
    result_tensors as result_tensors,
)
from .module_state import ModuleState as ModuleState
from .plan import (
    SCHEDULES as SCHEDULES,
    ParameterGroup as ParameterGroup,
    Training as Training,
    schedule_factor as schedule_factor,
)
from .processes import (
    SharedCheckpoints as SharedCheckpoints,
    distributed_context as distributed_context,
    is_rank_zero as is_rank_zero,
    local_batch as local_batch,
    local_device as local_device,
    on_rank_zero as on_rank_zero,
    sharded as sharded,
)
