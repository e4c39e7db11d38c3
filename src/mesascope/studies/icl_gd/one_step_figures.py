"""The figures of the one-step study."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.reports import Figure, Level, Line, Lines, Matrices
from mesascope.studies.common import values
from mesascope.studies.icl_gd.one_step_claims import SIZES
from mesascope.studies.icl_gd.regression import LAWS
from mesascope.studies.icl_gd.shared_figures import (
    HALF_MSE,
    MODELS,
    PREDICTIONS,
    RELATIVE,
    SENSITIVITIES,
    old_law_of,
    old_ratio_lines,
    old_scaled,
    products,
)

__all__ = ["FIGURES"]


def _loss(r: Any) -> list[Line | Level]:
    run, limit = r["size-10"], float(r["optima"]["limit"][SIZES.index(10)])
    return [
        Line(run["step"], run["mse"] / 2, "trained", "trained layer"),
        Level(float(run["gd mse"].mean()) / 2, "gd", "one step of gradient descent"),
        Level(limit / 2, "limit", "limit of linear attention", dotted=True),
    ]


def _to_gd(quantity: str, label: str, log: str = "y") -> Lines:
    def read(r: Any) -> list[Line]:
        return [Line(r["size-10"]["step"], r["size-10"][f"gd {quantity}"], "trained", "to gradient descent")]

    return Lines("", "training step", label, read, log)


def _sizes(r: Any) -> list[Line]:
    losses = {name: np.stack([values(r[f"size-{s}-comparison"]["mse", name]) for s in SIZES], 1) for name in _SHOWN}
    lines = [
        Line(SIZES, losses[name] / 2, role, label, each=True, marks=m) for name, (role, label, m) in _SHOWN.items()
    ]
    return [Line(SIZES, r["optima"]["limit"] / 2, "limit", "limit", marks=":"), *lines]


_SHOWN = {
    "gd": ("gd", "gradient descent", "o"),
    "trained": ("trained", "trained layers", "x"),
    "middle": ("interpolated", "interpolated", "+"),
}


def _optima(r: Any) -> list[Line | Level]:
    found = r["optima"]
    offset, bars = 100 * (found["tuned"] / found["optimum"] - 1), 100 * found["stderr"] / found["optimum"]
    return [Level(0.0, "limit", dotted=True), Line(SIZES, offset, "gd", marks="o", error=bars)]


def _law(law: str) -> Lines:
    def read(r: Any) -> list[Line | Level]:
        return old_ratio_lines(old_law_of(r["other-inputs"], law), "x_scale", ["gd"])

    return Lines(f"{law} inputs", RELATIVE, "loss of each seed / of gradient descent", read, "y")


def _swept(name: str, case: str, label: str, caption: str) -> Figure:
    def losses(r: Any) -> list[Line]:
        lines = old_scaled(r[name], case, "trained layers", ["gd"])
        middle = values(r[name]["mse", "middle"]) / 2
        return [*lines, Line(lines[0].x, middle, "interpolated", "interpolated")]

    return Figure(
        name,
        caption,
        (
            Lines("", label, HALF_MSE, losses, "y"),
            Lines("", label, "loss of each seed / of reference", lambda r: old_ratio_lines(r[name], case, ["gd"])),
        ),
        columns=2,
        claims=(name, f"interpolated-{name}", *(("worse-than-nothing",) if name == "input-scale" else ())),
    )


def _rolled(damping: float) -> Lines:
    def read(r: Any) -> list[Line]:
        roll = r[f"damping-{damping}"]
        steps = roll.cases["application"]
        lines = []
        for part, width in (("stable", 1.6), ("all", 0.7)):
            for name, label in (("trained", "trained layers"), ("gd", "gradient descent")):
                losses = np.clip(values(roll[part, name]) / 2, None, 1e3)
                shown = label if part == "stable" else None
                lines.append(Line(steps, losses, name, shown, marks="--" if name == "gd" else "-", width=width))
        return lines

    return Lines(f"damping {damping:g}", "applications", HALF_MSE, read, "y", {"ylim": (0.03, 30)})


FIGURES = (
    Figure(
        "training",
        "The trained layers on held-out tasks while training; line and band: mean and range over seeds. "
        "Paper: Fig. 2, first two columns.",
        (
            Lines("", "training step", HALF_MSE, _loss),
            _to_gd("cosine", SENSITIVITIES, ""),
            _to_gd("sensitivity-difference", MODELS),
            _to_gd("prediction-difference", PREDICTIONS),
        ),
        columns=2,
        claims=("loss-matches-gd", "prediction-difference", "sensitivity-cosine", "model-difference", "with-query"),
    ),
    Figure(
        "dimensions",
        "Left: trained, interpolated and constructed layers for each size. Right: step sizes tuned on their own tasks "
        "less the closed form; bars show one standard error. Paper: Fig. 2 centre right.",
        (
            Lines("", "N = d", HALF_MSE, _sizes, limits={"xticks": SIZES}),
            Lines("", "N = d", "tuned step size less closed form, %", _optima, limits={"xticks": SIZES}),
        ),
        columns=2,
        claims=("limit", "eta-optimum", "dimensions", "interpolated-dimensions", "interpolation"),
    ),
    _swept("input-scale", "x_scale", RELATIVE, "Inputs old_scaled away from those of training. Paper: Fig. 6a left."),
    _swept(
        "teacher-scale",
        "w_scale",
        "teacher scale / that of training",
        "Teachers old_scaled away from the 1 of training. Paper: Fig. 6a centre left.",
    ),
    Figure(
        "other-inputs",
        "Input laws never seen in training, one line a seed. Paper: Fig. 6a right.",
        tuple(_law(law) for law in LAWS),
        share_y=True,
        claims=("other-inputs", "interpolated-other-inputs"),
    ),
    Figure(
        "rollouts",
        "The layer and the gradient step applied again and again. Thick: contexts where damped gradient descent is "
        "stable; thin: all contexts. Paper: Figs. 1 right and 10.",
        tuple(_rolled(damping) for damping in (1.0, 0.75, 0.5)),
        share_y=True,
        claims=(
            "rollout-together",
            "rollout-lowers",
            "rollout-never-steady",
            "other-dampings",
            "gd-more-robust",
            "undamped-diverges",
        ),
    ),
    Figure(
        "weights",
        "Weight products of one trained layer, rescaled as in appendix A.3, beside the construction. Paper: Fig. 9.",
        Matrices(lambda r: products(r, "weights", "construction"), 1.0),
        claims=(
            "eta-read",
            "weights-diagonal",
            "values-row",
            "weights-off-diagonal",
            "weights-distance",
        ),
    ),
)
