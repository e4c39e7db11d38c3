"""``mesascope report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Write report.html of a run again, its claims judged and its figures drawn anew from its arrays."""

    directory: tyro.conf.Positional[Path]
    """Folder of the run."""

    def __call__(self) -> None:
        from mesascope.records import registered
        from mesascope.reports import write_report
        from mesascope.runs import Run
        from mesascope.studies import conclude

        run = Run.open(self.directory)
        with run.lock():
            if run.config.get("study") in registered("study") and run.is_finished:
                conclude(registered("study")[run.config["study"]], run)
            elif run.config["kind"] == "identification" and run.is_finished:
                from mesascope.identification.reporting import concluded

                run.require_unchanged()
                concluded(run)
            else:
                run.require_unchanged()
                write_report(run)
        print((self.directory / "report.html").resolve())
