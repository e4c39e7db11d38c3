"""Training: one loop, ensembles of seeds, schedules."""

from mesascope.training.ensemble import Ensemble, Module
from mesascope.training.family import half_mse, train
from mesascope.training.loop import Checkpoints, Observer, Training, fit, keep_freed_memory
from mesascope.training.progress import ProgressBar
from mesascope.training.schedules import SCHEDULES, schedule_factor

__all__ = [
    "SCHEDULES",
    "Checkpoints",
    "Ensemble",
    "Module",
    "Observer",
    "ProgressBar",
    "Training",
    "fit",
    "half_mse",
    "keep_freed_memory",
    "schedule_factor",
    "train",
]
