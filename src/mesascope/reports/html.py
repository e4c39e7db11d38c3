"""One self-contained report.html from a run directory; opens from disk, offline. Imports no torch."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mesascope.evidence.tables import Table
from mesascope.evidence.verdicts import measured_text
from mesascope.records import flat
from mesascope.reports.tables import counts_text, holding_text, over_text, reason_text
from mesascope.runs import Run
from mesascope.text import counted

_CSS = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --muted: #666; --line: #ddd; --code: #f4f4f6;
  --holds: #1a7f37; --fails: #c0232c; --undecided: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e8; --paper: #1b1b1f; --muted: #a2a2aa; --line: #44444c;
  --code: #2a2a30; --holds: #4ac26b; --fails: #ff7b72; --undecided: #d4a72c; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.found { border-left: 4px solid #4a6fa5; padding-left: 1rem; } .found p { margin: .4rem 0; }
.question { font-size: 1.1rem; margin-top: 0; } .muted { color: var(--muted); }
.wide { overflow-x: auto; } .settings { display: flex; flex-wrap: wrap; gap: 0 3rem; align-items: flex-start; }
.result td:first-child { white-space: nowrap; } .settings td, .settings th { padding: .1rem .6rem; }
table { border-collapse: collapse; font-size: .9rem; } .claims { width: 100%; }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.claims td:first-child { min-width: 16rem; }
.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; } .reason { font-weight: 400; font-size: .8rem; }
.holds { color: var(--holds); } .fails { color: var(--fails); } .undecided { color: var(--undecided); }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; background: #fff; }
figcaption { font-size: .85rem; color: var(--muted); }
.claims svg { background: #fff; border-radius: 3px; }
code, pre { background: var(--code); border-radius: 4px; padding: .1rem .3rem; font-size: .85rem; }
pre { padding: .7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
dt { font-weight: 600; float: left; clear: left; margin-right: .5rem; } dd { margin: 0 0 .3rem; }
@media print { body { max-width: none; margin: 0; font-size: 11px; } .data { display: none; }
  figure, tr, dd { break-inside: avoid; } h2 { break-after: avoid; } .wide { overflow: visible; } }
"""
# Bytes of the largest file of arrays that a page contains; it names larger ones.
_LARGEST = 1_000_000
# Names of each term, and its meaning. A text uses a term if it contains one of its names, singular or plural.
_TERMS = """
claim: a sentence that can be false, judged from the arrays of this run
finding: a claim that is not a premise
premise: a claim that others rest on; if it does not hold, they are undecided
holds, fails, undecided: the interval lies inside the bound, outside it, or across an end of it; a claim is also \
undecided if its premise does not hold or if it has too few replicates
measured: a value, and an interval that contains the true value in 99 % of cases (99.9 % for claims on each network \
and for bootstraps)
seed: a number that fixes all random draws of one network: its initial weights and its training tasks
bound: the range that the interval must lie in, shaded in the drawing; "set by us" means that we chose it for the \
settings of this run, "set by paper" that the paper prints it
reported: a value from the paper or its authors' code, measured with their settings; it is shown beside ours and not \
judged, so it may lie outside a bound that we set
learner: anything that predicts the targets of queries from a context: a network, an algorithm, an estimator
context, query: the pairs (x, y) from which a learner learns a task, and an input whose target it predicts
N = d: as many pairs in a context as an input has numbers
construction, constructed: a network whose weights are written down so that it runs a given algorithm
sensitivity, sensitivities, dy/dx_q: the derivative of a prediction with respect to its query
W_KQ, W_PV: the products W_K^T W_Q and P W_V of an attention head's weights; its output depends on these alone
gradient descent, GD: gradient descent on the squared error over the context
GD++: gradient descent whose steps also multiply the inputs by I - gamma X X^T, so that the next step converges faster
eta: the step size of gradient descent
gamma: the strength with which GD++ changes the inputs
damping: a factor that multiplies each step
ridge: least squares with a penalty on squared weights; also the factor of that penalty
softmax, linear layer: attention whose weights are a softmax of products of keys and queries, or the products themselves
delta: a layer of linear attention that first removes what it has stored for a key, then writes (DeltaNet)
mesa: a layer of attention that solves a least-squares problem over all earlier tokens at each token
nats: a unit of cross-entropy, in natural logarithms
MAML: meta-learning of initial weights from which a few gradient steps learn a new task
sparse-MAML: MAML that also learns which weights those steps may change
candidate: a known algorithm whose predictions are compared with the learner's
condition: one way to draw or distort the tasks on which a learner and candidates are compared
tolerance: the largest squared difference of predictions, relative to their variance, that counts as an approximation
"""
# Colours of verdicts in the drawings of intervals, and their size.
_COLOURS = {"holds": "#1a7f37", "fails": "#c0232c", "undecided": "#9a6700"}
_WIDTH, _HEIGHT, _EDGE = 150, 22, 8
# Fields of a config that the page shows elsewhere, or that only programs use.
_APART = {"schema", "settings", "question", "source", "deviations", "hash", "kind", "study", "preset", "command"}


