"""``mesascope mutate``."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import tyro

from mesascope.errors import require_choice
from mesascope.loading import in_file
from mesascope.records import registered
from mesascope.text import counted

if TYPE_CHECKING:
    from mesascope.studies import Mutated


@dataclass(frozen=True)
class Mutate:
    """Plant the bugs of a study one at a time, and print the claims that no longer hold.

    Networks train at small settings. Exit status: 1 if some bug is detected by no claim, 2 on error, else 0.
    """

    study: tyro.conf.Positional[str]
    """Name of the study, or FILE.py:NAME for your own."""
    format: Literal["table", "json"] = "table"
    """Output format."""

    def __call__(self) -> int:
        from mesascope.studies import mutate
        from mesascope.study import load_study

        known = registered("study")
        if not in_file(self.study):
            require_choice("study", self.study, known)
        found = mutate(load_study(self.study) if in_file(self.study) else known[self.study])
        if self.format == "json":
            print(json.dumps(dataclasses.asdict(found), indent=2))
        else:
            _print(found)
        return int(bool(found.unnoticed))


def _print(found: Mutated) -> None:
    from rich.markup import escape
    from rich.table import Table

    from mesascope.reports import console
    from mesascope.studies.mutating import claims_text

    table = Table(title=f"bugs of {found.study}", title_justify="left", pad_edge=False)
    table.add_column("bug")
    table.add_column("claims that no longer hold")
    for bug, claims in found.turned.items():
        table.add_row(escape(bug), escape(claims_text(claims)) or "[bold]none[/]")
    console().print(table)
    other = {name: verdict for name, verdict in found.sound.items() if verdict != "holds"}
    noticed = f"of which {len(found.unnoticed)} not detected" if found.unnoticed else "each detected by a claim"
    print(f"{counted(len(found.turned), 'bug')}, {noticed}")
    if other:
        print(f"claims that do not hold without a bug, so cannot detect one: {claims_text(other)}")
