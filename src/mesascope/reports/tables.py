"""Claims as tables for a terminal, and the ledger over all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mesascope.text import number_text

__all__ = ["ledger_rows", "measured_text", "print_claims", "print_ledger"]

_VERDICT_STYLE = {"holds": "green", "fails": "bold red", "undecided": "yellow", "not yet run": "dim"}


def measured_text(record: Mapping[str, Any]) -> str:
    """A claim's value with its standard error, as short as it can be said."""
    value, stderr = record.get("value"), record.get("stderr")
    if value is None:
        return "not finite" if "n" in record else "-"
    return number_text(value, stderr or 0.0)


def print_claims(records: Sequence[Mapping[str, Any]], console: Console) -> None:
    """One row a claim."""
    table = Table(title="claims", title_justify="left", show_lines=False, pad_edge=False)
    for column in ("claim", "measured", "bound", "paper", "verdict"):
        table.add_column(column, overflow="fold", no_wrap=column in ("measured", "bound", "verdict"))
    for record in records:
        reference = record["reference"]
        table.add_row(
            f"{record['id']}: {record['statement']}",
            measured_text(record),
            record["bound"],
            "" if reference is None else f"{reference:g}",
            _styled(record["verdict"]),
        )
    console.print(table)


def ledger_rows(
    claims: Mapping[str, Sequence[str]], runs: Sequence[tuple[Mapping[str, Any], str, Sequence[Mapping[str, Any]]]]
) -> list[dict[str, Any]]:
    """The newest record of every claim of every study.

    Args:
        claims: claim ids of each study.
        runs: (config, path, claim records) of each finished run, oldest first.
    """
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for config, path, records in runs:
        for record in records:
            newest[config["study"], record["id"]] = {**record, "preset": config["preset"], "run": path}
    return [
        {"study": study, "id": claim, "verdict": "not yet run", **newest.get((study, claim), {})}
        for study, ids in claims.items()
        for claim in ids
    ]


def print_ledger(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = Table(pad_edge=False)
    for column in ("study", "claim", "measured", "bound", "verdict", "preset", "run"):
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = (row["study"], row["id"], measured_text(row), row.get("bound", ""), _styled(row["verdict"]))
        table.add_row(*cells, row.get("preset", ""), row.get("run", ""))
    console.print(table)


def _styled(verdict: str) -> str:
    return f"[{_VERDICT_STYLE.get(verdict, '')}]{verdict}[/]"
