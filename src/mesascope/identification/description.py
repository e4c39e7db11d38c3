"""Descriptions of a learner that equals no candidate."""

from __future__ import annotations

from mesascope.identification.behaviour import Behaviour
from mesascope.measurement import Measurement
from mesascope.text import percent_text

# Minimum share of copied labels, and minimum R^2 of a spectral filter, for a description to state these.
_MOST = 0.9
# Minimum ratio of a pair's weight to the average weight, for a description to name the pair.
_HEAVY = 2.0
_RANKS = {0: "nearest", 1: "second nearest", 2: "third nearest"}
# Number of standard errors by which a measurement must exceed a bound.
_ERRORS = 3.0


def described(own: Behaviour, tolerance: float) -> str:
    """Describe linearity in labels, weights of pairs, spectral filter and invariances, if measured.

    Args:
        tolerance: squared difference, relative to the variance of predictions, below which a property holds.
    """
    parts = [_labels(own, tolerance), _weights(own), _filter(own, tolerance)]
    said = ", ".join(part for part in parts if part)
    return " ".join(part for part in (f"It {said}." if said else "", _changes(own, tolerance)) if part)


def _labels(own: Behaviour, tolerance: float) -> str:
    if own.positions and not any(one.value for one in own.positions):
        return "does not depend on labels"
    if own.copies is not None and own.copies.value > 0:
        copied = f"repeats a label of its context in {percent_text(own.copies.value)} of its predictions"
        if own.copies.value > _MOST or own.superposition is None:
            return copied
    if own.superposition is None:
        return ""
    if _below(own.superposition, tolerance):
        return "is linear in labels"
    return f"is not linear in labels ({percent_text(own.superposition.value)} of the variance of its predictions)"


def _weights(own: Behaviour) -> str:
    """Phrase about the pair with the most weight, by position or distance, if this is far above the average."""
    found = []
    for shares, names in ((own.ranks, _RANKS), (own.positions, {0: "first", len(own.positions) - 1: "last"})):
        index = max(range(len(shares)), key=lambda one: shares[one].value, default=-1)
        if index >= 0 and shares[index].value - _ERRORS * shares[index].stderr > _HEAVY / len(shares):
            pair = f"the {names[index]} pair" if index in names else f"pair {index + 1}"
            found.append(f"gives {percent_text(shares[index].value)} of its weight to {pair} of {len(shares)}")
    return ", ".join(found)


def _filter(own: Behaviour, tolerance: float) -> str:
    linear = own.superposition is not None and _below(own.superposition, tolerance)
    if not linear or own.filtered is None or own.filtered.value < _MOST:
        return ""
    return f"weighs pairs by a spectral filter ({percent_text(own.filtered.value)} of its weights)"


def _changes(own: Behaviour, tolerance: float) -> str:
    kept = [name for name, one in own.invariances.items() if _below(one, tolerance)]
    broken = {name: one.value for name, one in own.invariances.items() if not _below(one, tolerance)}
    lost = ", ".join(f"{name} ({percent_text(value)})" for name, value in broken.items())
    parts = [f"respects {', '.join(kept)}" if kept else "", f"does not respect {lost}" if lost else ""]
    said = "; ".join(part for part in parts if part)
    return f"Of changes to a task it {said}." if said else ""


def _below(one: Measurement, bound: float) -> bool:
    return one.value + _ERRORS * one.stderr < bound
