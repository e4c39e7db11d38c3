"""What a study found, in three sentences and small plots, from the records of its claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["found_text", "interval_svg"]

_COLOURS = {"holds": "#1a7f37", "fails": "#c0232c", "undecided": "#9a6700"}
_IS = {"fails": "fails", "undecided": "is undecided"}
_WIDTH, _HEIGHT, _EDGE = 150, 22, 8


def found_text(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """Three sentences: what holds, what fails, and what to make of it; premises are left out of the first two."""
    premises = {name for claim in claims for name in claim["premises"]}
    findings = [claim for claim in claims if claim["id"] not in premises]
    held, failed, open_ = (_with(findings, verdict) for verdict in ("holds", "fails", "undecided"))
    sentences = [
        f"{len(held)} of {len(findings)} findings hold" + (f", first that {held[0]['sentence']}." if held else "."),
        f"{len(failed)} fail: {'; '.join(_named(claim) for claim in failed)}." if failed else "None fails.",
    ]
    broken = [claim for claim in claims if claim["id"] in premises and claim["verdict"] != "holds"]
    if broken:
        named = "; ".join(f"{claim['sentence']} ({claim['id']} {_IS[claim['verdict']]})" for claim in broken)
        return [*sentences, f"What rests on a premise that does not hold is undecided: {named}."]
    paper = [claim for claim in failed if not claim["source"].startswith(("ours", "derived"))]
    if paper:
        return [*sentences, f"Every premise holds, so {_count(paper)} of the paper does not stand here as it is put."]
    rest = f", and {len(open_)} need more seeds or tasks to decide" if open_ else ""
    return [*sentences, f"Every premise holds, and no sentence of the paper fails{rest}."]


def interval_svg(claim: Mapping[str, Any]) -> str:
    """The interval of a claim against its bound, as inline SVG: shaded is what the bound allows."""
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


def _with(claims: Sequence[Mapping[str, Any]], verdict: str) -> list[Mapping[str, Any]]:
    return [claim for claim in claims if claim["verdict"] == verdict]


def _named(claim: Mapping[str, Any]) -> str:
    return f"{claim['sentence']} ({claim['id']})"


def _count(claims: Sequence[Mapping[str, Any]]) -> str:
    return "one sentence" if len(claims) == 1 else f"{len(claims)} sentences"
