"""From arrays of numbers to the one Measurement that a claim is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mesascope.measurement import Measurement
from mesascope.runs import Bound

__all__ = ["arrays_of", "both", "excess_percent", "largest", "ratio_distance", "smallest"]


def both(bound: Bound) -> dict[str, Bound]:
    """One bound for both presets."""
    return {"quick": bound, "paper": bound}


def arrays_of(measurements: Sequence[Measurement]) -> dict[str, np.ndarray]:
    """Measurements, one a seed say, as the arrays ``value``, ``stderr`` and ``n``."""
    return {key: np.array([getattr(m, key) for m in measurements]) for key in ("value", "stderr", "n")}


def largest(value: np.ndarray, stderr: np.ndarray | float = 0.0, n: np.ndarray | int = 0) -> Measurement:
    """The largest of several values, with its own standard error; nan if any is nan."""
    return _at(int(np.argmax(np.where(np.isnan(value), np.inf, value))), value, stderr, n)


def smallest(value: np.ndarray, stderr: np.ndarray | float = 0.0, n: np.ndarray | int = 0) -> Measurement:
    """The smallest of several values, with its own standard error; nan if any is nan."""
    return _at(int(np.argmin(np.where(np.isnan(value), -np.inf, value))), value, stderr, n)


def excess_percent(arrays: Mapping[str, np.ndarray], name: str, *, sign: int = 1) -> Measurement:
    """100 (ratio - 1) of the worst network, from ``<name>_value``, ``_stderr`` and ``_n``; ``sign`` -1 turns it over.

    ``sign`` 0 takes the distance from 1.
    """
    excess = 100 * (arrays[f"{name}_value"] - 1)
    return largest(sign * excess if sign else np.abs(excess), 100 * arrays[f"{name}_stderr"], arrays[f"{name}_n"])


def ratio_distance(swept: Mapping[str, np.ndarray], name: str, chosen: np.ndarray | None = None) -> Measurement:
    """The distance from 1 of the ratio ``<name>_ratio`` farthest from it, where the reference's own loss is finite."""
    kept = np.isfinite(swept[name]) if chosen is None else np.isfinite(swept[name]) & chosen
    distance = np.abs(swept[f"{name}_ratio"] - 1)[:, kept]
    return largest(distance, swept[f"{name}_ratio_stderr"][:, kept], int(swept["tasks"]))


def _at(index: int, value: np.ndarray, stderr: np.ndarray | float, n: np.ndarray | int) -> Measurement:
    stderrs, counts = (np.broadcast_to(part, np.shape(value)).ravel()[index] for part in (stderr, n))
    return Measurement(float(np.ravel(value)[index]), float(stderrs), int(counts))
