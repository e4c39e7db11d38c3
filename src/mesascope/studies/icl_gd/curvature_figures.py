"""The figure of the study of curvature."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.reports import Figure, Histogram, Line, Lines
from mesascope.studies.icl_gd.curvature_claims import SIZES, condition_number, condition_numbers, transformed

__all__ = ["FIGURES"]

SHADES = np.linspace(0, 1, len(SIZES))


def _change(r: Any) -> list[Line]:
    lines = [Line([0, 6], [0, 6], "limit", "unchanged", width=0.8)]
    for size, shade, gamma in zip(SIZES, SHADES, r["gamma"]["gamma"].mean(0), strict=True):
        eigenvalues = np.linspace(0, 1 / gamma, 200)
        lines.append(Line(eigenvalues, transformed(eigenvalues, gamma), shade, f"N = {size}"))
    return lines


def _condition(r: Any) -> list[Line]:
    lines = []
    ends = r["spectra"]["smallest"].mean(0), r["spectra"]["largest"].mean(0), r["gamma"]["gamma"].mean(0)
    for size, shade, low, high, gamma in zip(SIZES, SHADES, *ends, strict=True):
        gammas = np.geomspace(0.02, 0.999, 500) / high
        lines += [
            Line(gammas, condition_numbers(low, high, gammas), shade, f"N = {size}"),
            Line([gamma], condition_numbers(low, high, np.array([gamma])), shade, marks="o"),
            Line([0.0], [high / low], shade, marks="*"),
        ]
    return lines


def _spread(r: Any) -> dict[str, np.ndarray]:
    index = SIZES.index(25)
    spectra, gamma = r["spectra"]["spectra"][index], r["gamma"]["gamma"][:, index].mean()
    after = {factor * gamma: transformed(spectra, factor * gamma) for factor in (0.0, 0.5, 1.0, 1.2)}
    return {f"gamma = {value:.3f}": condition_number(one) for value, one in after.items()}


FIGURES = (
    Figure(
        "spectra",
        "Curvature before and after one step of GD++ at the gamma that trained networks use. Centre: stars without a "
        "step, dots at the gamma of trained networks. Paper: Fig. 13.",
        (
            Lines("Eigenvalues, one GD++ step", "before", "after", _change, limits={"ylim": (0, 6)}),
            Lines("Bound on the condition number", "gamma", "condition number", _condition, "y"),
            Histogram(
                "Condition numbers of tasks, N = 25", "condition number", "tasks", _spread, np.geomspace(1, 1000, 90)
            ),
        ),
    ),
)
