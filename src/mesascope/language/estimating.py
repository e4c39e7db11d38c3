"""Estimates of the time and memory for training a language model, from a few steps."""

from __future__ import annotations

import time

import torch

from mesascope.errors import require_instance
from mesascope.evidence.tables import Table
from mesascope.language.learning import MODEL, LanguageTraining, begun
from mesascope.language.windows import TextWindows
from mesascope.modes import guarded
from mesascope.runs.provenance import available_device
from mesascope.training.costs import peak_gigabytes, reset_peak_memory, steps_to_time

_SECONDS = 5.0  # target duration of the timed steps


@guarded
def estimate_language_model(settings: LanguageTraining, device: str = "cpu") -> Table:
    """Estimate hours, tokens per second and peak memory (GB) of a training from a few steps in this process.

    Memory is that of the GPU; on CPU, that of this process since its start. Evaluations and checkpoints are excluded.
    """
    require_instance("settings", settings, LanguageTraining)
    place = torch.device(available_device(device))
    windows = TextWindows(settings.corpus, settings.context + 1)
    reset_peak_memory(place)
    state, batch_at = begun(settings, windows, 0, place)

    def timed(steps: range) -> float:
        since = time.monotonic()
        for step in steps:
            state.update(batch_at(step))  # waits for the device, as it reads the loss
        return time.monotonic() - since

    timed(range(1))  # warm-up
    count = steps_to_time(timed(range(1, 2)), _SECONDS)
    seconds, plan = timed(range(2, 2 + count)) / count, settings.training
    row = {"training": MODEL, "steps": plan.steps, "hours": seconds * plan.steps / 3600}
    row |= {"tokens/s": round(plan.batch * settings.context / seconds), "memory (GB)": peak_gigabytes(place)}
    return Table([row])
