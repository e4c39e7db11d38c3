"""Figures that several studies of linear regression share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mesascope.reports import Figure, Level, Line, Lines
from mesascope.studies.common import values

__all__ = [
    "HALF_MSE",
    "MODELS",
    "NAMES",
    "PREDICTIONS",
    "RELATIVE",
    "SENSITIVITIES",
    "contrast_figures",
    "law_of",
    "products",
    "ratio_lines",
    "relative",
    "scaled",
]

NAMES = {"gd": "gradient descent", "gd++": "GD++", "centred": "centred descent"}
HALF_MSE = "half mean squared error"
SENSITIVITIES = "cosine of sensitivities"
RELATIVE = "input scale / that of training"
MODELS = "L2 distance of models"
PREDICTIONS = "distance of predictions"


def contrast_figures(
    name: str,
    title: str,
    references: Sequence[str],
    source: str,
    log: str = "",
    claims: tuple[str, ...] = (),
    away: tuple[str, ...] = (),
) -> tuple[Figure, ...]:
    """The two figures of a `contrast`: while training, and on inputs of other scales.

    Args:
        claims, away: ids of the claims that the first and the second one show.
    """
    subject = title[0].upper() + title[1:]
    return (
        Figure(
            name,
            f"{subject} on held-out tasks while training; line and band: mean and range over seeds. {source}.",
            (
                Lines("", "training step", HALF_MSE, lambda r: _losses(r[name], references), log),
                Lines("", "training step", SENSITIVITIES, lambda r: _to(r[name], references)),
                Lines("", "training step", MODELS, lambda r: _to(r[name], references, "sensitivity-difference"), "y"),
                Lines(
                    "", "training step", PREDICTIONS, lambda r: _to(r[name], references, "prediction-difference"), "y"
                ),
            ),
            columns=2,
            claims=claims,
        ),
        Figure(
            f"{name}-input-scale",
            f"{subject} and references where inputs are scaled away from those of training. {source}.",
            (
                Lines(
                    "", RELATIVE, HALF_MSE,
                    lambda r: scaled(r[f"{name}-input-scale"], "x_scale", title, references), "y",
                ),
                Lines(
                    "", RELATIVE, "loss of each seed / of reference",
                    lambda r: ratio_lines(r[f"{name}-input-scale"], "x_scale", references), "y",
                ),
            ),
            columns=2,
            claims=away,
        ),
    )  # fmt: skip


def relative(swept: Any, case: str) -> np.ndarray:
    """A case of a sweep over the value of training: 1 of teachers, and half the largest of inputs."""
    return swept.cases[case] / (0.5 * swept.cases[case].max() if case == "x_scale" else 1.0)


def scaled(swept: Any, case: str, title: str, references: Sequence[str]) -> list[Line]:
    """Losses over a case of a sweep."""
    x = relative(swept, case)
    lines = [Line(x, values(swept["mse", "trained"]) / 2, "trained", title)]
    return lines + [Line(x, values(swept["mse", key])[0] / 2, key, NAMES[key], marks="o") for key in references]


def law_of(swept: Any, law: str) -> Any:
    """The part of a sweep over laws of inputs that is about one."""
    return swept.where(swept.cases["x"] == law)


def ratio_lines(swept: Any, case: str, references: Sequence[str]) -> list[Line | Level]:
    """Each seed's loss over each reference's, beside the ratio 1."""
    x = relative(swept, case)
    ratios = [(key, values(swept.ratio("trained", key))) for key in references]
    return [
        Level(1.0, "limit"),
        *(Line(x, ratio, key, f"to {NAMES[key]}", each=True, marks=".-") for key, ratio in ratios),
    ]


def products(r: Any, trained: str, built: str) -> dict[str, np.ndarray]:
    """The first seed's weight products beside the construction's, for `Matrices`."""
    return {
        f"$W_{{{index}}}$ {kind}": r[stage][key][0]
        for key, index in (("w_kq", "KQ"), ("w_pv", "PV"))
        for kind, stage in (("trained (first seed)", trained), ("construction", built))
    }


def _losses(run: Any, references: Sequence[str]) -> list[Line | Level]:
    levels = [Level(float(run[f"{key} mse"].mean()) / 2, key, NAMES[key]) for key in references]
    return [Line(run["step"], run["mse"] / 2, "trained", "trained"), *levels]


def _to(run: Any, references: Sequence[str], quantity: str = "cosine") -> list[Line]:
    return [Line(run["step"], run[f"{key} {quantity}"], key, f"to {NAMES[key]}") for key in references]
