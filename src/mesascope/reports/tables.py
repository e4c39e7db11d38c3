"""Claims as paragraphs for a terminal, and the ledger as a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from mesascope.evidence.verdicts import RATE, measured_text
from mesascope.text import counted, line_width

# Console width if output is not a terminal.
_NO_END = 10_000

_VERDICT_STYLE = {"holds": "green", "fails": "bold red", "undecided": "yellow", "not yet run": "dim"}


def console() -> Console:
    """Rich console on standard output, as wide as the terminal; lines in a file are not wrapped."""
    width = line_width()
    return Console(width=int(width) if math.isfinite(width) else _NO_END)


def counts_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Number of claims with each verdict: ``2 hold, 1 fails, 1 is undecided``."""
    counts = Counter(record["verdict"] for record in records)
    plurals = {"holds": "hold", "fails": "fail"}
    parts = []
    for verdict in filter(counts.get, _VERDICT_STYLE):
        one, more = (verdict, plurals[verdict]) if verdict in plurals else (f"is {verdict}", f"are {verdict}")
        parts.append(counted(counts[verdict], one, more))
    return ", ".join(parts)


def holding_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Number of claims that hold, by kind: ``holding: 2 of 3 printed sentences, 1 of 1 premise``.

    A claim that is a premise of another counts as a premise. Controls are claims of ours with *control* in the source.
    """
    runs = ("study", "run")
    premises = {(*map(record.get, runs), name) for record in records for name in record.get("premises", ())}
    found: dict[str, list[bool]] = {"printed sentence": [], "claim": [], "control": [], "premise": []}
    for record in (record for record in records if "source" in record):  # claims that are not yet run have no source
        own = record["source"].startswith(("ours", "derived"))
        kind = "printed sentence" if not own else "control" if "control" in record["source"] else "claim"
        kind = "premise" if (*map(record.get, runs), record["id"]) in premises else kind
        found[kind].append(record["verdict"] == "holds")
    words = {"claim": ("claim of ours", "claims of ours")}
    parts = [f"{sum(own)} of {counted(len(own), *words.get(kind, (kind,)))}" for kind, own in found.items() if own]
    return f"holding: {', '.join(parts)}"


def over_text(record: Mapping[str, Any]) -> str:
    """Number of replicates of a claim: ``5 seeds``, or ``each of 5 seeds``."""
    each = "each of " if record.get("quantifier") == "every" else ""
    return each + counted(record["n"], record["over"].removesuffix("s"))


def reason_text(record: Mapping[str, Any]) -> str:
    """Reason of a verdict, and the bound or verdict before a change that was made with the result known."""
    former = f"(changed with its result known; before: {record['former']})" if record.get("former") else ""
    return " ".join(filter(None, (record.get("reason"), former)))


def print_claims(records: Sequence[Mapping[str, Any]], console: Console, title: str = "claims") -> None:
    """Print a paragraph for each claim."""
    console.print(
        f"[italic]{escape(title)}, intervals at 99 % (99.9 % for each network and for bootstraps)[/]", highlight=False
    )
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for record in records:
        lines = [
            f"[bold]{escape(record['id'])}[/]: {escape(record['sentence'])}",
            f"{escape(measured_text(record))}, bound {escape(record['bound'])}",
            f"[dim]{escape(record['measures'])}[/]",
            f"reported {escape(record['reported'])}" if record["reported"] else "",
            escape(reason_text(record)),
        ]
        verdict = record["verdict"]
        grid.add_row(f"[{_VERDICT_STYLE[verdict]}]{verdict}[/]", "\n".join([*filter(None, lines), ""]))
    console.print(grid, crop=False)


def ledger_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ledger as a Markdown page: a table for each run, a row for each claim, and the run's provenance."""
    tested = sum((row.get("p") or 1) < 1 and row["verdict"] != "undecided" for row in rows)
    unlike = sum(bool(row.get("unlike")) for row in rows if row["verdict"] == "fails")
    parts = [
        "# Ledger of claims",
        f"{counted(len(rows), 'claim')}: {counts_text(rows)}; {holding_text(rows)}. {unlike} failing claims were "
        "measured with other settings than their source's, named in their rows, and do not refute it. Judged "
        "from the arrays of each run by `mesascope ledger DIR --format markdown`. Intervals are at 99 %, those of each "
        "network and of bootstraps at 99.9 % ([evidence.md](evidence.md)); *n* counts replicates. A claim about *each* "
        "of them has one interval for each, over evaluation tasks; one about their median or share has an interval "
        f"over replicates. The false discovery rate is at most 1 %: of {counted(tested, 'verdict')} that rest on "
        f"intervals, at most {RATE * tested:.1f} are expected to be false. A star marks those that are also decided "
        "at a tenth of the error rate. Bounds are ours, except those marked (paper). A *control* fails if the code has "
        "a bug, and other claims depend on a *premise*; [findings](findings.md) explains further words.",
    ]
    parts.append(_studies_markdown(rows))
    for study in dict.fromkeys(row["study"] for row in rows):
        parts.append(f"## {study}")
        own = [row for row in rows if row["study"] == study]
        for run in dict.fromkeys(row.get("run") for row in own):
            parts += _run_markdown([row for row in own if row.get("run") == run])
    return "\n\n".join(parts) + "\n"


