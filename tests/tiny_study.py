"""A study of half a second, with every kind of file that a run can hold.

As a script it is the command line with this study beside mesascope's own.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mesascope import learners, lenses, nets, tasks
from mesascope.cli import main
from mesascope.errors import require_count
from mesascope.evidence import Claim, below, ours, stage
from mesascope.records import register
from mesascope.reports import Figure, Line, Lines
from mesascope.study import READ_OFF, Study
from mesascope.training import Training

__all__ = ["STUDY", "Settings", "contents"]


TRAINING = Training(steps=8, batch=8, average=2.0, evaluate_every=2, checkpoint_every=3)


@dataclass(frozen=True)
class Settings:
    """Settings of the tiny study."""

    training: Training = TRAINING
    """Training of the layers."""
    seeds: int = 2
    """Layers trained, one a seed."""
    tasks: int = 40
    """Tasks that layers and gradient descent are compared on."""

    def __post_init__(self):
        require_count("seeds", self.seeds)
        require_count("tasks", self.tasks, least=2)


def measure(lab, settings):
    family = tasks.LinearRegression(n_context=4, d_in=3)
    config = nets.InContextRegressorConfig(nets.TransformerConfig(width=4, init_scale=0.02))
    watched = lab.draw(family, 20, "watch")

    def loss(net):
        return {"mse": float(lenses.per_task_errors(net, watched).mean())}

    layers = lab.train("layer", config, family, settings.training, watch=loss)
    gd, fresh = learners.GradientDescent(1, 1.0), lab.draw(family, settings.tasks, "eval")
    lab.stage("comparison", lambda: lenses.measure_learners({"trained": layers, "gd": [gd]}, ["gd"], fresh))
    lab.stage("weights", lambda: {"norm": np.array([float(net.products()[0].w_pv.detach().norm()) for net in layers])})


STUDY = Study(
    name="tiny",
    question="Does eight steps of training do anything?",
    source="an example",
    presets={"quick": Settings(), "paper": Settings(tasks=50)},
    measure=measure,
    claims=(
        Claim(
            "better", "each layer loses less than four", stage("comparison")["mse", "trained"], below(4.0),
            ours("an example"), at_least=2,
        ),
        Claim(
            "small", "weights stay small", stage("weights")["norm"], below(1.0), ours("an example"), at_least=2,
            premises=("better",), **READ_OFF,
        ),
    ),
    figures=(
        Figure(
            "training", "Losses while training.",
            (Lines("Loss", "step", "loss", lambda r: [Line(r["layer"]["step"], r["layer"]["mse"], "trained")]),),
        ),
    ),
)  # fmt: skip


def contents(path):
    """The bytes of all that a run's result depends on, by relative name."""
    apart = {"config.json", "timing.json", "report.html", ".lock"}
    files = (file for file in Path(path).rglob("*") if file.is_file() and file.name not in apart)
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


if __name__ == "__main__":
    register("study", "tiny")(STUDY)
    sys.exit(main())
