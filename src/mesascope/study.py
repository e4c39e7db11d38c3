"""The parts of a study: claims with their readings, figures, and the study itself."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesascope.errors import ArgumentError, one_line, refuse
from mesascope.evidence import Bound, Claim, Reported, above, below, derived, ours, printed, two_sided
from mesascope.evidence.claims import Quantifier, check_claims
from mesascope.evidence.estimates import Arrays, Estimates
from mesascope.evidence.numbers import nominal
from mesascope.evidence.readings import Reading, StageReading, beside, stage
from mesascope.loading import from_file, imported_from
from mesascope.reports import Figure, Grid, Histogram, Level, Line, Lines, Matrices, curves, strip, sweep
from mesascope.runs.schemas import require_name
from mesascope.training import ParameterGroup, Training
from mesascope.validate import Count, NonEmpty, NonNegative, Positive, Several, Share, Whole, frozen

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

__all__ = [
    "READ_OFF", "Arrays", "Bound", "Claim", "Count", "Estimates", "Figure", "Grid", "Histogram", "Level", "Line",
    "Lines", "Matrices", "Mutation", "NonEmpty", "NonNegative", "ParameterGroup", "Positive", "Reading", "Reported",
    "Several", "Share", "StageReading", "Study", "Training", "Whole", "above", "below", "beside", "curves", "derived",
    "frozen", "load_study", "nominal", "ours", "printed", "stage", "strip", "sweep", "two_sided",
]  # fmt: skip

# Quantifier of a claim about numbers read from the weights of each trained network.
READ_OFF: dict[str, Any] = {"quantifier": "exact", "exact_because": "weights are read, not estimated"}


@dataclass(frozen=True)
class Mutation:
    """A bug to plant in a study: at least one claim that holds without it must not hold with it.

    Args:
        bug: the bug, in words.
        target: attribute to replace, as ``module:name`` or ``module:Class.name``.
        wrong: function from the correct attribute to the faulty one.
        anew: train networks with the bug; if False, networks train without it and are measured with it.
    """

    bug: str
    target: str
    wrong: Callable[[Any], Any]
    anew: bool = False

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Replace the target within this context."""
        from unittest import mock

        holder, name = self._found()
        with mock.patch.object(holder, name, self.wrong(inspect.getattr_static(holder, name))):
            yield

    def check(self) -> None:
        """Raise if the target does not exist."""
        self._found()

    def _found(self) -> tuple[Any, str]:
        """The object that holds the target, and the target's name there."""
        module, _, names = self.target.partition(":")
        *path, name = names.split(".")
        try:
            holder: Any = imported_from(module) or importlib.import_module(module)
            for part in path:
                holder = getattr(holder, part)
            getattr(holder, name)  # lazy packages import the attribute now
        except (ImportError, AttributeError, ValueError) as error:
            raise ArgumentError(
                f"the target of a bug must be module:name or module:Class.name, but {self.target!r} is not found "
                f"({one_line(error)}): correct it."
            ) from None
        return holder, name


@dataclass(frozen=True)
class Study:
    """A question, and the training, measurements, claims and figures that answer it.

    Args:
        name: name of the study, as in ``mesascope run NAME``.
        source: the paper and figures that the question is from.
        presets: settings by preset: frozen dataclasses whose fields are the study's flags. Their field ``seeds`` is the
            number of networks per training. ``quick`` is the default and must exist.
        measure: function that trains and measures with a `Lab`, whose stages store all arrays for claims and figures.
        claims: claims that no figure shows, mostly premises. After construction: all claims, those of figures last.
        figures: figures, drawn from the arrays, each with the claims that it shows.
        premises, quantifier, at_least: defaults for claims that do not set them. By default, every claim about training
            depends on ``premises``, except the premises themselves.
        deviations: differences from the source's settings, by preset; a tuple applies to ``paper``.
        unlike: default for printed claims: settings of the source from which the study departs (see `Claim`).
        question: if empty, the first line of the docstring of the module with ``measure``.
        defined_in: ``path.py:NAME`` of a user's own study; `load_study` sets it.
        trainings: number of trainings, or a function of the settings that returns it; used only to show progress.
        mutations: bugs to test the claims with; ``make mutations`` plants them one at a time.
        mutated: settings that replace those of ``quick`` for mutations: the smallest ones that still decide the claims.
    """

    name: str
    source: str
    presets: Mapping[str, Any]
    measure: Callable[[Lab, Any], None]
    claims: tuple[Claim, ...]
    figures: tuple[Figure, ...]
    premises: tuple[str, ...] = ()
    quantifier: Quantifier = "every"
    at_least: int = 5
    deviations: tuple[str, ...] | Mapping[str, tuple[str, ...]] = ()
    unlike: str | Mapping[Any, str] = ""
    question: str = ""
    defined_in: str = ""
    trainings: int | Callable[[Any], int] = 0
    mutations: tuple[Mutation, ...] = ()
    mutated: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Tasks and networks: second paragraph of the docstring of the module with `measure`, without the source."""
        _, _, rest = self._docstring().partition("\n\n")
        return re.sub(r"^(ICML paper|Thesis): .*?\. (?=[A-Z])", "", " ".join(rest.partition("\n\n")[0].split()))

    def departures(self, preset: str) -> list[str]:
        """Differences of a preset's settings from those of the source."""
        by_preset = self.deviations if isinstance(self.deviations, Mapping) else {"paper": self.deviations}
        return [*by_preset.get(preset, ())]

    def __post_init__(self) -> None:
        require_name("the name of a study", self.name)
        if "quick" not in self.presets:
            refuse("presets", "contain quick, the default", [*self.presets], "add it")
        for preset, settings in self.presets.items():
            if not is_dataclass(settings):
                refuse(f"preset {preset}", "be of a dataclass", settings, "decorate its class with study.frozen")
            if type(settings) is not type(self.presets["quick"]):
                other = type(self.presets["quick"]).__name__
                refuse(f"preset {preset}", f"be a {other}, as quick is", settings, "use one class for all presets")
        shown = (claim for figure in self.figures for claim in figure.claims if claim not in self.claims)
        claims = tuple(
            claim.completed(self.quantifier, self.at_least, self.premises, self.unlike)
            for claim in (*self.claims, *shown)
        )
        check_claims(claims)
        for claim in claims:
            for preset in self.presets:
                claim.bound(preset)
        known = {claim.id: claim for claim in claims}
        for figure in self.figures:
            require_name("the name of a figure", figure.name)
        figures = (replace(one, claims=tuple(known[claim.id] for claim in one.claims)) for one in self.figures)
        question = self.question or self._docstring().partition("\n")[0]
        for name, value in (("claims", claims), ("figures", tuple(figures)), ("question", question)):
            object.__setattr__(self, name, value)

    def plot(self, figure: str, results: Any) -> Any:
        """Draw a figure, by its name, from the results of a run; return matplotlib's figure."""
        from mesascope.reports import plotted

        return plotted(self.figures, figure, results)

    def _docstring(self) -> str:
        module = sys.modules.get(getattr(self.measure, "__module__", ""))
        return getattr(module, "__doc__", None) or ""


def load_study(spec: str) -> Study:
    """Load a user's own study from ``path.py:STUDY``; its runs store the file's path.

    Raises:
        ArgumentError: the file cannot be read, raises an error, or defines no such study.
    """
    study = from_file(spec, Study)
    path, _, name = spec.rpartition(":")
    return replace(study, defined_in=f"{Path(path).expanduser().resolve()}:{name}")
