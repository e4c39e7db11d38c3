"""One self-contained report.html from a run directory; opens from disk, offline. Imports no torch."""

from __future__ import annotations

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

from mesascope.reports.tables import measured_text
from mesascope.runs import RunDirectory

__all__ = ["write_report"]

_CSS = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1f; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.question { font-size: 1.1rem; margin-top: 0; } .muted { color: #666; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; white-space: nowrap; } .holds { color: #1a7f37; } .fails { color: #c0232c; }
.undecided { color: #9a6700; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption { font-size: .85rem; color: #666; }
code, pre { background: #f4f4f6; border-radius: 4px; padding: .1rem .3rem; font-size: .85rem; }
pre { padding: .7rem; overflow-x: auto; }
"""


def write_report(run: RunDirectory) -> Path:
    """Write report.html from what the run directory holds; an unfinished run says so."""
    config, claims = run.config, run.claims()
    title = f"{config['study']} ({config['preset']})"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="question">{escape(config.get("question", ""))}</p>',
        f'<p class="muted">{escape(config.get("source", ""))}</p>',
        _verdicts(claims),
        "<h2>Claims</h2>",
        _claims_table(claims) if claims else "<p>This run has not finished: continue it with --resume.</p>",
        "<h2>Figures</h2>",
        *(_figure(run, name, caption) for name, caption in run.captions().items()),
        "<h2>How it was made</h2>",
        f"<pre>{escape(config.get('command', ''))}</pre>",
        _made(run),
        f"<details><summary>Configuration</summary><pre>{escape(json.dumps(config, indent=2))}</pre></details>",
    ]
    html = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - mesascope</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_CSS}</style></head>\n<body>'
        + "\n".join(parts)
        + "</body></html>\n"
    )
    return run.write_report(html)


def _verdicts(claims: list[dict[str, Any]] | None) -> str:
    counts = {
        verdict: sum(c["verdict"] == verdict for c in claims or []) for verdict in ("holds", "fails", "undecided")
    }
    said = [f'<span class="{verdict}">{count} {verdict}</span>' for verdict, count in counts.items() if count]
    return f"<p>Of {len(claims)} claims: {', '.join(said)}.</p>" if claims else ""


def _claims_table(claims: list[dict[str, Any]]) -> str:
    rows = []
    for claim in claims:
        reference = "" if claim["reference"] is None else f"{claim['reference']:g}"
        rows.append(
            f"<tr><td>{escape(claim['statement'])}<br><span class='muted'>{escape(claim['source'])}</span></td>"
            f'<td class="number">{escape(measured_text(claim))}</td><td class="number">{escape(claim["bound"])}</td>'
            f'<td class="number">{reference}</td><td class="verdict {claim["verdict"]}">{claim["verdict"]}</td></tr>'
        )
    head = "<tr><th>claim</th><th>measured</th><th>bound</th><th>paper</th><th>verdict</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _figure(run: RunDirectory, name: str, caption: str) -> str:
    svg = run.figure_svg(name)
    drawing = svg[svg.index("<svg") :]
    data = run.path / "results" / f"{name}.npz"
    link = ""
    if data.exists():
        encoded = base64.b64encode(data.read_bytes()).decode()
        link = f' <a download="{name}.npz" href="data:application/octet-stream;base64,{encoded}">data (.npz)</a>'
    return f"<figure>{drawing}<figcaption>{escape(caption)}{link}</figcaption></figure>"


def _made(run: RunDirectory) -> str:
    times = run.times()
    seconds = sum(times.values())
    rows = "".join(f'<tr><td>{escape(stage)}</td><td class="number">{t:.1f} s</td></tr>' for stage, t in times.items())
    return f"<details><summary>{seconds:.0f} s of trainings and measurements</summary><table>{rows}</table></details>"
