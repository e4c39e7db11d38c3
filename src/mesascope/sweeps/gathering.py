"""Table of a sweep's claims and measured numbers by setting, and the files, figures and page made from it."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.evidence import Arrays
from mesascope.evidence.judging import median_interval
from mesascope.evidence.tables import Table
from mesascope.evidence.verdicts import controlled, measured_text
from mesascope.files import write_aside
from mesascope.sweeps.points import COLUMNS
from mesascope.text import counted

if TYPE_CHECKING:
    from mesascope.runs import Run
    from mesascope.sweeps.points import Point
    from mesascope.sweeps.sweep import Sweep

# Maximum number of figures on the page, and of panels in a figure.
_MOST = 24


def gathered(sweep: Sweep, finished: Sequence[tuple[Point, Run]]) -> Table:
    """One row per point and claim, then per point and measured number; a function's seed blocks are pooled."""
    if not sweep.is_study:
        return Table(_of_function(sweep, finished))
    places = [_place(point) for point, run in finished for _ in run.claims]
    claims = controlled([{**claim, "run": str(run.path)} for _, run in finished for claim in run.claims])
    rows = [
        {
            **place,
            "name": claim["id"],
            **{field: claim.get("n" if field == "replicates" else field) for field in COLUMNS[1:]},
        }
        for place, claim in zip(places, claims, strict=True)
    ]
    return Table([*rows, *(row for point, run in finished for row in _numbers(_place(point), _by_name(run)))])


def _place(point: Any) -> dict[str, Any]:
    return {**{name: _cell(value) for name, value in point.changes.items()}, "seeds": point.block}


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)


