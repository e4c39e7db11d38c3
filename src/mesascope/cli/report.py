"""``mesascope report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from mesascope.errors import RunDirectoryError
from mesascope.progress import tell

if TYPE_CHECKING:
    from mesascope.runs import Run


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
                result = run.path / "identification.json"  # a full disk may have cut what follows it
                if run.config["kind"] == "identification" and result.exists():
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
        tell(f"mesascope: claims are shown as judged when the run finished: {error}")
        return None
