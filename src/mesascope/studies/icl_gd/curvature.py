"""Does GD++ flatten the curvature of the tasks it is trained on?

ICML paper: Figure 13 and appendix A.10. Each GD++ step maps an eigenvalue of X X^T to f(l) = l (1 - gamma l)^2. The
spectra of tasks of N = 10, 25, 50 and 100 pairs are compared with the gamma that looped two-layer networks find on
them.
"""

from __future__ import annotations

import dataclasses

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mesascope.learners import gram_spectra
from mesascope.lenses import step_sizes
from mesascope.measurement import Measurement
from mesascope.nets import TransformerConfig
from mesascope.reports import COLOURS, STYLE
from mesascope.runs import Bound, Claim
from mesascope.streams import stream
from mesascope.studies.evidence import both, largest
from mesascope.studies.icl_gd.panels import captioned
from mesascope.studies.icl_gd.regression import Regression, tied_gd_plus_plus, train_nets
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study

__all__ = ["STUDY"]

SIZES = (10, 25, 50, 100)
PAPER_SMALLEST = np.array([1e-10, 0.097, 0.666, 2.870])
PAPER_LARGEST = np.array([4.6, 7.712, 10.845, 17.196])
PAPER_GAMMA = np.array([0.179, 0.099, 0.056, 0.029])
CUT = 1e-10
CONTEXTS, REPEATS, SHOWN = 10_000, 10, 2_000
GRID = np.geomspace(0.02, 0.999, 2000)

CLAIMS = (
    Claim(
        "largest-eigenvalues",
        "distance of the largest eigenvalue of 10,000 tasks, mean of ten draws, from the paper's, % (worst N)",
        "ICML paper, appendix A.10",
        both(Bound(high=10.0)),
    ),
    Claim(
        "smallest-eigenvalues",
        "distance of the smallest from the paper's, in standard deviations between draws (worst N from 25 on)",
        "ICML paper, appendix A.10",
        both(Bound(high=5.0)),
    ),
    Claim(
        "singular-at-ten",
        "smallest eigenvalue of 10,000 tasks with N = 10, largest of ten draws",
        "ICML paper, appendix A.10",
        both(Bound(high=1e-6)),
        reference=1e-10,
    ),
    Claim(
        "gamma-observed",
        "distance of the gamma in trained weights from the paper's, % (worst seed and N)",
        "ICML paper, Fig. 13 centre",
        both(Bound(high=10.0)),
    ),
    Claim(
        "gamma-optimal",
        "distance of the gamma in trained weights from tied GD++'s optimum, % (worst seed and N)",
        "derived: spectral loss",
        both(Bound(high=10.0)),
    ),
    Claim(
        "gamma-condition-number",
        "gamma of least condition number, below 1 / largest eigenvalue, over the observed: farthest from 1 (worst N)",
        "ICML paper, Fig. 13 centre",
        both(Bound(low=0.5, high=2.0)),
    ),
    Claim(
        "inside-roots",
        "largest eigenvalue times the observed gamma (worst seed and N)",
        "ICML paper, appendix A.10",
        both(Bound(high=1.0)),
    ),
    Claim(
        "better-conditioned",
        "condition number of the median task after one step, over that before it (worst seed and N)",
        "ICML paper, Fig. 13 right",
        both(Bound(high=1.0)),
    ),
)


def measure(lab: Lab, settings: Regression) -> Results:
    """Draw spectra, and read gamma from networks trained on the same tasks."""
    gammas, optimal = [], []
    config = TransformerConfig(width=11, n_layers=2, shared=True, init_scale=settings.init_scale)
    for size in SIZES:
        family = dataclasses.replace(settings.family, n_context=size)
        nets = train_nets(lab, f"pairs-{size}", config, family, settings.training)
        gammas.append([step_sizes(net, size).gamma[0].item() for net in nets])
        optimal.append(tied_gd_plus_plus(family, 2, settings.tune_tasks, lab.seed).gamma)
    observed = {"gamma": np.array(gammas), "gd++_gamma": np.array(optimal)}
    return {
        "spectra": lab.stage("spectra", lambda: _spectra(lab, settings)),
        "gamma": lab.stage("gamma", lambda: observed),
    }


def _spectra(lab: Lab, settings: Regression) -> dict[str, np.ndarray]:
    """Eigenvalues of X X^T (not divided by N): extremes of each draw ``(sizes, draws)``, and some of one draw."""
    smallest_, largest_, shown = [], [], []
    for size in SIZES:
        family = dataclasses.replace(settings.family, n_context=size)
        draws = [
            size * gram_spectra(family, CONTEXTS, stream(lab.seed, f"spectra-{size}", index)).numpy()
            for index in range(REPEATS)
        ]
        smallest_.append([max(float(draw[:, 0].min()), CUT) for draw in draws])
        largest_.append([float(draw[:, -1].max()) for draw in draws])
        shown.append(draws[0][:SHOWN])
    return {
        "size": np.array(SIZES),
        "smallest": np.array(smallest_),
        "largest": np.array(largest_),
        "spectra": np.array(shown, dtype=np.float32),
    }


