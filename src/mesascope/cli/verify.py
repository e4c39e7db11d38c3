"""The command ``mesascope verify``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from mesascope.errors import ArgumentError
from mesascope.progress import tell


@dataclass(frozen=True)
class Verify:
    """Judge finished runs again by today's code, and print what changed.

    Exit status: 0 if nothing changed, 1 if something did or a run is damaged, 2 on error.
    """

    directories: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs, or folders of such folders; ./runs if none is given."""
    rerun: bool = False
    """Also repeat each run from its config.json, and compare verdicts and numbers."""
    since: str | None = None
    """Commit: verify only runs of studies whose code has changed since then."""
    device: str | None = None
    """Device of the repetitions; each run's own device if not given."""
    format: Literal["table", "markdown", "json"] = "table"
    """Output format; "json" has all rows and all judged claims."""

    def __call__(self) -> int:
        from mesascope.studies import verify

        if self.device is not None and not self.rerun:
            raise ArgumentError("--device must be given with --rerun, but is given alone: add --rerun.")
        found = verify(self.directories or Path("runs"), since=self.since, rerun=self.rerun, device=self.device)
        if self.format == "json":
            print(json.dumps(found.to_dict(), indent=2, allow_nan=False))
        else:
            print(found.to_markdown() if self.format == "markdown" else found)
        for sentence in found.left_out:
            tell(f"mesascope: left out: {sentence}")
        return 0 if found else 1