def write_report(
    run: Run, tables: Mapping[str, Table] | None = None, method: str = "", found: Sequence[str] = ()
) -> Path:
    """Write report.html from the files of a run, with further ``tables`` by title.

    Args:
        method: tasks and networks of a study, in one or two sentences.
        found: first sentences of the page. If empty, a summary of the claims, or a note that the run is not finished.
    """
    config, claims = run.config, run.claims
    question = config.get("question", "")
    title = question or f"{config['kind']} ({config['id'][:8]})"
    if config["kind"] == "study":
        title = f"{config['study']} ({config['preset']})"
    others = _claims_table([claim for claim in claims if claim.get("figure", "") not in run.captions])
    body = "\n".join([
        f"<h1>{escape(title)}</h1>",
        f'<p class="question">{escape(question)}</p>' if question != title else "",
        f'<p class="muted">{escape(config.get("source", ""))}</p>',
        f"<p>{escape(method)}</p>" if method else "",
        _sentences(found) or _found(claims) or _unfinished(run),
        _deviations(config.get("deviations", [])),
        *(_figure(run, name, caption, claims) for name, caption in run.captions.items()),
        f"<h2>Premises, and claims that no figure shows</h2>{others}" if others else "",
        *(f"<h2>{escape(title)}</h2>{_result(table)}" for title, table in (tables or {}).items()),
        _settings(config["settings"]),
        "<h2>How it was made</h2>",
        f"<pre>{escape(config.get('command', ''))}</pre>",
        _rows(flat({name: value for name, value in config.items() if name not in _APART}).items()),
        _made(run),
        _data(run),
    ])  # fmt: skip
    body = body.replace("<h2>How it was made</h2>", f"{_glossary(body)}<h2>How it was made</h2>", 1)
    return run.write_report(_page(title, body))


def _unfinished(run: Run) -> str:
    """A note for a run that has not finished."""
    again = {"study": "continue it with --resume", "training": "continue it with --resume",
             "sweep": "continue its sweep with --resume"}  # fmt: skip
    remedy = again.get(run.config["kind"], "begin it again")
    return "" if run.is_finished else f"<p>This run has not finished: {remedy}.</p>"


