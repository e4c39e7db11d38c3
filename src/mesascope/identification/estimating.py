"""Estimated cost of an identification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from mesascope.adapters.text import TextLearner
from mesascope.evidence.tables import Table, Tabular
from mesascope.identification.candidate import Candidate
from mesascope.identification.conditions import OWN, battery
from mesascope.identification.fitting import fits
from mesascope.identification.seen import LEAST, precision
from mesascope.lenses.needs import predict_in_eval
from mesascope.progress import duration
from mesascope.tasks import Learner
from mesascope.text import counted

# Number of cheap candidates to time, tasks per timed fit, and typical ratio (1.5 to 4) of comparison time to fit time.
_TIMED, _TASKS, _TIMES = 10, 16, 3
# Tasks and ratio for costly candidates, which are all timed.
_FEW, _TIMES_COSTLY = 2, 10


@dataclass(frozen=True, repr=False)
class Estimate(Tabular):
    """Estimated cost of an identification; seconds are accurate within a factor of three.

    Args:
        predictions: maximum number of predictions; a deterministic learner in float64 needs about a third less.
        seconds: time of these predictions; None for a language model, which is not called.
        tokens: prompt tokens of a language model; None for other learners.
        candidates: seconds to compare the cheap candidates.
        costly: seconds to compare the costly candidates, needed only if the learner runs no cheap candidate.
    """

    learner: str
    predictions: int
    seconds: float | None
    tokens: int | None
    candidates: float
    costly: float

    def table(self) -> Table:
        """One row."""
        return Table([vars(self)])

    def __str__(self) -> str:
        cost = f"{self.tokens:,} tokens" if self.seconds is None else duration(self.seconds)
        more = f", and costly ones {duration(self.costly)} more" if self.costly else ""
        return (
            f"{self.learner} is asked for at most {counted(self.predictions, 'prediction')}, about {cost}; comparing "
            f"candidates takes about {duration(self.candidates)}{more}."
        )

    __repr__ = __str__


def estimated(
    learner: Learner, family: Any, chosen: Sequence[Candidate], predictions: int, name: str, seed: int
) -> Estimate:
    """Measure the time of candidates' fits and, except for a language model, of one call of the learner."""
    # Draw new tasks each time, as costly candidates cache their answers.
    tasks = battery(family, _TASKS, seed, f"estimate {monotonic()}")[OWN]
    few, seconds, tokens = tasks.part(0, LEAST), None, None
    if isinstance(learner, TextLearner):
        tokens = learner.estimate(family, predictions)[0]["tokens"]
    else:
        own = few.to(precision(learner, few.part(0, 1)))  # also warms the learner up
        seconds = _seconds(lambda: predict_in_eval(learner, own.context, own.xq)) * predictions / own.yq[..., 0].numel()
    cheap, costly = ([one for one in chosen if one.costly == which] for which in (False, True))
    timed = cheap[:: max(len(cheap) // _TIMED, 1)]
    each = sum(_seconds(lambda one=one: fits(one, {OWN: tasks}, {OWN: tasks.yq})) for one in timed) / max(len(timed), 1)
    pair = tasks.part(0, _FEW)
    slow = sum(_seconds(lambda one=one: fits(one, {OWN: pair}, {OWN: pair.yq})) for one in costly)
    return Estimate(name, predictions, seconds, tokens, _TIMES * each * len(cheap), _TIMES_COSTLY * slow)


def _seconds(call: Callable[[], object]) -> float:
    begun = monotonic()
    call()
    return monotonic() - begun
