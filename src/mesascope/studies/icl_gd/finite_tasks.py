"""How many training tasks does a layer need to find gradient descent?

ICML paper: Figure 16. One linear layer trains on a fixed set of B tasks, all of them in every step, and is compared
with one step of gradient descent on fresh tasks.

Trained to the end, all seeds reach the one minimum of the loss on their tasks: what separates it from gradient descent
is the sampling error of those tasks, not the training.
"""

from __future__ import annotations

import dataclasses

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mesascope.learners import GradientDescent, one_step_optimum
from mesascope.measurement import Measurement
from mesascope.nets import TransformerConfig
from mesascope.reports import COLOURS, STYLE
from mesascope.runs import Bound, Claim
from mesascope.streams import stream
from mesascope.studies.evidence import both, largest, smallest
from mesascope.studies.icl_gd.panels import captioned
from mesascope.studies.icl_gd.regression import Regression, comparison, train_nets, watch
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study

__all__ = ["STUDY"]

POOLS = (128, 512, 2048, 8192)

CLAIMS = (
    Claim(
        "few-tasks",
        "mean cosine of dy/dx_q with gradient descent's after training on 128 tasks (best seed)",
        "ICML paper, Fig. 16",
        both(Bound(high=0.95)),
    ),
    Claim(
        "2048-tasks",
        "mean cosine of dy/dx_q with gradient descent's after training on 2048 tasks (worst seed)",
        "ICML paper, Fig. 16",
        both(Bound(low=0.99)),
    ),
    Claim(
        "8192-tasks",
        "mean cosine of dy/dx_q with gradient descent's after training on 8192 tasks (worst seed)",
        "ICML paper, Fig. 16",
        both(Bound(low=0.99)),
    ),
    Claim(
        "rising",
        "least rise of that cosine from one size of the task set to the next, mean over seeds",
        "ICML paper, Fig. 16",
        both(Bound(low=0.0)),
    ),
)


def measure(lab: Lab, settings: Regression) -> Results:
    """Train on each number of tasks and compare."""
    family = settings.family
    gd = {"gd": GradientDescent(1, one_step_optimum(family).eta)}
    fresh = family.sample(settings.tasks, stream(lab.seed, "eval", 0, lab.device))
    look = watch(gd, fresh.part(0, settings.sweep_tasks))
    config = TransformerConfig(width=11, init_scale=settings.init_scale)
    results: dict = {}
    for pool in POOLS:
        training = dataclasses.replace(settings.training, batch=pool)
        nets = train_nets(lab, f"tasks-{pool}", config, dataclasses.replace(family, pool=pool), training, look)
        name = f"tasks-{pool}-comparison"
        results[name] = lab.stage(name, lambda nets=nets: comparison(nets, gd, fresh))
    return results | {"finite-tasks": lab.stage("finite-tasks", lambda: _curves(lab))}


def _curves(lab: Lab) -> dict[str, np.ndarray]:
    """What was logged while training: ``step (k,)``, and each number as ``(pools, seeds, k)``."""
    runs = [lab.curves(f"tasks-{pool}") for pool in POOLS]
    stacked = {key: np.stack([run[key] for run in runs]) for key in runs[0] if key != "step"}
    return {"step": runs[0]["step"], "pool": np.array(POOLS), **stacked}


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    cosine, stderr, n = (
        np.stack([results[f"tasks-{pool}-comparison"][f"gd_sensitivity_cosine_{key}"] for pool in POOLS])
        for key in ("value", "stderr", "n")
    )
    return {
        "few-tasks": largest(cosine[0], stderr[0], n[0]),
        "2048-tasks": smallest(cosine[2], stderr[2], n[2]),
        "8192-tasks": smallest(cosine[3], stderr[3], n[3]),
        "rising": smallest(np.diff(cosine.mean(axis=1))),
    }


def draw(results: Results) -> dict[str, Figure]:
    """Cosine and loss while training on each number of tasks."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3))
        cosine, loss = figure.subplots(1, 2)
        shades = matplotlib.colormaps["viridis"](np.linspace(0.1, 0.85, len(POOLS)))
        run = results["finite-tasks"]
        for index, (pool, shade) in enumerate(zip(POOLS, shades, strict=True)):
            for axes, runs in ((cosine, run["gd_sensitivity_cosine"][index]), (loss, run["mse"][index] / 2)):
                axes.plot(run["step"], runs.mean(0), color=shade, label=f"{pool} tasks")
                axes.fill_between(run["step"], runs.min(0), runs.max(0), color=shade, alpha=0.2, lw=0)
        loss.axhline(float(run["gd_mse"].mean()) / 2, color=COLOURS["gd"], label="gradient descent")
        cosine.set(title="Cosine of sensitivities to gradient descent", xlabel="training step", ylim=(None, 1.02))
        loss.set(title="Loss on fresh tasks", xlabel="training step", ylabel="half mean squared error", yscale="log")
        for axes in (cosine, loss):
            axes.legend()
    caption = "Layers trained on fixed sets of tasks, on fresh tasks; band: range over seeds. Paper: Fig. 16."
    return captioned({"finite-tasks": (figure, caption)})


STUDY = Study(
    name="finite-tasks",
    question="How many training tasks does a layer need to find gradient descent?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Fig. 16",
    presets={
        "quick": Regression(steps=600, learning_rate=3e-3, init_scale=0.02),
        "paper": Regression(steps=5000, learning_rate=1e-3, clip=0.001),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)
