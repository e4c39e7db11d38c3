"""``mesascope list``."""

from __future__ import annotations

from dataclasses import dataclass

from mesascope.records import registered

__all__ = ["ListStudies"]


@dataclass(frozen=True)
class ListStudies:
    """The studies, and what they ask."""

    def __call__(self) -> None:
        for study in registered("study").values():
            print(f"{study.name}: {study.question}\n  {len(study.claims)} claims; {study.source}")
