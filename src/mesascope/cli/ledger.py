"""``mesascope ledger``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

__all__ = ["Ledger"]


@dataclass(frozen=True)
class Ledger:
    """Every claim of every study, judged from the arrays of each run."""

    directories: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs, or folders of such folders; ./runs if none is given."""
    format: Literal["table", "markdown", "json"] = "table"
    """How to print it."""

    def __call__(self) -> None:
        from mesascope.reports import console, ledger_markdown, print_ledger
        from mesascope.runs import find_runs
        from mesascope.studies import ledger_rows

        runs, unreadable = find_runs(self.directories or [path for path in (Path("runs"),) if path.is_dir()])
        rows, damaged = ledger_rows(runs)
        if self.format == "json":
            print(json.dumps(rows, indent=2, allow_nan=False))
        elif self.format == "markdown":
            print(ledger_markdown(rows), end="")
        else:
            print_ledger(rows, console())
        for sentence in [*unreadable, *damaged]:
            print(f"mesascope: left out: {sentence}", file=sys.stderr)
