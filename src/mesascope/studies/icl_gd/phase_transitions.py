"""When does a layer discover gradient descent, and can one block grok it?

ICML paper: Figure 15. Ten seeds of one linear layer with one head, and with two, train at a constant learning rate; the
step at which half the mean squared error falls below 0.25 tells when each leaves its plateau. Then one block of
attention and MLP trains on a fixed set of tasks, a set of its own for each seed and all of them in every step: does its
MLP learn those tasks by heart before its attention finds gradient descent?
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses
from mesascope.errors import require_count, require_number
from mesascope.evidence import Arrays
from mesascope.records import register
from mesascope.reports import Figure, Level, Line, Lines
from mesascope.studies.icl_gd.phase_transitions_claims import CLAIMS, HEADS, THRESHOLD
from mesascope.studies.icl_gd.regression import PAPER, Regression, network, predicted, watch_loss
from mesascope.studies.icl_gd.shared_figures import HALF_MSE
from mesascope.studies.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab


@dataclass(frozen=True)
class Block:
    """The block of attention and MLP, and how it trains; one batch is its whole set of tasks."""

    training: Training
    """How the blocks train."""
    seeds: int = 5
    """Blocks trained, one a seed."""
    mlp: int = 16
    """Hidden width of the MLP as a multiple of a token's."""
    init_scale: float = 1.0
    """Variance of the initial weights, times fan-in."""

    def __post_init__(self) -> None:
        for name in ("seeds", "mlp"):
            require_count(name, getattr(self, name))
        require_number("init_scale", self.init_scale, above=0)


@dataclass(frozen=True)
class PhaseTransitions(Regression):
    """Settings of the study."""

    seeds: int = 10
    """Layers trained with one head, and with two, one a seed."""
    block: Block = field(default_factory=lambda: Block(_block_plan(1100)))
    """The block on a fixed set of tasks."""


def measure(lab: Lab, settings: PhaseTransitions) -> None:
    """Train the layers and the blocks, logging losses."""
    family = settings.family()
    gd = learners.GradientDescent(1, learners.one_step_optimum(family).eta)
    watched, fresh = lab.draw(family, settings.sweep_tasks, "watch"), lab.draw(family, settings.tasks, "eval")
    trained = {}
    for name, heads in HEADS.items():
        config = network(settings, n_heads=heads, key_size=11)
        trained[name] = lab.train(name, config, family, settings.training, watch=watch_loss(mse=watched))
        lab.stage(f"{name}-crossing", lambda name=name: _crossing(lab.run.curves(name)))
    lab.stage("comparison", lambda: lenses.measure_together({**trained, "gd": [gd]}, ["gd"], fresh))
    lab.stage("predicted", lambda: predicted(lab, settings, {"gd": gd}))
    _grok(lab, settings, gd, watched)


def _crossing(curves: Any) -> dict[str, np.ndarray]:
    """Each seed's first step below the threshold, not a number where there is none."""
    below = curves["mse"] / 2 < THRESHOLD
    return {"step": np.where(below.any(axis=1), curves["step"][below.argmax(axis=1)], np.nan)}


def _grok(lab: Lab, settings: PhaseTransitions, gd: Any, watched: Any) -> None:
    """Train the blocks, and keep gradient descent's loss on the same fresh tasks and on each seed's own."""
    block, seeds = settings.block, range(lab.seed, lab.seed + settings.block.seeds)
    pooled = settings.family(pool=block.training.batch)
    own = [pooled.seeded(seed).sample(block.training.batch, lab.stream("pool")) for seed in seeds]
    config = network(settings, mlp=block.mlp, init_scale=block.init_scale)
    watches = [watch_loss(**{"mse": watched, "own mse": one}) for one in own]
    lab.train("grokking", config, pooled, block.training, seeds=seeds, watch=watches)

    def references() -> Arrays:
        losses = {"mse": watch_loss(mse=watched)(gd)["mse"], "own mse": [watch_loss(mse=one)(gd)["mse"] for one in own]}
        return Arrays(losses, **{"own mse": "seed"})

    lab.stage("gradient-descent", references)


def _heads(name: str) -> Lines:
    def read(r: Any) -> list[Line | Level]:
        return [
            Line(r[name]["step"], r[name]["mse"] / 2, "trained", each=True),
            Level(THRESHOLD, "limit", "threshold", dotted=True),
            Level(float(r["gradient-descent"]["mse"]) / 2, "gd", "gradient descent"),
        ]

    return Lines(f"Each seed, {name.replace('-', ' ')}", "training step", HALF_MSE, read, limits={"ylim": (0.18, 0.5)})


def _block(r: Any) -> list[Line | Level]:
    run = r["grokking"]
    return [
        Line(run["step"], run["own mse"] / 2, "other", "its own tasks", each=True),
        Line(run["step"], run["mse"] / 2, "trained", "fresh tasks", each=True),
        Level(float(r["gradient-descent"]["mse"]) / 2, "gd", "gradient descent, fresh tasks"),
    ]


FIGURES = (
    Figure(
        "transitions", "Losses on held-out tasks while training, each seed. Paper: Fig. 15 left and centre.",
        tuple(_heads(name) for name in HEADS), columns=2, share_y=True,
    ),
    Figure(
        "grokking", "One block of attention and MLP on a fixed set of tasks, each seed. Paper: Fig. 15 right.",
        (Lines("One block", "training step", HALF_MSE, _block, limits={"ylim": (0.15, 0.6)}),),
    ),
)  # fmt: skip


def _constant(steps: int, batch: int) -> Training:
    """No decay and no averaging: what a layer looks like at each step is the question."""
    return Training(steps, batch, 1e-3, "constant", clip=0.001, evaluate_every=10)


def _block_plan(steps: int) -> Training:
    return Training(steps, 8192, 3e-3, "constant", optimizer="adamw", weight_decay=0.08, evaluate_every=10)


STUDY = register("study", "phase-transitions")(
    Study(
        name="phase-transitions",
        question="When does a layer discover gradient descent, and can one block grok it?",
        source=f"{PAPER}: Fig. 15",
        presets={
            "quick": PhaseTransitions(_constant(1500, 512), sweep_tasks=1000, block=Block(_block_plan(700))),
            "paper": PhaseTransitions(_constant(5000, 2048), sweep_tasks=2000),
        },
        measure=measure,
        claims=CLAIMS,
        figures=FIGURES,
        deviations=(
            "The paper does not give the block's settings: the width of its MLP, its initial scale, learning rate and "
            "weight decay were searched for those that grok most.",
        ),
    )
)