def transformed(eigenvalue: np.ndarray, gamma: np.ndarray | float) -> np.ndarray:
    """What one step of GD++ makes of an eigenvalue: eq. 25."""
    return eigenvalue * (1 - gamma * eigenvalue) ** 2


def condition_numbers(smallest_: float, largest_: float, gamma: np.ndarray) -> np.ndarray:
    """Upper bound on the condition number after one step, from the extremes before it: appendix A.10."""
    top = np.where(3 * gamma * largest_ > 1, 4 / (27 * gamma), transformed(np.array(largest_), gamma))
    return top / np.minimum(transformed(np.array(largest_), gamma), transformed(np.array(smallest_), gamma))


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    drawn, read = results["spectra"], results["gamma"]
    low, high, gamma = drawn["smallest"], drawn["largest"], read["gamma"]
    spread = low[1:].std(axis=1, ddof=1)
    derived = [_derived(one_low, one_high) for one_low, one_high in zip(low.mean(1), high.mean(1), strict=True)]
    over = np.array(derived) / gamma.mean(axis=1)
    before = drawn["spectra"][..., -1] / drawn["spectra"][..., 0].clip(CUT)
    after = transformed(drawn["spectra"][:, None], gamma[:, :, None, None])
    better = np.median(after.max(-1) / after.min(-1).clip(CUT), axis=-1) / np.median(before, axis=-1)[:, None]
    return {
        "largest-eigenvalues": largest(100 * np.abs(high.mean(axis=1) / PAPER_LARGEST - 1), n=CONTEXTS * REPEATS),
        "smallest-eigenvalues": largest(
            np.abs(low[1:].mean(axis=1) - PAPER_SMALLEST[1:]) / spread, n=CONTEXTS * REPEATS
        ),
        "singular-at-ten": largest(low[0], n=CONTEXTS),
        "gamma-observed": largest(100 * np.abs(gamma / PAPER_GAMMA[:, None] - 1)),
        "gamma-optimal": largest(100 * np.abs(gamma / read["gd++_gamma"][:, None] - 1)),
        "gamma-condition-number": Measurement(float(over[np.abs(over - 1).argmax()]), 0.0, CONTEXTS * REPEATS),
        "inside-roots": largest(high.mean(axis=1)[:, None] * gamma),
        "better-conditioned": largest(better, n=SHOWN),
    }


def _derived(low: float, high: float) -> float:
    """The gamma below 1/high of least condition number."""
    gammas = GRID / high
    return float(gammas[condition_numbers(low, high, gammas).argmin()])


def draw(results: Results) -> dict[str, Figure]:
    """The paper's three panels."""
    drawn, read = results["spectra"], results["gamma"]
    gamma = read["gamma"].mean(axis=1)
    shades = matplotlib.colormaps["viridis"](np.linspace(0.1, 0.85, len(SIZES)))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.2))
        change, condition, spread = figure.subplots(1, 3)
        for index, (size, shade) in enumerate(zip(SIZES, shades, strict=True)):
            eigenvalues = np.linspace(0, 1 / gamma[index], 200)
            change.plot(eigenvalues, transformed(eigenvalues, gamma[index]), color=shade, label=f"N = {size}")
            low, high = drawn["smallest"][index].mean(), drawn["largest"][index].mean()
            gammas = GRID / high
            condition.plot(gammas, condition_numbers(low, high, gammas), color=shade)
            condition.axvline(gamma[index], color=shade, ls=":")
            condition.plot(0, high / low, "*", color=shade, ms=8)
        change.plot([0, 20], [0, 20], color=COLOURS["limit"], lw=0.8, label="unchanged")
        change.set(title="Eigenvalues, one GD++ step", xlabel="before", ylabel="after", ylim=(0, 6))
        condition.set(title="Condition number (dotted: gamma observed)", xlabel="gamma", yscale="log")
        spectra = drawn["spectra"][1]
        bins = np.geomspace(1, 100, 60)
        for value in (0.0, 0.5 * gamma[1], gamma[1], 1.2 * gamma[1]):
            after = transformed(spectra, np.array(value))
            ratio = after.max(-1) / after.min(-1).clip(CUT)
            spread.hist(ratio.clip(None, 99), bins=bins, histtype="step", label=f"gamma = {value:.3f}")
        spread.set(title="Condition numbers of tasks, N = 25", xlabel="condition number", xscale="log", ylabel="tasks")
        for axes in (change, spread):
            axes.legend()
    caption = "Curvature before and after one step of GD++ at the gamma that trained networks use. Paper: Fig. 13."
    return captioned({"spectra": (figure, caption)})


STUDY = Study(
    name="curvature",
    question="Does GD++ flatten the curvature of the tasks it is trained on?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Fig. 13",
    presets={
        "quick": Regression(steps=1500, batch=512, learning_rate=8e-3, clip=0.001, init_scale=0.005, tune_tasks=2000),
        "paper": Regression(steps=5000, learning_rate=1e-3, clip=0.001),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)