def claims_page(title: str, claims: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Page of judged claims without a run, in a section for each name."""
    tables = (f"<h2>{escape(name)}</h2>{_claims_table(own)}" for name, own in claims.items())
    found = _found([claim for own in claims.values() for claim in own]) or "<p>No claim was judged.</p>"
    body = "\n".join([f"<h1>{escape(title)}</h1>", found, *tables])
    return _page(title, body + _glossary(body))


def figures_page(title: str, found: Sequence[str], figures: Mapping[str, bytes], tables: Mapping[str, Table]) -> str:
    """Page with sentences, SVG figures by caption, and tables by title."""
    shown = (figure_html(name, svg, name) for name, svg in figures.items())
    named = (
        f"<h2>{escape(name)}</h2><div class='wide result'>{table.to_html()}</div>" for name, table in tables.items()
    )
    body = "\n".join([f"<h1>{escape(title)}</h1>", _sentences(found), *shown, *named])
    return _page(title, body + _glossary(body))


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - mesascope</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_CSS}</style></head>\n<body>'
        f"{body}</body></html>\n"
    )


def _found(claims: Sequence[Mapping[str, Any]]) -> str:
    level = "99 % (99.9 % for each network and for bootstraps)"
    count = f"{counted(len(claims), 'claim')}, premises included; intervals are at {level}."
    return f'{_sentences(found_text(claims))}<p class="muted">{count}</p>' if claims else ""


def found_text(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences that state how many findings hold, which do not, and whether premises hold."""
    names = {name for claim in claims for name in claim["premises"]}
    findings = [claim for claim in claims if claim["id"] not in names]
    premises = [claim for claim in claims if claim["id"] in names]
    failed, open_ = ([one for one in findings if one["verdict"] == verdict] for verdict in ("fails", "undecided"))
    sentences = [f"Of {counted(len(findings), 'finding')} {counts_text(findings)} ({holding_text(claims)})."]
    sentences += [f"Fails: {_with_ids([claim])}." for claim in failed]
    if open_:
        sentences.append(f"Undecided, for the reasons beside them: {', '.join(one['id'] for one in open_)}.")
    if broken := [claim for claim in premises if claim["verdict"] != "holds"]:
        sentences.append(
            f"Of {counted(len(premises), 'premise')} {counts_text(premises)}, so that findings which rest on "
            f"{'it' if len(broken) == 1 else 'them'} are undecided: {_with_ids(broken)}."
        )
    elif premises:
        sentences.append("Its premise holds." if len(premises) == 1 else f"All {len(premises)} premises hold.")
    if paper := [claim for claim in failed if not claim["source"].startswith(("ours", "derived"))]:
        sentences.append(f"{counted(len(paper), 'claim')} of the paper {'fails' if len(paper) == 1 else 'fail'} here.")
    return sentences


def reported_outside(claim: Mapping[str, Any]) -> bool:
    """True if a value that the paper reports lies outside a bound that we set."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", (claim["reported"] or "").partition(" (")[0])
    low, high = (claim.get(name) for name in ("bound_low", "bound_high"))
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return claim["bound_by"] == "us" and not all(low <= float(number) <= high for number in numbers)


def interval_svg(claim: Mapping[str, Any]) -> str:
    """Inline SVG of a claim's interval; the range within its bound is shaded."""
    numbers = {name: claim.get(name) for name in ("value", "low", "high", "bound_low", "bound_high")}
    known = [number for number in numbers.values() if number is not None and math.isfinite(number)]
    if numbers["value"] is None:
        return ""
    low, high = min(known), max(known)
    margin = (high - low or abs(high) or 1.0) * 0.15

    def place(number: float | None, otherwise: float) -> float:
        if number is None or not math.isfinite(number):
            return otherwise
        share = (number - low + margin) / (high - low + 2 * margin)
        return _EDGE + share * (_WIDTH - 2 * _EDGE)

    left, right = place(numbers["bound_low"], 0), place(numbers["bound_high"], _WIDTH)
    start, end = place(numbers["low"], _EDGE), place(numbers["high"], _WIDTH - _EDGE)
    colour, middle = _COLOURS[claim["verdict"]], _HEIGHT / 2
    edges = "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="1" y2="{_HEIGHT - 1}" stroke="#777"/>'
        for x, name in ((left, "bound_low"), (right, "bound_high"))
        if numbers[name] is not None
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="interval against bound">'
        f'<rect x="{left:.1f}" y="1" width="{right - left:.1f}" height="{_HEIGHT - 2}" fill="#dfe8f1"/>{edges}'
        f'<line x1="{start:.1f}" x2="{end:.1f}" y1="{middle}" y2="{middle}" stroke="{colour}" stroke-width="2"/>'
        f'<circle cx="{place(numbers["value"], _WIDTH / 2):.1f}" cy="{middle}" r="3.5" fill="{colour}"/></svg>'
    )


