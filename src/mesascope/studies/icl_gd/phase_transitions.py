"""When does a layer discover gradient descent, and can one block grok it?

ICML paper: Figure 15. Tasks are noiseless linear regression with N = d = 10. One linear layer with one head, and with
two, trains at a constant learning rate from many seeds: how long some stay on the plateau is a matter of few of them.
The step at which half the mean squared error falls below 0.25 tells when each leaves it. Then one block of attention
and MLP trains on a fixed set of tasks, a set of its own for each seed and all of them in every step, without weight
decay: does its MLP learn those tasks by heart before its attention finds gradient descent?
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses
from mesascope.errors import require_count, require_number
from mesascope.evidence import Arrays
from mesascope.reports import Figure, Level, Line, Lines
from mesascope.studies.common import watch_loss
from mesascope.studies.icl_gd.phase_transitions_claims import CLAIMS, HEADS, THRESHOLD
from mesascope.studies.icl_gd.regression import PAPER, Regression, network, predicted
from mesascope.studies.icl_gd.shared_figures import HALF_MSE
from mesascope.study import Study
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
    tasks: int = 20_000
    """Fresh tasks of an evaluation while training."""

    def __post_init__(self) -> None:
        for name in ("seeds", "mlp"):
            require_count(name, getattr(self, name))
        require_count("tasks", self.tasks, least=2)
        require_number("init_scale", self.init_scale, above=0)


@dataclass(frozen=True)
class PhaseTransitions(Regression):
    """Settings of the study."""

    seeds: int = 100
    """Layers trained with one head, and with two, one a seed."""
    block: Block = field(default_factory=lambda: Block(_block_plan(1100)))
    """The block on a fixed set of tasks."""


def measure(lab: Lab, settings: PhaseTransitions) -> None:
    """Train the layers and the blocks, logging losses."""
    family = settings.family()
    gd = learners.GradientDescent(1, learners.one_step_optimum(family).eta)
    watched = lab.draw(family, settings.sweep_tasks, "watch")
    level, loss = watch_loss(mse=watched)(gd)["mse"], watch_loss(mse=watched)

    def look(net: Any) -> dict[str, float]:
        return loss(net) | {"gd mse": level}

    trained = {}
    for name, heads in HEADS.items():
        config = network(settings, n_heads=heads, key_size=11)
        trained[name] = lab.train(name, config, family, settings.training, watch=look)
        lab.stage(f"{name}-crossing", lambda name=name: _crossing(lab.run.curves(name)))
    groups, same = {**trained, "gd": [gd]}, {"x_scale": [settings.x_scale]}
    lab.stage(
        "losses", lambda: lenses.sweep(groups, family, same, tasks=settings.tasks, seed=lab.seed, device=lab.device)
    )
    lab.stage("predicted", lambda: predicted(lab, settings, {"gd": gd}))
    _grok(lab, settings, gd, lab.draw(family, settings.block.tasks, "block"))


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
            Level(float(r[name]["gd mse"].mean()) / 2, "gd", "gradient descent"),
        ]

    return Lines(f"Each seed, {name.replace('-', ' ')}", "training step", HALF_MSE, read, limits={"ylim": (0.18, 0.5)})


def _arrivals(r: Any) -> list[Line]:
    lines = []
    for name, role in (("one-head", "trained"), ("two-heads", "gd++")):
        arrived = np.sort(r[f"{name}-crossing"]["step"])  # those that never arrive come last
        share = np.arange(1, len(arrived) + 1) / len(arrived)
        lines.append(Line(arrived, share, role, name.replace("-", " "), marks="."))
    return lines


def _block(r: Any) -> list[Line | Level]:
    run = r["grokking"]
    return [
        Line(run["step"], run["own mse"] / 2, "other", "its own tasks", each=True),
        Line(run["step"], run["mse"] / 2, "trained", "fresh tasks", each=True),
        Level(float(r["gradient-descent"]["mse"]) / 2, "gd", "gradient descent, the same fresh tasks"),
        Level(float(r["gradient-descent"]["own mse"].mean()) / 2, "limit", "gradient descent, the blocks' tasks"),
    ]


FIGURES = (
    Figure(
        "transitions", "Losses on held-out tasks while training, each seed. Paper: Fig. 15 left and centre.",
        tuple(_heads(name) for name in HEADS), columns=2, share_y=True, claims=("reaches-gd",),
    ),
    Figure(
        "arrivals", "Share of seeds whose loss has fallen below 0.25, by step. Paper: Fig. 15 left and centre.",
        (Lines("", "training step", "share of seeds", _arrivals),),
        claims=("two-heads-all-arrive", "late-seeds", "spread-shrinks", "middle-half-shrinks", "two-heads-arrive"),
    ),
    Figure(
        "grokking", "One block of attention and MLP on a fixed set of tasks, each seed. Paper: Fig. 15 right.",
        (Lines("", "training step", HALF_MSE, _block, limits={"ylim": (0.15, 0.6)}),),
        claims=("block-learns", "test-rises", "test-falls", "test-ends", "test-falls-late"),
    ),
)  # fmt: skip


def _constant(steps: int, batch: int) -> Training:
    """No decay and no averaging: what a layer looks like at each step is the question."""
    return Training(steps, batch, 1e-3, "constant", clip=0.001, evaluate_every=10)


def _block_plan(steps: int) -> Training:
    return Training(steps, 8192, 3e-3, "constant", evaluate_every=10)


STUDY = Study(
    name="phase-transitions",
    source=f"{PAPER}: Fig. 15",
    presets={
        "quick": PhaseTransitions(
            _constant(1500, 512), seeds=10, sweep_tasks=1000, block=Block(_block_plan(700), tasks=2000)
        ),
        "paper": PhaseTransitions(_constant(2500, 2048), sweep_tasks=2000),
    },
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "A hundred seeds train for 2,500 steps in place of ten for 5,000: late arrivals are rare.",
        "The paper does not give the block's settings: the width of its MLP, its initial scale and learning rate "
        "were searched for those that grok most.",
    ),
)
