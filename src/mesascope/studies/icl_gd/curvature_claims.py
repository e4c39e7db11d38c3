"""The claims of the study of curvature."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.evidence import Bound, Claim, Reported, above, below, derived, ours, printed, stage, two_sided
from mesascope.studies.common import converged
from mesascope.studies.icl_gd.shared_claims import no_better_descent

__all__ = ["CLAIMS", "GAMMAS", "SIZES", "condition_number", "condition_numbers", "flattest", "transformed"]

SIZES = (10, 25, 50, 100)
GAMMAS = (0.0, 0.03, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)
PAPER_SMALLEST = np.array([1e-10, 0.097, 0.666, 2.870])
PAPER_LARGEST = np.array([4.6, 7.712, 10.845, 17.196])
PAPER_GAMMA = np.array([0.179, 0.099, 0.056, 0.029])
TRAINED = ("converged",)
TUNED = ("converged", "gd++-at-its-optimum", "gd++-as-predicted")


def transformed(eigenvalue: np.ndarray, gamma: np.ndarray | float) -> np.ndarray:
    """What one step of GD++ makes of an eigenvalue: eq. 25."""
    return eigenvalue * (1 - gamma * eigenvalue) ** 2


def condition_number(spectra: np.ndarray) -> np.ndarray:
    """Largest over smallest eigenvalue of each task, which is cut at 1e-10 as in the paper."""
    return spectra.max(-1) / np.maximum(spectra.min(-1), 1e-10)


def condition_numbers(smallest: float, largest: float, gamma: np.ndarray) -> np.ndarray:
    """Upper bound on the condition number after one step, from the extremes before it: appendix A.10."""
    ends = transformed(np.array(largest), gamma), transformed(np.array(smallest), gamma)
    top = np.where(3 * gamma * largest > 1, 4 / (27 * gamma), ends[0])
    return top / np.minimum(*ends)


def flattest(smallest: float, largest: float) -> float:
    """The gamma below 1 / largest whose bound on the condition number is least."""
    gammas = np.geomspace(0.02, 0.999, 2000) / largest
    return float(gammas[condition_numbers(max(smallest, 1e-10), largest, gammas).argmin()])


def _from_paper(draws: np.ndarray, paper: np.ndarray) -> np.ndarray:
    """In standard deviations between draws."""
    return (draws - paper) / draws.std(axis=0, ddof=1)


def _measured(draws: np.ndarray) -> np.ndarray:
    """The mean over draws with its error, for each size."""
    from uncertainties import ufloat

    errors = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    return np.array([ufloat(*pair) for pair in zip(draws.mean(axis=0), errors, strict=True)])


def _flattest(r: Any) -> np.ndarray:
    pairs = zip(r["spectra"]["smallest"], r["spectra"]["largest"], strict=True)
    return _measured(np.array([[flattest(*ends) for ends in zip(*draw, strict=True)] for draw in pairs]))


def _beyond(found: Any) -> np.ndarray:
    """Medians for each gamma above 0.1, relative to that at 0.1."""
    start = GAMMAS.index(0.1)
    return found["median"][:, start + 1 :] / found["median"][:, start, None]


def _at_least_median(found: Any) -> np.ndarray:
    """The median at gamma 0.14 over that at every other gamma."""
    place = GAMMAS.index(0.14)
    return np.delete(found["median"][:, place, None] / found["median"], place, axis=1)


CLAIMS = (
    converged(*(f"pairs-{size}" for size in SIZES)),
    no_better_descent("descents", "expected", "GD++", id="gd++-at-its-optimum"),
    Claim(
        "gd++-as-predicted", "tuned GD++ loses on fresh tasks what theory says of its step sizes, for each N",
        stage("descents").ratio("gd++", "expected"), two_sided(0.03), ours("premise"), over="algorithms", at_least=1,
        about="algorithms",
    ),
    Claim(
        "largest-eigenvalues",
        "the largest eigenvalue of 10,000 tasks is on average within 10 % of the paper's, for " "each N",
        stage("spectra")["largest"] / PAPER_LARGEST, two_sided(0.1), printed("appendix A.10"), over="draws",
        quantifier="mean", at_least=10, reported=Reported(tuple(PAPER_LARGEST)), about="algorithms",
    ),
    Claim(
        "smallest-eigenvalues", "the paper's smallest eigenvalue of 10,000 tasks is one that such a draw gives, for N "
        "from 25 on: within five standard deviations between draws",
        lambda r: _from_paper(r["spectra"]["smallest"][:, 1:], PAPER_SMALLEST[1:]), two_sided(5.0, around=0.0),
        printed("appendix A.10"), measures="(smallest of each draw - paper's) / standard " "deviation, mean over draws",
        over="draws", quantifier="mean", at_least=10, reported=Reported(tuple(PAPER_SMALLEST[1:])), about="algorithms",
    ),
    Claim(
        "singular-at-ten", "among 10,000 tasks with N = 10 some are singular but for rounding",
        lambda r: r["spectra"]["smallest"][:, 0], below(1e-6), printed("appendix A.10"),
        measures="smallest eigenvalue of each draw, mean over draws", over="draws", quantifier="mean", at_least=10,
        reported=Reported(PAPER_SMALLEST[0], "printed, where it is cut"), about="algorithms",
    ),
    Claim(
        "gamma-observed", "the gamma in trained weights is within 10 % of the paper's, for each N",
        stage("gamma")["gamma"] / PAPER_GAMMA, two_sided(0.1), printed("Fig. 13 centre"), quantifier="mean",
        premises=TRAINED, reported=Reported(tuple(PAPER_GAMMA)),
    ),
    Claim(
        "gamma-optimal", "the gamma in trained weights is within 10 % of tuned GD++'s, for each N",
        stage("gamma")["gamma"] / stage("gamma")["gd++ gamma"], two_sided(0.1), derived("spectral loss"),
        quantifier="mean", premises=TUNED,
    ),
    Claim(
        "gamma-condition-number",
        "the gamma of least condition number is within a factor of 2 of that in trained " "weights, for each N",
        lambda r: _flattest(r) / r["gamma"]["gamma"], Bound(0.5, 2.0), printed("Fig. 13 centre"),
        measures="gamma of least condition number, below 1 / largest eigenvalue, / gamma read", quantifier="mean",
        premises=TRAINED,
    ),
    Claim(
        "gamma-derived-larger",
        "the gamma of least condition number is larger than that in trained weights, for each " "N",
        lambda r: _flattest(r) / r["gamma"]["gamma"], above(1.0, by="paper"),
        printed("appendix A.10: a slightly larger gamma"),
        measures="gamma of least condition number, below 1 / largest eigenvalue, / gamma read", quantifier="mean",
        premises=TRAINED,
    ),
    Claim(
        "text-inputs",
        "inputs from U(-1, 1), as the text has them, give the paper's largest eigenvalues to 10 %, for " "each N",
        lambda r: 4 * r["spectra"]["largest"] / PAPER_LARGEST, two_sided(0.1), printed("section 3"),
        measures="largest of each draw of such tasks / paper's, mean over draws", over="draws", quantifier="mean",
        at_least=10, about="algorithms",
    ),
    Claim(
        "explodes", "for N = 25, condition numbers explode for gamma above 0.1: their median at 0.12 and beyond is "
        "larger than at 0.1", lambda r: _beyond(r["condition-numbers"]), above(1.0, by="paper"),
        printed("Fig. 13 right"), measures="median condition number / at gamma 0.1, for each gamma, mean over draws",
        over="draws", quantifier="mean", at_least=10, about="algorithms",
    ),
    Claim(
        "least-beyond", "their median goes on falling beyond the gamma of trained weights: it is least at 0.14, of "
        "gammas from 0 to 0.2", lambda r: _at_least_median(r["condition-numbers"]), below(1.0),
        ours("where condition numbers do explode"),
        measures="median condition number at gamma 0.14 / at each other gamma, mean over draws", over="draws",
        quantifier="mean", at_least=10, about="algorithms",
    ),
    Claim(
        "inside-roots", "all eigenvalues lie below 1 / gamma, the second root of their map, for each N",
        lambda r: _measured(r["spectra"]["largest"]) * r["gamma"]["gamma"], below(1.0), printed("appendix A.10"),
        measures="largest eigenvalue of 10,000 tasks * gamma read", quantifier="mean", premises=TRAINED,
    ),
    Claim(
        "better-conditioned",
        "one step with the gamma in trained weights lowers the condition numbers of tasks, for " "each N",
        stage("conditioning")["log-condition-change", "trained"], below(0.0), printed("Fig. 13 right"),
        premises=TRAINED,
    ),
)  # fmt: skip
