"""``mesascope list``, ``mesascope report`` and ``mesascope ledger``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from mesascope.errors import RunDirectoryError
from mesascope.records import registered
from mesascope.text import counted

if TYPE_CHECKING:
    from mesascope.runs import Run


@dataclass(frozen=True)
class ListStudies:
    """List the studies and their questions."""

    def __call__(self) -> None:
        for study in registered("study").values():
            print(f"{study.name}: {study.question}\n  {counted(len(study.claims), 'claim')}; {study.source}")


@dataclass(frozen=True)
class Report:
    """Judge the claims of a run again from its arrays, and rewrite its figures and its report."""

    directory: tyro.conf.Positional[Path]  # Folder of the run.

    def __call__(self) -> None:
        from mesascope.reports import write_report
        from mesascope.runs import Run
        from mesascope.studies import conclude

        run = Run.open(self.directory)
        with run.lock():
            study = _study(run) if run.config["kind"] == "study" and run.is_finished else None
            if study is not None:
                conclude(study, run)
            else:
                run.require_unchanged()
                if run.config["kind"] == "identification" and run.is_finished:
                    from mesascope.identification.reporting import concluded

                    concluded(run)
                else:
                    write_report(run)
        print((self.directory / "report.html").resolve())


def _study(run: Run) -> Any:
    """The study of a run; if it is not available, print a message and return None."""
    try:
        return run.study
    except RunDirectoryError as error:
        print(f"mesascope: claims are shown as judged when the run finished: {error}", file=sys.stderr)
        return None


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
            print(f"mesascope: left out: {sentence}", file=sys.stderr)


def _why(run: Run) -> str:
    """Reason why a run has no row."""
    kind = run.config["kind"]
    if kind not in ("study", "identification"):
        return f"{run.path} must be a run of a study or of identify, but is a {kind}: see its folder."
    if not run.is_finished:
        return f"{run.path} must be finished, but is not: continue it with --resume."
    return f"{run.path} must be the newest run of its settings, but is not: pass it alone."
