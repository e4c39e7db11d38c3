"""The figure of the study of curvature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mesascope.reports import Figure, Histogram, Line, Lines
from mesascope.studies.icl_gd.curvature_claims import (
    GAMMAS,
    SIZES,
    condition_number,
    condition_numbers,
    flattest,
    transformed,
)

__all__ = ["FIGURES"]

SHADES = np.linspace(0, 1, len(SIZES))


def _change(r: Any) -> list[Line]:
    lines = [Line([0, 6], [0, 6], "limit", "unchanged", width=0.8)]
    for size, shade, gamma in zip(SIZES, SHADES, r["gamma"]["gamma"].mean(0), strict=True):
        eigenvalues = np.linspace(0, 1 / gamma, 200)
        lines.append(Line(eigenvalues, transformed(eigenvalues, gamma), shade, f"N = {size}"))
    return lines


def _condition(shown: tuple[int, ...]) -> Callable[[Any], list[Line]]:
    """Bounds on the condition number by gamma for sizes, with the gamma of networks and the best one marked."""

    def read(r: Any) -> list[Line]:
        lines = []
        ends = r["spectra"]["smallest"].mean(0), r["spectra"]["largest"].mean(0), r["gamma"]["gamma"].mean(0)
        for size, shade, low, high, gamma in zip(SIZES, SHADES, *ends, strict=True):
            if size not in shown:
                continue
            gammas, best = np.geomspace(0.02, 0.999, 500) / high, flattest(low, high)
            lines += [
                Line(gammas, condition_numbers(low, high, gammas), shade, f"N = {size}"),
                Line([gamma], condition_numbers(low, high, np.array([gamma])), shade, marks="o"),
                Line([best], condition_numbers(low, high, np.array([best])), shade, marks="v"),
                Line([0.0], [high / low], shade, marks="*"),
            ]
        return lines

    return read


def _medians(r: Any) -> list[Line]:
    return [Line(GAMMAS, r["condition-numbers"]["median"], "trained", "median over tasks, N = 25")]


def _spread(r: Any) -> dict[str, np.ndarray]:
    index = SIZES.index(25)
    spectra, gamma = r["spectra"]["spectra"][index], r["gamma"]["gamma"][:, index].mean()
    after = {factor * gamma: transformed(spectra, factor * gamma) for factor in (0.0, 0.5, 1.0, 1.2)}
    return {f"gamma = {value:.3f}": condition_number(one) for value, one in after.items()}


FIGURES = (
    Figure(
        "spectra",
        "Curvature before and after one step of GD++ at the gamma that trained networks use. In the bounds on the "
        "condition number, stars are without a step, circles at the gamma of trained networks, triangles at the least "
        "bound; N = 10 has an axis of its own, its smallest eigenvalue being one of rounding. Last row: tasks of "
        "N = 25. Paper: Fig. 13.",
        (
            Lines("", "eigenvalue before a step", "eigenvalue after it", _change, limits={"ylim": (0, 6)}),
            Lines("", "gamma", "bound on the condition number", _condition(SIZES[1:]), "y"),
            Lines("", "gamma", "bound on the condition number", _condition(SIZES[:1]), "y"),
            Histogram("", "condition number, N = 25", "tasks", _spread, np.geomspace(1, 1000, 90)),
            Lines("", "gamma", "median condition number", _medians, "y"),
        ),
        claims=(
            "largest-eigenvalues",
            "smallest-eigenvalues",
            "singular-at-ten",
            "text-inputs",
            "gamma-observed",
            "gamma-optimal",
            "gamma-condition-number",
            "gamma-derived-larger",
            "inside-roots",
            "better-conditioned",
            "explodes",
            "least-beyond",
        ),
    ),
)
