"""``mesascope report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Write report.html of a run again."""

    directory: tyro.conf.Positional[Path]
    """Folder of the run."""

    def __call__(self) -> None:
        from mesascope.reports import write_report
        from mesascope.runs import open_run

        print(write_report(open_run(self.directory)).resolve())
