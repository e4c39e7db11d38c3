"""``mesascope report``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro


@dataclass(frozen=True)
class Report:
    """Judge the claims again, and rewrite the figures and the report of a run, from its arrays."""

    directory: tyro.conf.Positional[Path]
    """Folder of the run."""

    def __call__(self) -> None:
        from mesascope.reports import write_report
        from mesascope.runs import Run
        from mesascope.studies import conclude

        run = Run.open(self.directory)
        with run.lock():
            study = _study(run) if run.config["kind"] == "study" and run.is_finished else None
            if study is not None:
                conclude(study, run)
            elif run.config["kind"] == "identification" and run.is_finished:
                from mesascope.identification.reporting import concluded

                run.require_unchanged()
                concluded(run)
            else:
                run.require_unchanged()
                write_report(run)
        print((self.directory / "report.html").resolve())


def _study(run: Any) -> Any:
    """The study of a run; if it is not available, print a message and return None."""
    from mesascope.errors import RunDirectoryError

    try:
        return run.study
    except RunDirectoryError as error:
        print(f"mesascope: claims are shown as judged when the run finished: {error}", file=sys.stderr)
        return None
