"""Claims: checkable sentences of the seeds, and the verdicts that measurements give them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mesascope.errors import ArgumentError

__all__ = ["Bound", "Claim", "Measured", "judge"]


@runtime_checkable
class Measured(Protocol):
    """What a claim is judged by; `mesascope.measurement.Measurement` is one."""

    @property
    def value(self) -> float: ...
    @property
    def stderr(self) -> float: ...
    @property
    def n(self) -> int: ...


@dataclass(frozen=True)
class Bound:
    """The values that a claim allows: from ``low`` to ``high``."""

    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if not self.low < self.high or (math.isinf(self.low) and math.isinf(self.high)):
            raise ArgumentError(f"a bound must exclude something, but is [{self.low}, {self.high}]: set low or high.")

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"< {self.high:g}"
        if math.isinf(self.high):
            return f"> {self.low:g}"
        return f"in [{self.low:g}, {self.high:g}]"

    def verdict(self, value: float, stderr: float) -> str:
        """``holds`` or ``fails`` where the bound is more than two standard errors away, else ``undecided``.

        A value that is not finite fails; a standard error that is not (one sample) counts as zero.

        >>> Bound(high=1.0).verdict(0.5, 0.1), Bound(high=1.0).verdict(0.9, 0.1), Bound(high=1.0).verdict(1.3, 0.1)
        ('holds', 'undecided', 'fails')
        """
        if not math.isfinite(value):
            return "fails"
        margin = min(value - self.low, self.high - value)
        doubt = 2 * stderr if math.isfinite(stderr) else 0.0
        if abs(margin) <= doubt:
            return "undecided"
        return "holds" if margin > 0 else "fails"


@dataclass(frozen=True)
class Claim:
    """One checkable sentence.

    Args:
        id: unique within its study.
        statement: what is claimed of ``value``, with its unit.
        source: seed and figure.
        bounds: the bound of each preset.
        reference: the seed's own value, where it gives one.
    """

    id: str
    statement: str
    source: str
    bounds: Mapping[str, Bound]
    reference: float | None = None


def judge(claim: Claim, preset: str, measured: Measured) -> dict[str, Any]:
    """The claim's record for claims.json: what was measured, and the verdict."""
    bound = claim.bounds[preset]
    return {
        "id": claim.id,
        "statement": claim.statement,
        "source": claim.source,
        "value": _finite(measured.value),
        "stderr": _finite(measured.stderr),
        "n": measured.n,
        "reference": claim.reference,
        "bound": str(bound),
        "verdict": bound.verdict(measured.value, measured.stderr),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
