from .ensemble import Ensemble as Ensemble, Module as Module
from .family import half_mse as half_mse, train as train
from .loop import (
    Checkpoints as Checkpoints,
    Observer as Observer,
    Training as Training,
    fit as fit,
    keep_freed_memory as keep_freed_memory,
)
from .progress import ProgressBar as ProgressBar
from .schedules import SCHEDULES as SCHEDULES, schedule_factor as schedule_factor
