"""Does a network whose tokens alternate between inputs and targets first learn to copy, and then to descend?

ICML paper: Figure 5. Two layers, softmax and then linear, read x_1, y_1, x_2, y_2, ..., each beside a sinusoidal
position, and are compared with one and with two steps of gradient descent. A control has a linear first layer.

Initial weights have the variance 1 / (depth fan-in), not the authors' 0.002 of it, from which no seed had left the
initial plateau after 2,500 steps at three times their learning rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mesascope.learners import GradientDescent, Zero, one_step_optimum, tune_spectral
from mesascope.lenses import token_sensitivity
from mesascope.measurement import Measurement
from mesascope.nets import Alternating, InContextRegressor, TransformerConfig
from mesascope.reports import COLOURS, STYLE
from mesascope.runs import Bound, Claim
from mesascope.streams import stream
from mesascope.studies.evidence import both, excess_percent, smallest
from mesascope.studies.icl_gd.panels import band, captioned
from mesascope.studies.icl_gd.regression import Regression, comparison, train_nets, watch
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study
from mesascope.tasks import Episode

__all__ = ["STUDY"]

FIRST_LAYERS = ("softmax", "linear")
LAYOUT = Alternating("sinusoidal", size=10)
PROBED = 16

CLAIMS = (
    Claim(
        "one-step",
        "distance of the trained loss from one gradient step's, % (worst seed, paired)",
        "ICML paper, Fig. 5 left",
        both(Bound(high=10.0)),
    ),
    Claim(
        "not-two-steps",
        "excess of the trained loss over two tuned gradient steps', % (best seed, paired)",
        "ICML paper, Fig. 5 left",
        both(Bound(low=10.0)),
    ),
    Claim(
        "copies-first",
        "sensitivity of the first layer to the next token over that to others, its peak before the loss has fallen "
        "half way to gradient descent's (worst seed)",
        "ICML paper, Fig. 5 right",
        both(Bound(low=5.0)),
    ),
    Claim(
        "linear-fails",
        "excess of the loss with a linear first layer over one gradient step's, % (best seed, paired)",
        "ICML paper, section 4",
        both(Bound(low=10.0)),
    ),
)


def measure(lab: Lab, settings: Regression) -> Results:
    """Train with either first layer, and watch what the first layer reads."""
    family = settings.family
    gd = GradientDescent(1, one_step_optimum(family).eta)
    two = tune_spectral(GradientDescent(2, 1.0), family, contexts=settings.tune_tasks, seed=lab.seed).learner
    fresh = family.sample(settings.tasks, stream(lab.seed, "eval", 0, lab.device))
    watched = family.sample(settings.sweep_tasks, stream(lab.seed, "watch", 0, lab.device))
    aligned, probed = watch({"gd": gd, "zero": Zero()}, watched), watched.part(0, PROBED)
    training = dataclasses.replace(settings.training, evaluate_every=max(settings.steps // 100, 20))
    results: dict = {}
    for first in FIRST_LAYERS:
        config = TransformerConfig(
            LAYOUT.width(10, 1), n_layers=2, attention=(first, "linear"), init_scale=settings.init_scale
        )
        nets = train_nets(
            lab, first, config, family, training, lambda net: aligned(net) | _reads(net, probed), layout=LAYOUT
        )
        results[first] = lab.stage(first, lambda first=first: lab.curves(first))
        results[f"{first}-comparison"] = lab.stage(
            f"{first}-comparison", lambda nets=nets: comparison(nets, {"gd": gd, "two-steps": two}, fresh)
        )
    return results


def _reads(net: InContextRegressor, episodes: Episode) -> dict[str, float]:
    """How the first layer's tokens of inputs depend on themselves, on the next token, and on all others."""
    norms = token_sensitivity(net, episodes)
    rows = range(0, norms.shape[0], 2)
    own, following = (float(np.mean([float(norms[row, row + shift]) for row in rows])) for shift in (0, 1))
    total = float(norms[list(rows)].sum()) / len(rows)
    return {"own": own, "next": following, "others": (total - own - following) / (norms.shape[0] - 2)}


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    run, main, control = results["softmax"], results["softmax-comparison"], results["linear-comparison"]
    half_way = (run["zero_mse"] + run["gd_mse"]) / 2
    before = np.logical_and.accumulate(run["mse"] > half_way, axis=1)
    peak = np.where(before, run["next"] / run["others"], 0.0).max(axis=1)
    return {
        "one-step": excess_percent(main, "gd_mse_ratio", sign=0),
        "not-two-steps": _least_excess(main, "two-steps"),
        "copies-first": smallest(peak),
        "linear-fails": _least_excess(control, "gd"),
    }


def _least_excess(main: Mapping[str, np.ndarray], name: str) -> Measurement:
    ratio, stderr, n = (main[f"{name}_mse_ratio_{part}"] for part in ("value", "stderr", "n"))
    return smallest(100 * (ratio - 1), 100 * stderr, n)


def draw(results: Results) -> dict[str, Figure]:
    """Loss while training, and what the first layer reads."""
    caption = "Alternating tokens, {} first layer; line and band: mean and range over seeds. Paper: Fig. 5."
    return captioned({first: (_panels(results[first], first), caption.format(first)) for first in FIRST_LAYERS})


def _panels(run: Mapping[str, np.ndarray], first: str) -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3))
        loss, reads = figure.subplots(1, 2)
        loss.plot(run["step"], run["mse"].T / 2, color=COLOURS["trained"], lw=0.8, alpha=0.7)
        loss.plot([], [], color=COLOURS["trained"], label=f"{first}, then linear (each seed)")
        loss.axhline(float(run["gd_mse"].mean()) / 2, color=COLOURS["gd"], label="one step of gradient descent")
        top = 0.6 * float(run["zero_mse"].mean())  # the plateau, where predictions are zero, and a fifth more
        loss.set(title="Loss", xlabel="training step", ylabel="half mean squared error", ylim=(0, top))
        roles = {"own": ("limit", "itself"), "next": ("trained", "the next token"), "others": ("gd", "each other")}
        for key, (role, label) in roles.items():
            band(reads, run["step"], run[key], role, label)
        reads.set(title="First layer: norm of derivatives by", xlabel="training step", yscale="log")
        for axes in (loss, reads):
            axes.legend()
    return figure


STUDY = Study(
    name="copying",
    question="Does a network with alternating tokens first learn to copy, and then to descend?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Fig. 5",
    presets={
        "quick": Regression(
            steps=1600,
            batch=512,
            learning_rate=6e-3,
            decay_from=0.5,
            clip=1.0,
            init_scale=1.0,
            tasks=20_000,
            sweep_tasks=500,
            tune_tasks=2000,
        ),
        "paper": Regression(steps=10_000, learning_rate=1e-3, decay_from=0.5, clip=10.0, init_scale=1.0),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)
