"""When does a layer discover gradient descent, and can one block grok it?

ICML paper: Figure 15. Ten seeds of one linear layer with one head, and with two, train at a constant learning rate; the
step at which half the mean squared error falls below 0.25 tells when each leaves its plateau. Then one block of
attention and MLP trains on a fixed set of tasks, all of them in every step: its MLP learns those tasks by heart before
its attention finds gradient descent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mesascope.errors import require_count, require_number
from mesascope.learners import one_step_optimum
from mesascope.lenses.access import per_task_errors
from mesascope.measurement import Measurement
from mesascope.nets import InContextRegressor, TransformerConfig
from mesascope.reports import COLOURS, STYLE
from mesascope.runs import Bound, Claim
from mesascope.streams import stream
from mesascope.studies.evidence import both, largest, smallest
from mesascope.studies.icl_gd.panels import captioned
from mesascope.studies.icl_gd.regression import Regression, train_nets
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study
from mesascope.training import Training

__all__ = ["STUDY", "PhaseTransitions"]

HEADS = {"one-head": 1, "two-heads": 2}
THRESHOLD = 0.25
POOL = 8192

CLAIMS = (
    Claim(
        "spread-shrinks",
        "log2 of a ratio: standard deviation over seeds of the step at which half the loss falls below 0.25, of one "
        "head over that of two (1.58 is three times)",
        "ICML paper, Fig. 15 left and centre",
        both(Bound(low=np.log2(3.0).item())),
    ),
    Claim(
        "two-heads-arrive",
        "step at which the slowest seed of two heads falls below 0.25 over that of one head",
        "ICML paper, Fig. 15 left and centre",
        both(Bound(high=1.0)),
    ),
    Claim(
        "test-rises",
        "how far the test loss rises on the plateau above its lowest value before, % (highest seed)",
        "ICML paper, Fig. 15 right",
        both(Bound(low=5.0)),
    ),
    Claim(
        "test-falls",
        "excess of that seed's lowest test loss after the rise over one gradient step's, %",
        "ICML paper, Fig. 15 right",
        both(Bound(high=10.0)),
    ),
    Claim(
        "test-falls-late",
        "step at which that seed's test loss is half way down to gradient descent's over the step at which its "
        "training loss first fell by a tenth below the plateau",
        "ICML paper, Fig. 15 right",
        both(Bound(low=2.0)),
    ),
)


@dataclass(frozen=True)
class PhaseTransitions(Regression):
    """Settings of the study."""

    members: int = 10
    """Seeds of one head and of two, whatever --seeds says."""
    grok_members: int = 5
    """Seeds of the block."""
    grok_steps: int = 1100
    """Training steps of the block on its fixed tasks."""
    grok_learning_rate: float = 3e-3
    """Its learning rate."""
    grok_weight_decay: float = 0.08
    """Its weight decay."""
    grok_mlp: int = 16
    """Hidden width of its MLP as a multiple of a token's."""
    grok_init_scale: float = 1.0
    """Its init_scale."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("members", "grok_members", "grok_steps", "grok_mlp"):
            require_count(name, getattr(self, name), least=2)
        require_number("grok_weight_decay", self.grok_weight_decay, least=0)
        for name in ("grok_learning_rate", "grok_init_scale"):
            require_number(name, getattr(self, name), above=0)

    @property
    def training(self) -> Training:
        """Constant learning rate and no averaging: what a layer looks like at each step is the question."""
        return dataclasses.replace(super().training, schedule="constant", average=None, evaluate_every=10)


def measure(lab: Lab, settings: PhaseTransitions) -> Results:
    """Train the layers and the block, logging losses."""
    family = settings.family
    watched = family.sample(settings.sweep_tasks, stream(lab.seed, "watch", 0, lab.device))

    def look(net: InContextRegressor) -> dict[str, float]:
        return {"mse": float(per_task_errors(net, watched).mean())}

    seeds = range(lab.seed, lab.seed + settings.members)
    for name, heads in HEADS.items():
        config = TransformerConfig(width=11, n_heads=heads, key_size=11, init_scale=settings.init_scale)
        train_nets(lab, name, config, family, settings.training, look, seeds=seeds)

    fixed = dataclasses.replace(family, pool=POOL)
    seen = fixed.sample(POOL, stream(lab.seed, "pool", 0, lab.device))
    config = TransformerConfig(width=11, mlp=settings.grok_mlp, init_scale=settings.grok_init_scale)
    training = dataclasses.replace(
        settings.training,
        steps=settings.grok_steps,
        batch=POOL,
        learning_rate=settings.grok_learning_rate,
        optimizer="adamw",
        weight_decay=settings.grok_weight_decay,
        clip=None,
    )
    train_nets(
        lab,
        "grokking",
        config,
        fixed,
        training,
        lambda net: {**look(net), "train_mse": float(per_task_errors(net, seen).mean())},
        seeds=range(lab.seed, lab.seed + settings.grok_members),
    )
    limit = np.array(one_step_optimum(family).mse)
    return {
        "transitions": lab.stage("transitions", lambda: _transitions(lab)),
        "grokking": lab.stage("grokking", lambda: {**lab.curves("grokking"), "limit": limit}),
    }


def _transitions(lab: Lab) -> dict[str, np.ndarray]:
    """Losses ``(seeds, k)``, and each seed's first step below the threshold: the last step where it never is."""
    arrays: dict[str, np.ndarray] = {}
    for name in HEADS:
        run = lab.curves(name)
        below = run["mse"] / 2 < THRESHOLD
        first = np.where(below.any(axis=1), below.argmax(axis=1), -1)
        arrays |= {"step": run["step"], name: run["mse"], f"{name}-crossing": run["step"][first]}
    return arrays


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    crossing = {name: results["transitions"][f"{name}-crossing"] for name in HEADS}
    one, two = (max(crossing[name].std(ddof=1), 1.0) for name in HEADS)
    count = len(crossing["one-head"])
    # The standard error is that of the logarithm of a ratio of two normal samples' standard deviations.
    ratio = np.log2(one / two)
    rise, fall, delay = _grokking(results["grokking"])
    return {
        "spread-shrinks": Measurement(float(ratio), float(1 / (np.log(2) * np.sqrt(count - 1))), count),
        "two-heads-arrive": Measurement(float(crossing["two-heads"].max() / crossing["one-head"].max()), 0.0, count),
        "test-rises": smallest(np.array([rise])),
        "test-falls": largest(np.array([fall])),
        "test-falls-late": smallest(np.array([delay])),
    }


