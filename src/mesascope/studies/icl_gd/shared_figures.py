"""Figures that several studies of linear regression share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mesascope.studies.common import values
from mesascope.study import Claim, Figure, Level, Line, Lines, Reading, StageReading, curves, stage, sweep

__all__ = [
    "HALF_MSE", "MODELS", "NAMES", "PREDICTIONS", "RELATIVE", "SENSITIVITIES", "contrast_figures", "law_of",
    "losses_over", "products", "ratios_over", "relative",
]  # fmt: skip

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
    claims: tuple[Claim, ...] = (),
    away: tuple[Claim, ...] = (),
) -> tuple[Figure, ...]:
    """The two figures of a `contrast`: while training, and on inputs of other scales.

    Args:
        claims, away: the claims that the first and the second one show.
    """
    subject, run, swept = title[0].upper() + title[1:], stage(name), stage(f"{name}-input-scale")
    levels = [Level(run[f"{key} mse"] / 2, key, NAMES[key]) for key in references]

    def to(quantity: str, y: str, log: str = "") -> Lines:
        return curves(run, {f"{key} {quantity}": (key, f"to {NAMES[key]}") for key in references}, y, log=log)

    return (
        Figure(
            name, f"{subject} on held-out tasks while training; line and band: mean and range over seeds. {source}.",
            (
                curves(run, {"mse": ("trained", "trained")}, HALF_MSE, levels, factor=0.5, log=log),
                to("cosine", SENSITIVITIES), to("sensitivity-difference", MODELS, "y"),
                to("prediction-difference", PREDICTIONS, "y"),
            ), columns=2, claims=claims,
        ),
        Figure(
            f"{name}-input-scale",
            f"{subject} and references where inputs are scaled away from those of training. {source}.",
            (losses_over(swept, "x_scale", title, references), ratios_over(swept, "x_scale", references)),
            columns=2, claims=away,
        ),
    )  # fmt: skip


def relative(swept: StageReading, case: str) -> Reading:
    """A case of a sweep over the value of training: 1 of teachers, and half the largest of inputs."""
    return swept.case(case).map(lambda x: x / (0.5 * x.max() if case == "x_scale" else 1.0), case)


def losses_over(
    swept: StageReading, case: str, title: str, references: Sequence[str], x: str = RELATIVE, middle: bool = False
) -> Lines:
    """Losses over a case of a sweep; with ``middle`` also those halfway between training and construction."""
    at = relative(swept, case)
    lines = [Line(at, swept["mse", "trained"] / 2, "trained", title)]
    for key in references:
        mine = swept["mse", key].map(lambda losses: losses[0] / 2, key)
        lines.append(Line(at, mine, key, NAMES[key], marks="o"))
    if middle:
        lines.append(Line(at, swept["mse", "middle"] / 2, "interpolated", "interpolated"))
    return Lines("", x, HALF_MSE, lines, "y")


def ratios_over(
    swept: StageReading,
    case: str,
    references: Sequence[str],
    title: str = "",
    x: str = RELATIVE,
    log: str = "y",
    y: str = "loss of each seed / of reference",
) -> Lines:
    """Each seed's loss over each reference's, beside the ratio 1."""
    shown: Mapping[Reading, Any] = {swept.ratio("trained", key): (key, f"to {NAMES[key]}") for key in references}
    return sweep(x, y, relative(swept, case), shown, [Level(1.0, "limit")], title=title, each=True, marks=".-", log=log)


def law_of(swept: StageReading, law: str) -> StageReading:
    """The part of a sweep over laws of inputs that is about one."""
    return swept.where(lambda cases: cases["x"] == law, f"{law} inputs")


def products(r: Any, trained: str, built: str) -> dict[str, np.ndarray]:
    """The first seed's weight products beside the construction's, for `Matrices`."""
    return {
        f"$W_{{{index}}}$ {kind}": r[stage][key][0]
        for key, index in (("w_kq", "KQ"), ("w_pv", "PV"))
        for kind, stage in (("trained (first seed)", trained), ("construction", built))
    }


# Replaced by losses_over and ratios_over; to be removed.
def old_relative(swept: Any, case: str) -> np.ndarray:
    """A case of a sweep over the value of training: 1 of teachers, and half the largest of inputs."""
    return swept.cases[case] / (0.5 * swept.cases[case].max() if case == "x_scale" else 1.0)


def old_scaled(swept: Any, case: str, title: str, references: Sequence[str]) -> list[Line]:
    """Losses over a case of a sweep."""
    x = old_relative(swept, case)
    lines = [Line(x, values(swept["mse", "trained"]) / 2, "trained", title)]
    return lines + [Line(x, values(swept["mse", key])[0] / 2, key, NAMES[key], marks="o") for key in references]


def old_law_of(swept: Any, law: str) -> Any:
    """The part of a sweep over laws of inputs that is about one."""
    return swept.where(swept.cases["x"] == law)


def old_ratio_lines(swept: Any, case: str, references: Sequence[str]) -> list[Line | Level]:
    """Each seed's loss over each reference's, beside the ratio 1."""
    x = old_relative(swept, case)
    ratios = [(key, values(swept.ratio("trained", key))) for key in references]
    return [
        Level(1.0, "limit"),
        *(Line(x, ratio, key, f"to {NAMES[key]}", each=True, marks=".-") for key, ratio in ratios),
    ]
