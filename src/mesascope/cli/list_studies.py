"""``mesascope list``."""

from __future__ import annotations

from dataclasses import dataclass

from mesascope.records import registered
from mesascope.text import counted


@dataclass(frozen=True)
class ListStudies:
    """List the studies and their questions."""

    def __call__(self) -> None:
        for study in registered("study").values():
            print(f"{study.name}: {study.question}\n  {counted(len(study.claims), 'claim')}; {study.source}")
