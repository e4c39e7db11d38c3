"""What a study is: a question from the papers, with its trainings, measurements, claims and figures."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesascope.errors import refuse, require_choice
from mesascope.evidence import Claim
from mesascope.evidence.claims import check_claims
from mesascope.loading import from_file
from mesascope.reports import Figure
from mesascope.runs.schemas import Name, problem

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

__all__ = ["Study", "load_study"]


@dataclass(frozen=True)
class Study:
    """A question and how it is answered.

    Args:
        name: as typed after ``mesascope run``.
        question, source: what is asked, and the paper and figures it is asked in.
        presets: the settings of each preset: a frozen dataclass whose fields are the study's flags, with ``seeds``,
            the number of networks trained.
        measure: trains and measures at a `Lab`, whose stages hold every array that claims and figures need.
        claims: what it must show, read from those arrays.
        figures: drawn from those arrays.
        deviations: how the ``paper`` preset differs from the paper's own settings.
        defined_in: ``path.py:NAME`` of a study of your own; `load_study` sets it.
        trainings: the number of trainings, or a function of the settings that returns it, for progress alone.
    """

    name: str
    question: str
    source: str
    presets: Mapping[str, Any]
    measure: Callable[[Lab, Any], None]
    claims: tuple[Claim, ...]
    figures: tuple[Figure, ...]
    deviations: tuple[str, ...] = ()
    defined_in: str = ""
    trainings: int | Callable[[Any], int] = 0

    @property
    def method(self) -> str:
        """Tasks and networks: the second paragraph of the docstring of the module with `measure`, but its source."""
        module = sys.modules.get(getattr(self.measure, "__module__", ""))
        _, _, rest = (getattr(module, "__doc__", None) or "").partition("\n\n")
        return re.sub(r"^(ICML paper|Thesis): .*?\. (?=[A-Z])", "", " ".join(rest.partition("\n\n")[0].split()))

    def __post_init__(self) -> None:
        check_claims(self.claims)
        for claim in self.claims:
            for preset in self.presets:
                claim.bound(preset)
        for figure in self.figures:
            if problem(figure.name, Name):
                refuse("the name of a figure", "be free of slashes", figure.name, "choose another")
            for shown in figure.claims:
                require_choice(
                    f"a claim that the figure {figure.name} shows", shown, [claim.id for claim in self.claims]
                )


def load_study(spec: str) -> Study:
    """The study of your own that ``path.py:STUDY`` spells; its runs record where it is defined.

    Raises:
        ArgumentError: the file cannot be read, raises an error, or defines no such study.
    """
    study = from_file(spec, Study)
    path, _, name = spec.rpartition(":")
    return replace(study, defined_in=f"{Path(path).expanduser().resolve()}:{name}")