def _of_function(sweep: Sweep, finished: Sequence[tuple[Any, Run]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*sweep.axes.values()):
        changes = dict(zip(sweep.axes, values, strict=True))
        own = [(point, run) for point, run in finished if point.changes == changes]
        parts = [_by_name(run) for _, run in own]
        if parts:
            names = dict.fromkeys(name for part in parts for name in part)
            numbers = {name: np.concatenate([part[name] for part in parts if name in part]) for name in names}
            yield from _numbers(_place(own[0][0]) | {"seeds": ",".join(point.block for point, _ in own)}, numbers)


def _by_name(run: Run) -> dict[str, np.ndarray]:
    """Measured numbers of a run with one value per seed, ``(seeds,)`` each, named ``stage: name``."""
    found: dict[str, np.ndarray] = {}
    for name, stage in run.results.items():
        start = "" if run.config["kind"] == "sweep" else f"{name}: "
        if isinstance(stage, Arrays):
            found |= {
                f"{start}{key}": np.asarray(values, dtype=float)
                for key, values in stage.items()
                if stage.axes[key] == ("seed",) and key != "seed" and values.dtype.kind in "biuf"
            }
        elif not stage.cases:
            for own in dict.fromkeys(stage.names):
                columns = [index for index, other in enumerate(stage.names) if other == own]
                found[f"{start}{' '.join(own)}"] = stage.mean[columns]
    return found


def _numbers(place: Mapping[str, Any], numbers: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """A row for each number: its median over seeds, with its interval at 99 % for eight seeds or more."""
    for name, values in numbers.items():
        ends = zip(("value", "low", "high"), median_interval(values).tolist(), strict=True)
        row = {key: end if math.isfinite(end) and np.isfinite(values).all() else None for key, end in ends}
        yield {**place, "name": name, **row, "replicates": len(values)}


def shown_table(table: Table) -> Table:
    """Table to print: claims, or numbers if there are no claims, with intervals as text."""
    claims = [row for row in table if "verdict" in row]
    return Table(
        {
            **{key: value for key, value in row.items() if key not in COLUMNS[1:]},
            "measured, with confidence intervals": measured_text(row),
            **({key: row[key] for key in ("bound", "verdict")} if claims else {"replicates": row["replicates"]}),
        }
        for row in claims or table
    )


def to_csv(table: Table) -> str:
    """The table as comma-separated values."""
    text = io.StringIO()
    writer = csv.DictWriter(text, table.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def to_json(sweep: Sweep, table: Table) -> str:
    """The table, and the points that failed, as JSON."""
    failed = [
        {**_place(point), "sentence": sweep.failed[point.key]} for point in sweep.points if point.key in sweep.failed
    ]
    return json.dumps({"schema": 1, "sweep": sweep.name, "rows": table, "failed": failed}, indent=2, allow_nan=False)


def write_gathered(sweep: Sweep) -> None:
    """Write table.json, table.csv and report.html into the folder of the sweep."""
    from mesascope.reports import figures_page

    finished = sweep.finished()
    table = gathered(sweep, finished)
    write_aside(sweep.out / "table.json", f"{to_json(sweep, table)}\n".encode())
    write_aside(sweep.out / "table.csv", to_csv(table).encode())
    done, all_of = len(finished), counted(len(sweep.points), "point")
    found = [f"{done} of {all_of} finished.", *(f"Failed: {label}: {said}" for label, said in failures(sweep))]
    tables = {"Claims and numbers by setting": table}
    page = figures_page(f"Sweep of {sweep.name}", found, _figures(sweep, table), tables)
    write_aside(sweep.out / "report.html", page.encode())


def failures(sweep: Sweep) -> list[tuple[str, str]]:
    """Label and error message of each point that failed."""
    return [(point.label, sweep.failed[point.key]) for point in sweep.points if point.key in sweep.failed]


def _figures(sweep: Sweep, table: Table) -> dict[str, bytes]:
    """SVG figures by caption: for each name, a curve or heat maps over the settings that vary."""
    from mesascope.reports import Figure, figure_files

    axes = {name: [_cell(value) for value in values] for name, values in sweep.axes.items() if len(values) > 1}
    if sweep.is_study and len(sweep.blocks) > 1:
        axes["seeds"] = [f"{seed}:{seed + count}" for seed, count in sweep.blocks]
    names = list(dict.fromkeys(row["name"] for row in table if row.get("verdict") or not sweep.is_study))
    if not axes or not names:
        return {}
    found = {}
    for name in names[:_MOST]:
        rows = [row for row in table if row["name"] == name and row["value"] is not None]
        if panels := tuple(itertools.islice(_panels(name, axes, rows), _MOST)):
            over = " and ".join(axis.replace("_", "-") for axis in list(axes)[-2:])
            barred = len(axes) == 1 and any(row["low"] is not None for row in rows)
            caption = f"{name} over {over}{'; bars are intervals at 99 %' if barred else ''}."
            found[caption] = figure_files(Figure("sweep", caption, panels), {})["svg"]
    return found


def _panels(name: str, axes: Mapping[str, list[Any]], rows: Sequence[Mapping[str, Any]]) -> Iterable[Any]:
    """Heat maps over the last two settings, one per choice of other settings; or a curve over one numeric setting."""
    from mesascope.reports import Grid, Line, Lines

    *others, last = axes
    if rows and not others and all(isinstance(value, int | float) for value in axes[last]):
        at = sorted(rows, key=lambda row: row[last])
        x, y, low, high = ([row[key] for row in at] for key in (last, "value", "low", "high"))
        error = [[b - a if a is not None else 0 for a, b in zip(low, y, strict=True)],
                 [b - a if b is not None else 0 for a, b in zip(y, high, strict=True)]]  # fmt: skip
        yield Lines("", last.replace("_", "-"), name, [Line(x, y, "trained", marks="o-", error=np.abs(error))])
        return
    row_axis, fixed = (others[-1], others[:-1]) if others else ("", [])
    for values in itertools.product(*(axes[axis] for axis in fixed)):
        here = dict(zip(fixed, values, strict=True))
        own = {(row.get(row_axis), row[last]): row["value"] for row in rows
               if all(row[axis] == value for axis, value in here.items())}  # fmt: skip
        lines = axes[row_axis] if row_axis else [None]
        grid = np.array([[own.get((line, value), math.nan) for value in axes[last]] for line in lines])
        title = ", ".join(f"{axis} {value}" for axis, value in here.items())
        if np.isfinite(grid).any():
            texts = ["" if line is None else str(line) for line in lines], [str(value) for value in axes[last]]
            yield Lines(title, last.replace("_", "-"), row_axis.replace("_", "-"), [Grid(grid, *texts, name)])
