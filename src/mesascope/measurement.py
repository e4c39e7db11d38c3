"""A measured number with its standard error."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from mesascope.errors import refuse, require_instance
from mesascope.evidence.tables import Table, Tabular
from mesascope.shapes import Float, Tensor
from mesascope.text import number_text, printable

__all__ = ["Measurement"]


@dataclass(frozen=True, repr=False)
class Measurement(Tabular):
    """A mean over ``n`` independent tasks, or a ratio of two such means, with its standard error.

    >>> print(Measurement(0.41250, 0.0008, 100_000), Measurement(2.193e8, 1.3e8, 100), sep="; ")
    0.41250 ± 0.0008; 2.2e+08 ± 1e+08
    """

    value: float
    stderr: float
    n: int

    @classmethod
    def of(cls, samples: Float[Tensor, " n"]) -> Measurement:
        """Mean of one number per task; stderr = sample standard deviation / sqrt(n), nan for n = 1."""
        samples = _samples(samples)
        n = samples.numel()
        stderr = float(samples.std()) / math.sqrt(n) if n > 1 else math.nan
        return cls(float(samples.mean()), stderr, n)

    @classmethod
    def ratio(cls, above: Float[Tensor, " n"], below: Float[Tensor, " n"]) -> Measurement:
        """Ratio of two means over the same tasks; stderr by the delta method, which accounts for correlation."""
        above, below = _samples(above), _samples(below)
        if above.shape != below.shape:
            refuse("below", f"have shape {tuple(above.shape)}", tuple(below.shape), "pass both over the same tasks")
        if not below.mean():
            refuse("the mean of below", "differ from 0", 0.0, "report the difference of the two")
        value = float(above.mean() / below.mean())
        spread = cls.of(above - value * below)
        return cls(value, spread.stderr / abs(float(below.mean())), spread.n)

    def table(self) -> Table:
        return Table([dataclasses.asdict(self)])

    def __str__(self) -> str:
        text = number_text(self.value, self.stderr)
        return printable(f"{text} ± unknown" if math.isnan(self.stderr) else text)

    def __repr__(self) -> str:
        return f"Measurement({self}, n={self.n})"


def _samples(samples: object) -> Float[Tensor, " n"]:
    require_instance("samples", samples, Tensor)
    assert isinstance(samples, Tensor)
    if not samples.numel():
        refuse("samples", "have at least one number", tuple(samples.shape), "measure some tasks")
    return samples.double()