def _grokking(run: Mapping[str, np.ndarray]) -> tuple[float, float, float]:
    """The seed whose test loss rises most: that rise in %, its later excess in %, and how late it falls."""
    pairs = zip(run["mse"], run["train_mse"], strict=True)
    return max(rise_and_fall(run["step"], test, train, float(run["limit"])) for test, train in pairs)


def rise_and_fall(step: np.ndarray, test: np.ndarray, train: np.ndarray, limit: float) -> tuple[float, float, float]:
    """Largest rise of a test loss on its plateau, its least excess over ``limit`` after it, and how late it falls.

    The first two in %; the last is the step at which half of the fall is done over that at which the training loss had
    fallen by a tenth, NaN where either never happens.
    """
    low = np.minimum.accumulate(test)
    plateau = low > (low[0] + limit) / 2  # before the test loss is half way down
    peak = int(np.argmax(np.where(plateau, test / low, 0)))
    half = np.flatnonzero((test < (low[peak] + limit) / 2) & (np.arange(len(test)) > peak))
    learnt = np.flatnonzero(train < 0.9 * low[peak])
    late = step[half[0]] / step[learnt[0]] if len(half) and len(learnt) else np.nan
    return 100 * (test[peak] / low[peak] - 1), 100 * (test[peak:].min() / limit - 1), float(late)


def draw(results: Results) -> dict[str, Figure]:
    """The paper's three panels."""
    run, block = results["transitions"], results["grokking"]
    with matplotlib.rc_context(STYLE):
        transitions = Figure(figsize=(9, 3))
        for name, axes in zip(HEADS, transitions.subplots(1, 2, sharey=True), strict=True):
            axes.plot(run["step"], run[name].T / 2, color=COLOURS["trained"], lw=0.8)
            axes.axhline(THRESHOLD, color=COLOURS["limit"], ls=":", label="threshold")
            axes.axhline(float(block["limit"]) / 2, color=COLOURS["gd"], label="gradient descent")
            axes.set(title=f"Ten seeds, {name.replace('-', ' ')}", xlabel="training step")
        axes.legend()
        transitions.axes[0].set_ylabel("half mean squared error")
        grokking = Figure(figsize=(5, 3))
        axes = grokking.subplots()
        for key, role, label in (("train_mse", "other", "its 8192 tasks"), ("mse", "trained", "fresh tasks")):
            axes.plot(block["step"], block[key].T / 2, color=COLOURS[role], lw=0.8)
            axes.plot([], [], color=COLOURS[role], label=label)
        axes.axhline(float(block["limit"]) / 2, color=COLOURS["gd"], label="gradient descent")
        axes.set(title="One block", xlabel="training step", ylabel="half mean squared error", ylim=(0.15, 0.6))
        axes.legend()
    return captioned(
        {
            "transitions": (
                transitions,
                "Losses on held-out tasks while training, each seed. Paper: Fig. 15 left and centre.",
            ),
            "grokking": (
                grokking,
                "One block of attention and MLP on a fixed set of tasks, each seed. Paper: Fig. 15 right.",
            ),
        }
    )


STUDY = Study(
    name="phase-transitions",
    question="When does a layer discover gradient descent, and can one block grok it?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Fig. 15",
    presets={
        "quick": PhaseTransitions(
            steps=1500, batch=512, learning_rate=1e-3, clip=0.001, sweep_tasks=1000, grok_members=2
        ),
        "paper": PhaseTransitions(steps=5000, learning_rate=1e-3, clip=0.001, sweep_tasks=2000),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)
