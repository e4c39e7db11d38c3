"""Runs, claims and arrays as HTML; all texts of a run are escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mesascope.errors import MesascopeError
from mesascope.evidence.verdicts import measured_text
from mesascope.reports.html import arrays_link, figure_html, interval_svg
from mesascope.reports.tables import counts_text
from mesascope.runs import Run
from mesascope.text import counted

# Largest report or array file on the page, in bytes, and number of table rows.
LARGEST, ROWS = 12_000_000, 12


def run_table(runs: Mapping[str, Run], unreadable: Sequence[str]) -> str:
    """Table with a row for each run and its verdicts, and for each folder that cannot be read."""
    rows = "".join(f"<tr><td>{_choice('run', name)}</td>{_about(run)}</tr>" for name, run in runs.items())
    rows += "".join(f'<tr><td colspan="3" class="fails">{escape(one)}</td></tr>' for one in unreadable)
    head = "<tr><th>run</th><th>study or question</th><th>verdicts</th></tr>"
    return f'<div class="wide"><table>{head}{rows}</table></div>'


def _about(run: Run) -> str:
    try:
        run.require_unchanged()
        claims, config = run.claims, run.config
        said = counts_text(claims) if claims else "not finished" if not run.is_finished else "no claims"
        kind = f"{config.get('study', config['kind'])} {config.get('preset', '')}"
        return f"<td>{escape(kind)}<br>{escape(config.get('question', ''))}</td><td>{escape(said)}</td>"
    except Exception as error:  # a damaged run shows the error in its own row
        return f'<td colspan="2" class="fails">{escape(str(error))}</td>'


def _choice(menu: str, value: str) -> str:
    """A button that chooses a value of a menu."""
    return f'<button type="button" data-menu="{menu}" data-value="{escape(value)}">{escape(value)}</button>'


def claim_table(claims: Sequence[Mapping[str, Any]]) -> str:
    """Table with a row for each claim: its interval over the shaded bound, and its verdict."""
    rows = "".join(
        f"<tr><td>{_choice('claim', one['id'])}<br>{escape(one['sentence'])}</td>"
        f"<td>{interval_svg(one)}<br>{escape(measured_text(one))}</td><td>{escape(one['bound'])}</td>"
        f'<td class="{escape(one["verdict"])}">{escape(one["verdict"])}</td></tr>'
        for one in claims
    )
    head = "<tr><th>claim</th><th>measured</th><th>bound</th><th>verdict</th></tr>"
    return f'<div class="wide"><table>{head}{rows}</table></div>' if claims else ""


def claim_text(run: Run, claim: Mapping[str, Any]) -> str:
    """A claim with its figure."""
    said = f"<b>{escape(claim['id'])}</b>: {escape(claim['sentence'])} <i>{escape(claim['source'])}</i>"
    name = claim.get("figure", "")
    if name not in run.captions:
        return f"<p>{said}</p><p>No figure shows it.</p>"
    return f"<p>{said}</p>{figure_html(name, run.figure_svg(name).encode(), run.captions[name])}"


def array_text(run: Run, stage: str) -> str:
    """First rows of a stage's arrays, and a link to its file."""
    table, content = run.results[stage].table(), run.results.content(stage)
    more = f"<p>The first {ROWS} of {counted(len(table), 'row')}.</p>" if len(table) > ROWS else ""
    link = arrays_link(stage, content) if len(content) < LARGEST else ""
    return f'{link}{more}<div class="wide">{table[:ROWS]._repr_html_()}</div>'


def report_frame(run: Run) -> str:
    """The report of an identification in a frame without scripts."""
    content = (run.path / "report.html").read_text(encoding="utf-8", errors="replace")
    if len(content) > LARGEST:
        return f"<p>The report is too large for this page: open {escape(str(run.path / 'report.html'))}.</p>"
    return f'<iframe title="answer of identify" sandbox srcdoc="{escape(content)}"></iframe>'


def trainings(run: Run) -> list[str]:
    """Names of the trainings that a run logged; empty if its metrics are damaged."""
    try:
        return run.trainings
    except MesascopeError:
        return []
