"""Learning-rate schedules: the factor on the learning rate at each step."""

from __future__ import annotations

import math

__all__ = ["SCHEDULES", "schedule_factor"]


def _constant(progress: float) -> float:
    return 1.0


def _linear(progress: float) -> float:
    return 1.0 - progress


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES = {"constant": _constant, "linear": _linear, "cosine": _cosine}


def schedule_factor(schedule: str, step: int, steps: int, decay_from: float) -> float:
    """1 up to the share ``decay_from`` of all steps, then down to nearly 0 at the last one along ``schedule``.

    >>> [round(schedule_factor("linear", step, 8, 0.5), 2) for step in range(8)]
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    start = decay_from * steps
    return SCHEDULES[schedule](max(0.0, (step - start) / (steps - start)) if steps > start else 0.0)
