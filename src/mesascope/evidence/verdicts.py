"""Table of judged claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesascope.evidence.tables import Table
from mesascope.text import interval_text


class Verdicts(Table):
    """Records of `judge`, one row each; printed are the claim, its interval, the bound and the verdict with its reason.

    ``verdicts.columns`` lists all columns.

    >>> Verdicts([{"id": "same", "value": 1.01, "low": 0.98, "high": 1.04, "bound": "< 1.02", "verdict": "undecided"}])
    claim  measured, with its interval at 99.9 %  bound   verdict
    same   1.010 [0.980, 1.040]                   < 1.02  undecided
    """

    def __repr__(self) -> str:
        return repr(self._shown())

    def _repr_html_(self) -> str:
        return self._shown("sentence")._repr_html_()

    def _shown(self, *more: str) -> Table:
        """Table to print, with texts in place of numbers."""
        return Table(
            {
                **{key: row[key] for key in ("study", "preset") if key in row},
                "claim": row["id"],
                **{key: row.get(key) for key in more},
                "measured, with its interval at 99.9 %": measured_text(row),
                "bound": row.get("bound"),
                "verdict": ": ".join(filter(None, (row["verdict"], row.get("reason")))),
            }
            for row in self
        )


def measured_text(record: Mapping[str, Any]) -> str:
    """A claim's value with its interval, to the necessary digits."""
    value, low, high = (record.get(key) for key in ("value", "low", "high"))
    if value is None:
        return "-"
    return interval_text(value, value if low is None else low, value if high is None else high)
