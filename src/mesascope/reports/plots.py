"""Panels that many studies use: training curves, losses over a sweep, and one mark per replicate and method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mesascope.evidence import Reading, StageReading
from mesascope.reports.panels import Level, Line, Lines

# Role (key of its colour) and label of a line.
Shown = tuple[str | float, str]


def curves(
    stage: StageReading,
    columns: Mapping[str, Shown],
    y: str,
    levels: Sequence[Level] = (),
    *,
    title: str = "",
    factor: float = 1.0,
    log: str = "",
    each: bool = False,
) -> Lines:
    """Columns of a training's log over its steps.

    Args:
        factor: factor on the columns.
        each: draw every replicate; their mean and range if False.
    """
    lines = [Line(stage["step"], factor * stage[column], *how, each) for column, how in columns.items()]
    return Lines(title, "training step", y, [*lines, *levels], log)


def sweep(
    x: str,
    y: str,
    case: Reading,
    lines: Mapping[Reading, Shown],
    levels: Sequence[Level] = (),
    *,
    title: str = "",
    each: bool = False,
    marks: str = "-",
    log: str = "y",
) -> Lines:
    """Curves of readings ``(replicates, cases)`` over the swept values ``case``."""
    shown = [Line(case, reading, role, label, each, marks) for reading, (role, label) in lines.items()]
    return Lines(title, x, y, [*levels, *shown], log)


def strip(y: str, names: Mapping[str, str], read: Callable[[Any], Mapping[str, Mapping[str, Any]]]) -> Lines:
    """One mark per replicate above the name of each method; ``read`` returns numbers by label and method.

    Marks of different labels are side by side.
    """

    def lines(results: Any) -> list[Line]:
        groups = read(results)
        beside = 0.14 * (np.arange(len(groups)) - (len(groups) - 1) / 2)
        return [
            Line(np.arange(len(names)) + beside[place], np.stack([one[name] for name in names], axis=1),
                 place / (len(groups) - 1) if len(groups) > 1 else "trained", label, each=True, marks="o")
            for place, (label, one) in enumerate(groups.items())
        ]  # fmt: skip

    return Lines("", "", y, lines, limits={"xticks": range(len(names)), "xticklabels": list(names.values())})
