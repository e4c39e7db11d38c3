"""Table of judged claims."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mesascope.evidence.schema import VERSION
from mesascope.evidence.tables import Table
from mesascope.text import interval_text

# Largest expected share of false verdicts among the decided claims of a ledger.
RATE = 0.01
# Factors on the error rate: these intervals can cover less than they state, so they are computed at 99.9 %.
STRICTER = {"every": 0.1, "bootstrap": 0.1}
# Resamples of a bootstrap, and the smallest p-value that they can show: the tail of one resample.
RESAMPLES = 9_999
FLOOR = 20 / RESAMPLES


class Verdicts(Table):
    """Records of `judge`, one per row, printed as claim, interval, bound, and verdict with its reason.

    ``verdicts.columns`` lists all columns; `to_json`, `to_markdown`, `to_html` and `to_pandas` convert the table.

    >>> Verdicts([{"id": "same", "value": 1.01, "low": 0.98, "high": 1.04, "bound": "< 1.02", "verdict": "undecided"}])
    claim  measured, with confidence intervals  bound   verdict
    same   1.010 [0.980, 1.040]                 < 1.02  undecided
    """

    def __repr__(self) -> str:
        return repr(self.table())

    def _html(self, *, whole: bool = False) -> str:
        return self.table("sentence")._html(whole=whole)

    def to_markdown(self) -> str:
        """The `table` in Markdown, with sentences."""
        return self.table("sentence").to_markdown()

    def to_json(self) -> str:
        """All fields of the judged claims, in the schema ``mesascope/evidence/claims.schema.json``."""
        judged = [row for row in self if row["verdict"] != "not yet run"]
        return json.dumps({"schema": VERSION, "claims": judged}, indent=2, allow_nan=False)

    def table(self, *more: str) -> Table:
        """Table to print, with numbers as text, and with the columns ``more`` after the claim's id."""
        return Table(
            {
                **{key: row[key] for key in ("study", "preset") if key in row},
                "claim": row["id"],
                **{key: row.get(key) for key in more},
                "measured, with confidence intervals": measured_text(row),
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


def sample_text(record: Mapping[str, Any], size: float) -> str:
    """Phrase for a sample of ``size`` in place of ``n``: evaluation tasks for ``every``, otherwise replicates."""
    if record["quantifier"] == "every":
        return f"{max(math.ceil(10 * size / record['n'] - 1e-9) / 10, 1.1):g} times as many evaluation tasks"
    return f"about {math.ceil(size)} {record['over']}"


def controlled(records: Sequence[Mapping[str, Any]]) -> Verdicts:
    """Records whose verdicts have a false discovery rate of at most 1 %, by the rule of Benjamini and Hochberg.

    The rule (1995) applies to claims with a p-value. A claim decided by itself, but not by the rule, becomes undecided,
    and so do the claims of the same run (column ``run``) that have it as a premise.
    """
    errors = sorted(error for record in records if (error := record.get("p")) is not None)
    passed = max((rank for rank, error in enumerate(errors, 1) if error <= RATE * rank / len(errors)), default=0)
    most = errors[passed - 1] if passed else 0.0

    def reason(record: Mapping[str, Any]) -> str:
        from scipy.stats import norm

        said = (
            f"it {record['verdict']} by itself (p = {record['p']:.2g}), but not at a false discovery rate of 1 % among "
            f"{len(errors)} claims"
        )
        wanted = RATE * (passed + 1) / len(errors)  # the largest p-value with which one more claim is decided
        if record["quantifier"] == "bootstrap" and wanted < FLOOR:
            return f"{said}, as resamples show no p below {FLOOR:.2g}"
        stricter = STRICTER.get(record["quantifier"], 1) / 2
        times = (norm.isf(wanted * stricter) / norm.isf(record["p"] * stricter)) ** 2
        return f"{said}, which {sample_text(record, record['n'] * times)} would decide"

    def decided(record: Mapping[str, Any]) -> bool:
        return record["verdict"] in ("holds", "fails")

    found = [
        {**record, "verdict": "undecided", "reason": reason(record)}
        if decided(record) and (record.get("p") or 0.0) > most
        else record
        for record in records
    ]
    taken = {(one.get("run"), one["id"]) for one, old in zip(found, records, strict=True) if one is not old}
    while broken := {
        place: name
        for place, one in enumerate(found)
        for name in one.get("premises", ())
        if decided(one) and (one.get("run"), name) in taken
    }:
        for place, name in broken.items():
            found[place] = {**found[place], "verdict": "undecided", "reason": f"its premise {name} is undecided"}
            taken.add((found[place].get("run"), found[place]["id"]))
    return Verdicts(found)
