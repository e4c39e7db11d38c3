"""Findings of a study as a few sentences and small plots, from the records of its claims."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mesascope.reports.tables import counts_text, holding_text
from mesascope.text import counted

_COLOURS = {"holds": "#1a7f37", "fails": "#c0232c", "undecided": "#9a6700"}
_WIDTH, _HEIGHT, _EDGE = 150, 22, 8


def found_text(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences that state how many findings hold, which do not, and if their premises hold."""
    names = {name for claim in claims for name in claim["premises"]}
    findings = [claim for claim in claims if claim["id"] not in names]
    premises = [claim for claim in claims if claim["id"] in names]
    failed, open_ = ([one for one in findings if one["verdict"] == verdict] for verdict in ("fails", "undecided"))
    sentences = [f"Of {counted(len(findings), 'finding')} {counts_text(findings)} ({holding_text(claims)})."]
    sentences += [f"Fails: {_named([claim])}." for claim in failed]
    if open_:
        sentences.append(f"Undecided, until there are more seeds or tasks: {', '.join(one['id'] for one in open_)}.")
    if broken := [claim for claim in premises if claim["verdict"] != "holds"]:
        sentences.append(
            f"Of {counted(len(premises), 'premise')} {counts_text(premises)}, so that findings which rest on "
            f"{'it' if len(broken) == 1 else 'them'} are undecided: {_named(broken)}."
        )
    elif premises:
        sentences.append("Its premise holds." if len(premises) == 1 else f"All {len(premises)} premises hold.")
    if paper := [claim for claim in failed if not claim["source"].startswith(("ours", "derived"))]:
        sentences.append(f"{counted(len(paper), 'claim')} of the paper {'fails' if len(paper) == 1 else 'fail'} here.")
    return sentences


def reported_outside(claim: Mapping[str, Any]) -> bool:
    """True if a value that the paper reports lies outside a bound that we set."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", (claim["reported"] or "").partition(" (")[0])
    low, high = (claim.get(name) for name in ("bound_low", "bound_high"))
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return claim["bound_by"] == "us" and not all(low <= float(number) <= high for number in numbers)


def interval_svg(claim: Mapping[str, Any]) -> str:
    """Inline SVG of a claim's interval; the range that its bound allows is shaded."""
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


def _named(claims: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{claim['sentence']} ({claim['id']})" for claim in claims)