def _with_ids(claims: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{claim['sentence']} ({claim['id']})" for claim in claims)


def _sentences(sentences: Sequence[str]) -> str:
    said = "".join(f"<p>{escape(one)}</p>" for one in sentences if one)
    return f'<div class="found">{said}</div>' if said else ""


def _deviations(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="muted">Differences of the preset from the paper:<ul>{items}</ul></div>' if sentences else ""


def _claims_table(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return ""
    rows = []
    for claim in claims:
        verdict, reported = escape(claim["verdict"]), escape(claim["reported"] or "")
        if reported_outside(claim):
            reported += '<br><a class="muted" href="#terms">outside our bound</a>'
        rows.append(
            f"<tr><td><b>{escape(claim['id'])}</b>: {escape(claim['sentence'])}<br>"
            f"<span class='muted'>{escape(claim['source'])}</span></td>"
            f"<td><span class='number'>{escape(measured_text(claim))}</span><br>{interval_svg(claim)}<br>"
            f"<span class='muted'>{escape(claim['measures'])}; {escape(over_text(claim))}</span></td>"
            f'<td class="number">{escape(claim["bound"])}<br><span class="muted">set by {escape(claim["bound_by"])}'
            f'</span></td><td>{reported}</td><td class="verdict {verdict}">{verdict}'
            f"<br><span class='muted reason'>{escape(reason_text(claim))}</span></td></tr>"
        )
    head = "<tr><th>claim</th><th>measured</th><th>bound</th><th>reported</th><th>verdict</th></tr>"
    return f'<div class="wide"><table class="claims">{head}{"".join(rows)}</table></div>'


def _result(table: Table) -> str:
    """Table that scrolls on narrow screens; no line break separates a number from its error."""
    return f'<div class="wide result">{table._repr_html_().replace(" ± ", "&nbsp;±&nbsp;")}</div>'


def _figure(run: Run, name: str, caption: str, claims: Sequence[Mapping[str, Any]]) -> str:
    """A figure, and the claims that it shows."""
    shown = _claims_table([claim for claim in claims if claim.get("figure") == name])
    title = escape(name.replace("-", " ").capitalize())
    return f"<h2>{title}</h2>{figure_html(name, run.figure_svg(name).encode(), caption)}{shown}"


def figure_html(name: str, svg: bytes, caption: str) -> str:
    """Figure element of an SVG figure; browsers run no scripts in its image."""
    encoded = base64.b64encode(svg).decode()
    image = f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{encoded}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _settings(settings: Any) -> str:
    """Settings as a table, and nested records as a second table with one column each."""
    if not isinstance(settings, Mapping) or not settings:
        return ""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in flat(settings).items():
        group, _, key = name.rpartition(".")
        groups.setdefault(group, {})[key] = value
    own = groups.pop("", {})
    keys = dict.fromkeys(key for group in groups.values() for key in group)
    head = "".join(f"<th>{escape(group)}</th>" for group in groups)
    rows = "".join(
        f"<tr><td>{escape(key)}</td>"
        + "".join(f'<td class="number">{_setting(one[key]) if key in one else ""}</td>' for one in groups.values())
        + "</tr>"
        for key in keys
    )
    inner = f"<table><tr><th></th>{head}</tr>{rows}</table>" if groups else ""
    return f'<h2>Settings</h2><div class="wide settings">{_rows(own.items())}{inner}</div>'


def _setting(value: Any) -> str:
    texts = value if isinstance(value, list) else [value]
    plain = {None: "none", True: "yes", False: "no"}
    shown = (
        plain[one] if one is None or isinstance(one, bool) else f"{one:,}" if isinstance(one, int) else str(one)
        for one in texts
    )  # fmt: skip
    return escape(", ".join(shown))


def _rows(rows: Iterable[tuple[str, Any]]) -> str:
    """A table of names and values."""
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{_setting(value)}</td></tr>" for name, value in rows)
    return f"<table>{lines}</table>" if lines else ""


def _glossary(body: str) -> str:
    terms = used_terms(re.sub(r"<[^>]*>", " ", body))
    items = "".join(f"<dt>{escape(term)}</dt><dd>{escape(explained)}</dd>" for term, explained in terms.items())
    return f'<h2 id="terms">Terms</h2><dl>{items}</dl>' if items else ""


def used_terms(text: str) -> dict[str, str]:
    """Terms in a text, with their explanations.

    >>> list(used_terms("2 claims fail, by 0.1 nats"))
    ['claim', 'nats']
    """
    terms = {names: explained for names, _, explained in (line.partition(": ") for line in _TERMS.strip().split("\n"))}

    def is_used(names: str) -> bool:
        found = "|".join(map(re.escape, names.split(", ")))
        return re.search(rf"(?<![\w-])(?:{found})s?(?![\w+-])", text, re.IGNORECASE) is not None

    return {names: explained for names, explained in terms.items() if is_used(names)}


def _made(run: Run) -> str:
    rows = _rows((stage, f"{seconds:.1f} s") for stage, seconds in run.times.items())
    total = sum(run.times.values())
    return f"<details><summary>{total:.0f} s of trainings and measurements</summary>{rows}</details>" if rows else ""


def _data(run: Run) -> str:
    links = []
    for name in run.results:
        content = run.results.content(name)
        large = f"{escape(name)} ({len(content) / 1e6:.1f} MB, in the run's folder results)"
        links.append(large if len(content) > _LARGEST else arrays_link(name, content))
    summary = "<summary>The arrays behind claims and figures (.npz)</summary>"
    return f'<details class="data">{summary}{", ".join(links)}</details>' if links else ""


def arrays_link(name: str, content: bytes) -> str:
    """Link that saves a stage's file, which the page contains."""
    encoded, shown = base64.b64encode(content).decode(), escape(name)
    return f'<a download="{shown}.npz" href="data:application/octet-stream;base64,{encoded}">{shown}</a>'
