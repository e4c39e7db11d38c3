"""A measured number with its standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mesascope.shapes import Float, Tensor

__all__ = ["Measurement"]


@dataclass(frozen=True)
class Measurement:
    """A mean over ``n`` independent tasks, with its standard error.

    >>> f"{Measurement(0.41250, 0.00080, 100_000)}"
    '0.4125 ± 0.00080'
    """

    value: float
    stderr: float
    n: int

    @classmethod
    def of(cls, samples: Float[Tensor, " n"]) -> Measurement:
        """Mean of one number a task; stderr = sample standard deviation / sqrt(n), nan for n = 1."""
        samples = samples.double()
        n = samples.numel()
        stderr = float(samples.std()) / math.sqrt(n) if n > 1 else math.nan
        return cls(float(samples.mean()), stderr, n)

    @classmethod
    def ratio(cls, above: Float[Tensor, " n"], below: Float[Tensor, " n"]) -> Measurement:
        """Ratio of two means over the same tasks; stderr by the delta method, so that what they share cancels."""
        above, below = above.double(), below.double()
        value = float(above.mean() / below.mean())
        spread = cls.of(above - value * below)
        return cls(value, spread.stderr / abs(float(below.mean())), spread.n)

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec or '.4g'}} ± {self.stderr:.2g}" if spec else f"{self.value:.4g} ± {self._error()}"

    def _error(self) -> str:
        """The standard error to two significant digits."""
        if not math.isfinite(self.stderr) or self.stderr == 0:
            return f"{self.stderr:g}"
        return f"{self.stderr:.{max(0, 1 - math.floor(math.log10(self.stderr)))}f}"
