"""Does a transformer trained to predict linear dynamics learn regression from pairs, and do prompts help it?

Thesis: Figure 3.5 B. Seven softmax layers that were trained on linear dynamics alone are shown x_1, y_1, x_2, y_2, ...
with y = W x, where half of the neighbours are no pairs. An EOS element between one pair and the next, and a prefix
before them all, are learned beside the frozen network. Least squares on all neighbours is what an autoregressive
learner can do without knowing which of them are pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesascope import tasks
from mesascope.evidence import Claim, Reported, above, below, ours, printed
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.mesa.dynamics import THESIS
from mesascope.studies.mesa.prompting import (
    DEVIATIONS,
    PAIRS,
    PREMISES,
    PRESETS,
    PROMPTED,
    ROLES,
    TRAINED,
    Prompting,
    at_pair,
    errors_by_pair,
    measure_pairs,
)
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab


CLAIMS = (
    *PREMISES,
    Claim(
        "few-shot", "after 30 pairs, each network errs at most three quarters of what it does at the first input, "
        "though it never was trained on pairs", lambda r: at_pair(r, "bare", 31)[:, 0] / at_pair(r, "bare", 1)[:, 0],
        below(0.75), printed("Fig. 3.5 B"), measures="error at pair 31 / at pair 1", at_least=3, premises=TRAINED,
        reported=Reported((0.619, 0.512), "authors' stored results, at 20 and at 40 pairs"),
    ),
    Claim(
        "untrained", "untrained networks do not learn from pairs",
        lambda r: at_pair(r, "untrained", 31)[:, 0] / at_pair(r, "untrained", 1)[:, 0], above(0.9),
        ours("a null control"), measures="error at pair 31 / at pair 1", at_least=3, about="algorithms",
    ),
    Claim(
        "near-least-squares", "at pair 20 each errs less than half as much again as least squares on all neighbours",
        lambda r: at_pair(r, "bare", 20)[:, 0] / at_pair(r, "all", 20)[:, 0], below(1.5),
        printed("section 3.5.2: not far from optimal"), measures="error of trained / of least squares", at_least=3,
        premises=TRAINED, reported=Reported(1.24, "authors' stored results"),
    ),
    Claim(
        "eos", "an EOS element lowers the errors of each network after 10, 20 and 30 pairs",
        lambda r: at_pair(r, "eos", 11, 21, 31) / at_pair(r, "bare", 11, 21, 31), below(0.95), printed("Fig. 3.5 B"),
        measures="error with EOS / without", at_least=3, premises=PROMPTED,
        reported=Reported((0.811, 0.788, 0.791), "authors' stored results, at 10, 20 and 40 pairs"),
    ),
    Claim(
        "prefix", "a prefix beside it lowers early errors of each network, after 5 and 10 pairs",
        lambda r: at_pair(r, "prefix", 6, 11) / at_pair(r, "eos", 6, 11), below(0.98), printed("Fig. 3.5 B"),
        measures="error with EOS and prefix / with EOS", at_least=3, premises=PROMPTED,
        reported=Reported(0.862, "authors' stored results, at 10 pairs"),
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Prompting) -> None:
    """Train on dynamics, learn prompts, and show pairs."""
    measure_pairs(lab, settings, tasks.FewShotSequence(pairs=PAIRS))


def _training(r: Any) -> list[Line]:
    return [Line(r[name]["step"], 5 * r[name]["mse"], *ROLES[name]) for name in ("eos", "prefix")]


FIGURES = (
    Figure(
        "pairs", "Errors of answers by the number of the input, and mean errors on pairs while prompts train; line and "
        "band: mean and range over seeds. Thesis: Fig. 3.5 B.",
        (
            Lines("", "pair", "half squared error", errors_by_pair, "y"),
            Lines("", "training step of the prompt", "half squared error", _training, "y"),
        ),
        columns=2, shared_legend=True, claims=("few-shot", "untrained", "near-least-squares", "eos", "prefix"),
    ),
)  # fmt: skip

STUDY = Study(
    name="mesa-few-shot",
    source=f"{THESIS}: Fig. 3.5 B",
    presets=PRESETS,
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=DEVIATIONS,
)