def _studies_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Table with a row for each study: numbers of claims by verdict, and the claims that do not hold."""
    lines = ["| study | claims | hold | fail | undecided | not yet run |", "|---|---|---|---|---|---|"]
    for study in dict.fromkeys(row["study"] for row in rows):
        own = [row for row in rows if row["study"] == study]
        ids = {verdict: [row["id"] for row in own if row["verdict"] == verdict] for verdict in _VERDICT_STYLE}
        named = [f"{len(ids[verdict])}: {', '.join(ids[verdict])}" for verdict in ("fails", "undecided")]
        cells = (f"[{study}](#{study})", len(own), len(ids["holds"]), *named, len(ids["not yet run"]))
        lines.append(f"| {' | '.join(str(cell).removeprefix('0: ') or '' for cell in cells)} |")
    return "\n".join(lines)


def _run_markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    first = rows[0]
    if "run" not in first:
        return [f"Not yet run: {', '.join(row['id'] for row in rows)}."]
    parts = [
        " ".join(f"{mark}{text}{mark}" for mark, text in (("**", _preset_text(first)), ("`", first["command"])) if text)
        + f": [{first['run']}](../{first['run']}), {first['machine']}, {first['seconds'] / 60:.1f} minutes.",
        *([f"The preset differs from the paper: {' '.join(first['deviations'])}"] if first["deviations"] else []),
    ]
    lines = ["| claim | reported | measured | n | bound | verdict |", "|---|---|---|---|---|---|"]
    for row in rows:
        sentence = f"{row['id']}: {row['sentence']} ({row['measures']})"
        bound = row["bound"] + (" (paper)" if row["bound_by"] == "paper" else "")
        cells = (sentence, row["reported"] or "", measured_text(row), over_text(row), bound)
        verdict = row["verdict"] if row["verdict"] == "holds" else f"**{row['verdict']}**"
        sure = "\\*" if (row.get("p") or 1) <= 0.001 else ""
        because = f"{':' if row.get('reason') else ''} {reason_text(row)}".rstrip()
        lines.append(f"| {' | '.join(map(_cell, cells))} | {verdict}{sure}{_cell(because)} |")
    return [*parts, "\n".join(lines)]


def print_ledger(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the claims of each run, and a line for the studies without runs."""
    for run in dict.fromkeys(row["run"] for row in rows if "run" in row):
        own = [row for row in rows if row.get("run") == run]
        print_claims(own, console, f"{', '.join(filter(None, (own[0]['study'], _preset_text(own[0]))))}: {run}")
    judged = [row for row in rows if "run" in row]
    if judged:
        console.print(f"{counted(len(judged), 'claim')}: {counts_text(judged)}; {holding_text(judged)}")
    claims = Counter(row["study"] for row in rows if "run" not in row)
    if claims:
        studies = ", ".join(f"{escape(study)} ({counted(count, 'claim')})" for study, count in claims.items())
        console.print(f"not yet run: {studies}")


def _preset_text(row: Mapping[str, Any]) -> str:
    changed = row.get("changed")
    return row.get("preset", "") + (f", but {'; '.join(changed)}" if changed else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
