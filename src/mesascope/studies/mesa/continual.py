"""Does a transformer trained to predict linear dynamics learn two regressions, one after the other?

Thesis: Figure 3.5 C. The networks and prompts of study mesa-few-shot are shown pairs of one task and then of another;
`--reuse` takes them over from a run of it. Least squares on all neighbours never forgets the first task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesascope import tasks
from mesascope.evidence import Claim, above, below, ours, printed
from mesascope.reports import Figure, Lines
from mesascope.studies.mesa.dynamics import THESIS
from mesascope.studies.mesa.prompting import (
    DEVIATIONS,
    PAIRS,
    PREMISES,
    PRESETS,
    PROMPTED,
    TRAINED,
    Prompting,
    at_pair,
    errors_by_pair,
    measure_pairs,
)
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

# Of each task: with EOS and prefix, both together are as long as what the networks were trained on.
EACH = PAIRS // 2
LAST, FIRST, END = EACH, EACH + 1, 2 * EACH


def _relative(r: Any, name: str) -> Any:
    """Error at the last pair of the second task over that at the very first input, where nothing is known."""
    return at_pair(r, name, END)[:, 0] / at_pair(r, name, 1)[:, 0]


CLAIMS = (
    *PREMISES,
    Claim(
        "first-learned", "the first task is learned: at its last pair each network errs less than at its first",
        lambda r: at_pair(r, "bare", LAST)[:, 0] / at_pair(r, "bare", 1)[:, 0], below(0.9), printed("Fig. 3.5 C"),
        measures="error at the last pair of the first task / at the first", at_least=3, premises=TRAINED,
    ),
    Claim(
        "switch", "where the second task begins, each network errs more than before",
        lambda r: at_pair(r, "bare", FIRST)[:, 0] / at_pair(r, "bare", LAST)[:, 0], above(1.1), printed("Fig. 3.5 C"),
        measures="error at the first pair of the second task / at the last of the first", at_least=3, premises=TRAINED,
    ),
    Claim(
        "second-learned",
        "the second task is learned, too, without a prompt: each network errs less than where it " "knew nothing",
        lambda r: _relative(r, "bare"), below(0.9), printed("Fig. 3.5 C"),
        measures="error at the last pair of the second task / at the first of the first", at_least=3, premises=TRAINED,
    ),
    Claim(
        "second-prompted", "and with EOS and prefix", lambda r: _relative(r, "prefix"), below(0.9),
        printed("Fig. 3.5 C"), measures="error at the last pair of the second task / at the first of the first",
        at_least=3, premises=PROMPTED,
    ),
    Claim(
        "prompts-help", "with EOS and prefix each network errs less at the end of the second task than without",
        lambda r: at_pair(r, "prefix", END)[:, 0] / at_pair(r, "bare", END)[:, 0], below(1.0), printed("Fig. 3.5 C"),
        measures="error with EOS and prefix / without, at the last pair", at_least=3, premises=PROMPTED,
    ),
    Claim(
        "forgets", "on the second task each network errs less at the end than least squares on all neighbours, which "
        "keeps the first", lambda r: at_pair(r, "bare", END)[:, 0] / at_pair(r, "all", END)[:, 0], below(1.0),
        ours("overwriting the first task, which section 3.5.2 speaks of"),
        measures="error of trained / of least squares on all, at the last pair", at_least=3, premises=TRAINED,
    ),
    Claim(
        "untrained", "untrained networks learn neither", lambda r: _relative(r, "untrained"), above(0.9),
        ours("a null control"), measures="error at the last pair of the second task / at the first of the first",
        at_least=3, about="algorithms",
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Prompting) -> None:
    """Train on dynamics, learn prompts, and show pairs of two tasks."""
    measure_pairs(lab, settings, tasks.FewShotSequence(pairs=EACH, tasks=2))


FIGURES = (
    Figure(
        "pairs", f"Errors of answers by the number of the input; from {FIRST} on they are of another task. Line and "
        "band: mean and range over seeds. Thesis: Fig. 3.5 C.",
        (Lines("", "pair", "half squared error", errors_by_pair, "y"),), columns=1,
        claims=(
            "first-learned", "switch", "second-learned", "second-prompted", "prompts-help", "forgets", "untrained",
        ),
    ),
)  # fmt: skip

STUDY = Study(
    name="mesa-continual",
    source=f"{THESIS}: Fig. 3.5 C",
    presets=PRESETS,
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=DEVIATIONS,
)
