"""One self-contained report.html from a run directory; opens from disk, offline. Imports no torch."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mesascope.evidence.tables import Table
from mesascope.evidence.verdicts import measured_text
from mesascope.reports.found import found_text, interval_svg
from mesascope.reports.tables import bound_text, counts_text
from mesascope.runs import Run

__all__ = ["write_report"]

_CSS = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1f; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.found { border-left: 4px solid #4a6fa5; padding-left: 1rem; } .found p { margin: .4rem 0; }
.question { font-size: 1.1rem; margin-top: 0; } .muted { color: #666; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; } .reason { font-weight: 400; font-size: .8rem; } .holds { color: #1a7f37; }
.fails { color: #c0232c; }
.undecided { color: #9a6700; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #666; }
code, pre { background: #f4f4f6; border-radius: 4px; padding: .1rem .3rem; font-size: .85rem; }
pre { padding: .7rem; overflow-x: auto; }
"""


def write_report(run: Run, tables: Mapping[str, Table] | None = None) -> Path:
    """Write report.html from what the run directory holds, and ``tables`` by title; an unfinished run says so."""
    config, claims = run.config, run.claims
    question, found = config.get("question", ""), _sentences([claim["sentence"] for claim in claims])
    title = question or f"{config['kind']} ({config['id'][:8]})"
    if config["kind"] == "study":
        title, found = f"{config['study']} ({config['preset']})", _found(claims)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="question">{escape(question)}</p>' if question != title else "",
        f'<p class="muted">{escape(config.get("source", ""))}</p>',
        found if claims else "<p>This run has not finished: continue it with --resume.</p>",
        _deviations(config.get("deviations", [])),
        *(_figure(run, name, caption, claims) for name, caption in run.captions.items()),
        _others([claim for claim in claims if claim.get("figure", "") not in run.captions]),
        *(f"<h2>{escape(title)}</h2>{table._repr_html_()}" for title, table in (tables or {}).items()),
        "<h2>How it was made</h2>",
        f"<pre>{escape(config.get('command', ''))}</pre>",
        _made(run),
        _data(run),
        f"<details><summary>Configuration</summary><pre>{escape(json.dumps(config, indent=2))}</pre></details>",
    ]
    html = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - mesascope</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_CSS}</style></head>\n<body>'
        + "\n".join(parts)
        + "</body></html>\n"
    )
    return run.write_report(html)


def _found(claims: Sequence[Mapping[str, Any]]) -> str:
    counts = f"{len(claims)} claims, premises included: {counts_text(claims)}. Intervals are at 99.9 %."
    sentences = [sentence[0].upper() + sentence[1:] for sentence in found_text(claims)]
    return f'{_sentences(sentences)}<p class="muted">{escape(counts)}</p>'


def _sentences(sentences: Sequence[str]) -> str:
    return f'<div class="found">{"".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)}</div>'


def _deviations(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="muted">What differs from the paper:<ul>{items}</ul></div>' if sentences else ""


def _claims_table(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return ""
    rows = []
    for claim in claims:
        over, verdict = escape(f"{claim['n']} {claim['over']}"), escape(claim["verdict"])
        rows.append(
            f"<tr><td><b>{escape(claim['id'])}</b>: {escape(claim['sentence'])}<br>"
            f"<span class='muted'>{escape(claim['source'])}</span></td>"
            f"<td>{escape(measured_text(claim))}<br>{interval_svg(claim)}<br>"
            f"<span class='muted'>{escape(claim['measures'])}; {over}</span></td>"
            f'<td class="number">{escape(bound_text(claim))}</td><td>{escape(claim["reported"] or "")}</td>'
            f'<td class="verdict {verdict}">{verdict}'
            f"<br><span class='muted reason'>{escape(claim['reason'])}</span></td></tr>"
        )
    head = "<tr><th>claim</th><th>measured</th><th>bound (set by)</th><th>reported</th><th>verdict</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _others(claims: Sequence[Mapping[str, Any]]) -> str:
    return f"<h2>Premises, and claims that no figure shows</h2>{_claims_table(claims)}" if claims else ""


def _figure(run: Run, name: str, caption: str, claims: Sequence[Mapping[str, Any]]) -> str:
    """A figure, and the claims that it shows."""
    encoded = base64.b64encode(run.figure_svg(name).encode()).decode()  # as an image, whose scripts no browser runs
    image = f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{encoded}">'
    shown = _claims_table([claim for claim in claims if claim.get("figure") == name])
    title = escape(name.replace("-", " ").capitalize())
    return f"<h2>{title}</h2><figure>{image}<figcaption>{escape(caption)}</figcaption></figure>{shown}"


def _made(run: Run) -> str:
    rows = "".join(f'<tr><td>{escape(s)}</td><td class="number">{t:.1f} s</td></tr>' for s, t in run.times.items())
    total = sum(run.times.values())
    return f"<details><summary>{total:.0f} s of trainings and measurements</summary><table>{rows}</table></details>"


def _data(run: Run) -> str:
    links = []
    for name in run.results:
        encoded, shown = base64.b64encode(run.results.content(name)).decode(), escape(name)
        links.append(f'<a download="{shown}.npz" href="data:application/octet-stream;base64,{encoded}">{shown}</a>')
    return f"<details><summary>The arrays behind claims and figures (.npz)</summary>{', '.join(links)}</details>"
