"""``mesascope ledger``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from mesascope.progress import tell

if TYPE_CHECKING:
    from mesascope.runs import Run


@dataclass(frozen=True)
class Ledger:
    """Judge every claim of every study from the arrays of its runs, and print the ledger."""

    directories: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs, or folders of such folders; ./runs if none is given."""
    format: Literal["table", "markdown", "json", "schema"] = "table"
    """Output format; "json" is a list of all rows, "schema" the judged claims in the schema of docs/claims.md."""

    def __call__(self) -> None:
        from mesascope.reports import console, ledger_markdown, print_ledger
        from mesascope.runs import find_runs
        from mesascope.studies import ledger_rows

        runs, unreadable = find_runs(self.directories or [path for path in (Path("runs"),) if path.is_dir()])
        rows, damaged = ledger_rows(runs)
        if self.format == "json":
            print(json.dumps(rows, indent=2, allow_nan=False))
        elif self.format == "schema":
            print(rows.to_json())
        elif self.format == "markdown":
            print(ledger_markdown(rows), end="")
        else:
            print_ledger(rows, console())
        left_out = [*unreadable, *damaged]
        judged = {row["run"] for row in rows if "run" in row}
        for run in runs:
            named = (f"{run.path}{os.sep}", f"{run.path} ")
            if str(run.path) not in judged and not any(one.startswith(named) for one in left_out):
                left_out.append(_why(run))
        for sentence in left_out:
            tell(f"mesascope: left out: {sentence}")


def _why(run: Run) -> str:
    """Reason why a run has no row."""
    kind = run.config["kind"]
    if kind not in ("study", "identification"):
        return f"{run.path} must be a run of a study or of identify, but is a {kind}: see its folder."
    if not run.is_finished:
        remedy = "finish it by mesascope report" if kind == "identification" else "continue it with --resume"
        return f"{run.path} must be finished, but is not: {remedy}."
    return f"{run.path} must be the newest run of its settings, but is not: pass it alone."
