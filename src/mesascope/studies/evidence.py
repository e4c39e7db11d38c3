"""From arrays of numbers to the one Measurement that a claim is judged by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mesascope.measurement import Measurement

__all__ = ["arrays_of", "largest", "smallest"]


def arrays_of(measurements: Sequence[Measurement]) -> dict[str, np.ndarray]:
    """Measurements, one a seed say, as the arrays ``value``, ``stderr`` and ``n``."""
    return {key: np.array([getattr(m, key) for m in measurements]) for key in ("value", "stderr", "n")}


def largest(value: np.ndarray, stderr: np.ndarray | float = 0.0, n: np.ndarray | int = 0) -> Measurement:
    """The largest of several values, with its own standard error; nan if any is nan."""
    return _at(int(np.argmax(np.where(np.isnan(value), np.inf, value))), value, stderr, n)


def smallest(value: np.ndarray, stderr: np.ndarray | float = 0.0, n: np.ndarray | int = 0) -> Measurement:
    """The smallest of several values, with its own standard error; nan if any is nan."""
    return _at(int(np.argmin(np.where(np.isnan(value), -np.inf, value))), value, stderr, n)


def _at(index: int, value: np.ndarray, stderr: np.ndarray | float, n: np.ndarray | int) -> Measurement:
    stderrs, counts = (np.broadcast_to(part, np.shape(value)).ravel()[index] for part in (stderr, n))
    return Measurement(float(np.ravel(value)[index]), float(stderrs), int(counts))
