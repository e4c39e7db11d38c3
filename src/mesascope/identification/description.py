"""Sentences about a learner's behaviour."""

from __future__ import annotations

from mesascope.identification.behaviour import Behaviour
from mesascope.measurement import Measurement
from mesascope.text import percent_text

# Descriptions mention copied labels and the spectral filter if their share or R^2 exceeds this value.
_MOST = 0.9
# Minimum ratio of a pair's weight to the average weight, for a description to name the pair.
_HEAVY = 2.0
# Relative difference below which two shares are equal, so that neither pair has the most weight.
_EQUAL = 1e-3
_RANKS = {0: "nearest pair", 1: "second nearest pair", 2: "third nearest pair"}
# Minimum distance of a measurement from a bound, in standard errors.
_ERRORS = 3.0
# With a bound above this one, which much noise causes, no property is said to hold.
_LOOSE = 0.1


def described(own: Behaviour, tolerance: float, noisy: bool = False) -> str:
    """Describe linearity in labels, weights of pairs, spectral filter and invariances, if measured.

    Args:
        tolerance: squared difference, relative to the variance of predictions, below which a property holds.
        noisy: answers differ between calls, so that a property is denied only beyond the error of its measurement.
    """
    errors = _ERRORS if noisy else 0.0
    parts = [_label_phrase(own, tolerance, errors), _weight_phrase(own), _filter_phrase(own, tolerance)]
    said = ", ".join(part for part in parts if part)
    return " ".join(part for part in (f"It {said}." if said else "", _change_phrase(own, tolerance, errors)) if part)


def _label_phrase(own: Behaviour, tolerance: float, errors: float) -> str:
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
    if not _above(own.superposition, tolerance, errors):  # not measured well enough
        return ""
    return f"is not linear in labels ({percent_text(own.superposition.value)} of the variance of its predictions)"


def _weight_phrase(own: Behaviour) -> str:
    """Phrase about the pair with the most weight, by distance and by position, if this is far above the average."""
    found = []
    places = {0: "first pair", len(own.positions) - 1: "last pair"}
    for shares, names, other in ((own.ranks, _RANKS, "pair {} by distance"), (own.positions, places, "pair {}")):
        index = max(range(len(shares)), key=lambda one: shares[one].value, default=-1)
        alike = index >= 0 and sum(one.value > (1 - _EQUAL) * shares[index].value for one in shares) > 1
        if index >= 0 and not alike and shares[index].value - _ERRORS * shares[index].stderr > _HEAVY / len(shares):
            pair = f"the {names[index]}" if index in names else other.format(index + 1)
            found.append(f"gives {percent_text(shares[index].value)} of its weight to {pair} of {len(shares)}")
    return ", ".join(found)


def _filter_phrase(own: Behaviour, tolerance: float) -> str:
    linear = own.superposition is not None and _below(own.superposition, tolerance)
    if not linear or own.filtered is None or own.filtered.value < _MOST:
        return ""
    return f"weighs pairs by a spectral filter ({percent_text(own.filtered.value)} of its weights)"


def _change_phrase(own: Behaviour, tolerance: float, errors: float) -> str:
    kept = [name for name, one in own.invariances.items() if _below(one, tolerance)]
    broken = {name: one.value for name, one in own.invariances.items() if _above(one, tolerance, errors)}
    lost = ", ".join(f"{name} ({percent_text(value)})" for name, value in broken.items())
    respected = f"It respects these changes of a task: {', '.join(kept)}." if kept else ""
    return f"{respected} It does not respect these changes: {lost}.".strip() if lost else respected


def _below(one: Measurement, bound: float) -> bool:
    return bound < _LOOSE and one.value + _ERRORS * one.stderr < bound


def _above(one: Measurement, bound: float, errors: float) -> bool:
    return one.value - errors * one.stderr > bound
