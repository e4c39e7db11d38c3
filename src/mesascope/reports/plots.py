"""Panels that many studies have: curves over training, losses over a sweep, and one mark a replicate and method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mesascope.evidence import Reading, StageReading
from mesascope.reports.panels import Level, Line, Lines

# Role of a line, which gives its colour, and its label.
Shown = tuple[str | float, str]


def curves(
    stages: StageReading | Mapping[StageReading, Shown],
    columns: Mapping[str, Shown] | str,
    y: str,
    levels: Sequence[Level] = (),
    *,
    title: str = "",
    x: str = "training step",
    over: str = "step",
    factor: float = 1.0,
    log: str = "",
    each: bool = False,
    limits: Mapping[str, Any] | None = None,
) -> Lines:
    """Columns of what a training logged over its steps; or one column of several trainings.

    Args:
        stages: that of a training, with ``columns`` to show; or several with how they are shown, and one column.
        factor: the columns are multiplied by it.
        each: draw every replicate; their mean and range if False.
    """
    if isinstance(stages, StageReading):
        assert isinstance(columns, Mapping)
        shown = [(stages, column, *how) for column, how in columns.items()]
    else:
        shown = [(stage, str(columns), *how) for stage, how in stages.items()]
    lines = [Line(stage[over], factor * stage[column], role, label, each) for stage, column, role, label in shown]
    return Lines(title, x, y, [*lines, *levels], log, limits or {})


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
    """Readings ``(replicates, cases)`` over the values of a case."""
    shown = [Line(case, reading, role, label, each, marks) for reading, (role, label) in lines.items()]
    return Lines(title, x, y, [*levels, *shown], log)


def strip(
    y: str, names: Mapping[str, str], read: Callable[[Any], Mapping[str, Mapping[str, Any]]], title: str = ""
) -> Lines:
    """One mark a replicate over the name of each method; ``read`` returns numbers by label and method.

    Marks of different labels stand side by side.
    """

    def lines(results: Any) -> list[Line]:
        groups = read(results)
        beside = 0.14 * (np.arange(len(groups)) - (len(groups) - 1) / 2)
        return [
            Line(np.arange(len(names)) + beside[place], np.stack([one[name] for name in names], axis=1),
                 place / (len(groups) - 1) if len(groups) > 1 else "trained", label, each=True, marks="o")
            for place, (label, one) in enumerate(groups.items())
        ]  # fmt: skip

    return Lines(title, "", y, lines, limits={"xticks": range(len(names)), "xticklabels": list(names.values())})
