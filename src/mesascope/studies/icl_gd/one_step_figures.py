"""The figures of the one-step study, from its arrays alone."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mesascope.reports import COLOURS, STYLE
from mesascope.studies.icl_gd.panels import band, heat_maps, ratios

__all__ = ["draw"]

_Arrays = Mapping[str, np.ndarray]

CAPTIONS = {
    "training": "The trained layers on held-out tasks while training; line and band: mean and range over seeds. "
    "Paper: Fig. 2, first two columns.",
    "dimensions": "Left: trained, interpolated and constructed layers for each size. Right: step sizes "
    "tuned on their own tasks. Paper: Fig. 2 centre right.",
    "input-scale": "Inputs scaled away from the 0.5 of training. Paper: Fig. 6a left.",
    "teacher-scale": "Teachers scaled away from the 1 of training. Paper: Fig. 6a centre left.",
    "other-inputs": "Input laws never seen in training, one line a seed. Paper: Fig. 6a right.",
    "rollouts": "The layer and the gradient step applied again and again. Thick: contexts where damped gradient "
    "descent is stable; thin: all contexts. Paper: Figs. 1 right and 10.",
    "weights": "Weight products of one trained layer, rescaled as in appendix A.3, beside the construction. "
    "Paper: Fig. 9 left.",
}


def draw(results: Mapping[str, _Arrays]) -> dict[str, Figure]:
    """One figure a panel group of the paper; the name of each is the name of its arrays."""
    with matplotlib.rc_context(STYLE):
        figures = {
            "training": _training(results["training"]),
            "dimensions": _dimensions(results["dimensions"]),
            "input-scale": _scales(results["input-scale"], "x_scale", "input scale"),
            "teacher-scale": _scales(results["teacher-scale"], "w_scale", "teacher scale"),
            "other-inputs": _other_inputs(results["other-inputs"]),
            "rollouts": _rollouts(results["rollouts"]),
            "weights": _weights(results["weights"]),
        }
    for name, figure in figures.items():
        figure.set_label(CAPTIONS[name])
    return figures


def _training(run: _Arrays) -> Figure:
    figure = Figure(figsize=(9, 5.2))
    panels = figure.subplots(2, 2).ravel()
    band(panels[0], run["step"], run["mse"] / 2, "trained", "trained layer")
    panels[0].axhline(float(run["gd_mse"].mean()) / 2, color=COLOURS["gd"], label="one step of gradient descent")
    panels[0].axhline(float(run["limit"]) / 2, color=COLOURS["limit"], ls=":", label="limit of linear attention")
    panels[0].set(title="Loss", xlabel="training step", ylabel="half mean squared error")
    panels[0].legend()
    alignments = {
        "sensitivity_cosine": "cosine of sensitivities",
        "sensitivity_difference": "difference of sensitivities",
        "prediction_difference": "difference of predictions",
    }
    for axes, (key, label) in zip(panels[1:], alignments.items(), strict=True):
        band(axes, run["step"], run[f"gd_{key}"], "trained", "trained to GD")
        axes.set(title=f"To gradient descent: {label}", xlabel="training step")
        if key == "sensitivity_cosine":
            axes.set_ylim(None, 1.02)
        else:
            axes.set_yscale("log")
    return figure


def _dimensions(size: _Arrays) -> Figure:
    figure = Figure(figsize=(9, 3.2))
    left, right = figure.subplots(1, 2)
    left.plot(size["size"], size["limit"] / 2, color=COLOURS["limit"], ls=":", label="limit")
    left.plot(size["size"], size["gd"] / 2, "o", color=COLOURS["gd"], ms=9, mfc="none", label="gradient descent")
    for key, marker, label in (("trained", "x", "trained layers"), ("interpolated", "+", "interpolated")):
        left.plot(size["size"], size[key] / 2, marker, color=COLOURS[key], ms=7)
        left.plot([], [], marker, color=COLOURS[key], label=label)
    left.set(title="Loss by size", xlabel="N = d", ylabel="half mean squared error", xticks=size["size"])
    left.legend()
    offset = (size["eta"] - size["eta_optimum"]) / size["eta_optimum"] * 100
    bars = size["eta_stderr"] / size["eta_optimum"] * 100
    right.axhline(0, color=COLOURS["limit"], ls=":")
    right.errorbar(size["size"], offset, bars, fmt="o", color=COLOURS["gd"], capsize=3)
    right.set(
        title="Tuned step size less the closed form (bars: 1 s.e.)",
        xlabel="N = d",
        ylabel="difference, %",
        xticks=size["size"],
    )
    return figure


def _scales(swept: _Arrays, field: str, label: str) -> Figure:
    figure = Figure(figsize=(9, 3))
    left, right = figure.subplots(1, 2)
    scale = swept[field]
    band(left, scale, swept["trained"] / 2, "trained", "trained layers")
    left.plot(scale, swept["gd"] / 2, "o", color=COLOURS["gd"], mfc="none", label="gradient descent")
    left.set(title=f"Loss by {label}", xlabel=label, ylabel="half mean squared error", yscale="log")
    left.legend()
    ratios(right, scale, swept["gd_ratio"])
    right.set(title="Loss ratio, each seed", xlabel=label, ylabel="trained / gradient descent")
    return figure


def _other_inputs(swept: _Arrays) -> Figure:
    laws = list(dict.fromkeys(swept["x"].tolist()))
    figure = Figure(figsize=(9, 3))
    for axes, law in zip(figure.subplots(1, len(laws), sharey=True), laws, strict=True):
        chosen = swept["x"] == law
        ratios(axes, swept["x_scale"][chosen], swept["gd_ratio"][:, chosen])
        axes.set(title=f"{law} inputs", xlabel="input scale")
        if law == laws[0]:
            axes.set_ylabel("loss ratio, trained / gradient descent")
    return figure


def _rollouts(roll: _Arrays) -> Figure:
    count = len(roll["damping"])
    figure = Figure(figsize=(9, 3))
    for index, axes in enumerate(figure.subplots(1, count, sharey=True)):
        steps = np.arange(roll["all"].shape[-1])
        for key, width in (("stable", 1.6), ("all", 0.7)):
            losses = np.clip(roll[key][index] / 2, None, 1e3)
            named = key == "stable"
            axes.plot(steps, losses[1:].T, color=COLOURS["trained"], lw=width, alpha=0.6)
            axes.plot([], [], color=COLOURS["trained"], label="trained layers" if named else None)
            axes.plot(
                steps, losses[0], color=COLOURS["gd"], ls="--", lw=width, label="gradient descent" if named else None
            )
        share = 100 * roll["stable_share"][index]
        title = f"damping {roll['damping'][index]:g} (GD stable on {share:.4g} % of contexts)"
        axes.set(title=title, xlabel="applications", yscale="log", ylim=(0.03, 30))
        axes.title.set_fontsize(8)
        if index == 0:
            axes.set_ylabel("half mean squared error")
            axes.plot([], [], color="black", lw=1.6, label="stable contexts")
            axes.plot([], [], color="black", lw=0.7, label="all contexts")
            axes.legend(loc="upper right")
    return figure


def _weights(read: _Arrays) -> Figure:
    return heat_maps(
        [
            ("$W_{KQ}$ trained (seed 0)", read["w_kq"][0]),
            ("$W_{KQ}$ construction", read["construction_kq"]),
            ("$W_{PV}$ trained (seed 0)", read["w_pv"][0]),
            ("$W_{PV}$ construction", read["construction_pv"]),
        ],
        1.0,
    )
