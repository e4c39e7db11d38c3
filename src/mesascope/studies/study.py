"""What a study is: a question from the seeds, with its trainings, claims and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mesascope.errors import MesascopeError
from mesascope.measurement import Measurement
from mesascope.runs import Claim
from mesascope.studies.lab import Lab

__all__ = ["Results", "Study"]

Results = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Study:
    """A question and how it is answered.

    Args:
        name: as typed after ``mesascope run``.
        question, source: what is asked, and the seed and figures it is asked in.
        presets: the settings (a frozen dataclass, whose fields are the study's flags) of each preset.
        claims: what it must show.
        measure: trains and measures in a `Lab`; returns every array that claims and figures need, stage by stage.
        judge: one Measurement a claim, from those arrays alone.
        draw: one figure a panel, from those arrays alone; a key is the figure's file name, its label the caption.
    """

    name: str
    question: str
    source: str
    presets: Mapping[str, Any]
    claims: tuple[Claim, ...]
    measure: Callable[[Lab, Any], Results]
    judge: Callable[[Results], Mapping[str, Measurement]]
    draw: Callable[[Results], Mapping[str, Figure]]

    def __post_init__(self) -> None:
        ids = [claim.id for claim in self.claims]
        if len(set(ids)) != len(ids):
            raise MesascopeError(f"claims of {self.name} must have different ids, but are {ids}: rename one.")
        for claim in self.claims:
            if set(claim.bounds) != set(self.presets):
                raise MesascopeError(f"claim {claim.id} must have a bound for each preset of {self.name}: add it.")
