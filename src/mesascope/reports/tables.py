"""Claims as tables for a terminal, and the ledger over all runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mesascope.runs import Claim, RunDirectory
from mesascope.text import number_text

__all__ = ["ledger_markdown", "ledger_rows", "measured_text", "print_claims", "print_ledger"]

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


def ledger_rows(claims: Mapping[str, Sequence[Claim]], runs: Sequence[RunDirectory]) -> list[dict[str, Any]]:
    """The newest record of every claim of every study, with the run that it comes from.

    Args:
        claims: those of each study.
        runs: oldest first; unfinished ones have no claims.
    """
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        made = {
            "preset": run.config["preset"],
            "run": str(run.path),
            "command": run.config.get("command", ""),
            "machine": run.config.get("machine", ""),
            "seconds": sum(run.times().values()),
        }
        for record in run.claims() or []:
            newest[run.config["study"], record["id"]] = {**record, **made}
    return [
        {"study": study, "id": claim.id, "statement": claim.statement, "verdict": "not yet run"}
        | newest.get((study, claim.id), {})
        for study, own in claims.items()
        for claim in own
    ]


def ledger_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ledger as a Markdown page: one table a study, one row a claim, and how its run was made."""
    counts = Counter(row["verdict"] for row in rows)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    parts = ["# Ledger of claims", f"{len(rows)} claims: {said}. Written by `mesascope ledger DIR --markdown`."]
    for study in dict.fromkeys(row["study"] for row in rows):
        own = [row for row in rows if row["study"] == study]
        parts.append(f"## {study}")
        made = {row["run"]: row for row in own if "run" in row}
        parts += [
            f"`{row['command']}`: [{run}](../{run}), {row['machine']}, {row['seconds'] / 60:.1f} minutes."
            for run, row in made.items()
        ]
        lines = ["| claim | paper | measured | bound | verdict |", "|---|---|---|---|---|"]
        for row in own:
            statement = row["statement"].replace("|", "\\|")
            reference = "" if row.get("reference") is None else f"{row['reference']:g}"
            verdict = row["verdict"] if row["verdict"] == "holds" else f"**{row['verdict']}**"
            cells = (f"{row['id']}: {statement}", reference, measured_text(row), row.get("bound", ""), verdict)
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


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
