"""Published numbers, read from docs/results with NumPy alone, and the table that sets a check beside them.

Nothing here imports mesascope or torch. The checks of this folder run by hand, one at a time.
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
DATA = Path(os.environ.get("MESASCOPE_DATA", "data"))
# Chance that a check fails although the numbers agree, shared by its rows.
ALPHA = 0.01


@dataclass
class Row:
    """A published number, the number of the check, and the standard error of their difference.

    Args:
        df: degrees of freedom of the standard error; infinite if many tasks give it.
    """

    name: str
    published: float
    independent: float
    error: float
    df: float = math.inf


def claim(study: str, name: str) -> dict:
    """One claim of a published run."""
    claims = json.loads((RESULTS / study / "claims.json").read_text())
    return next(one for one in claims if one["id"] == name)


def arrays(study: str, stage: str) -> dict[str, np.ndarray]:
    """Arrays of one stage of a published run."""
    with np.load(RESULTS / study / "results" / f"{stage}.npz") as found:
        return {name: found[name] for name in found.files}


class Estimates:
    """Means of a published stage with their joint covariance; several networks may share a name.

    Args:
        case: index of the stage's case, such as a time; None if it has one case only.
    """

    def __init__(self, study: str, stage: str, case: int | None = None) -> None:
        found = arrays(study, stage)
        self.names = [str(name) for name in found["names"]]
        at = () if case is None else case
        self.means, self.covariance = found["mean"][at], found["covariance"][at]

    def places(self, name: str) -> list[int]:
        """Places of all networks with this name."""
        return [place for place, one in enumerate(self.names) if one == name]

    def mean(self, name: str) -> tuple[float, float]:
        """Mean over the networks with this name, and its standard error over tasks."""
        at = self.places(name)
        return float(self.means[at].mean()), float(np.sqrt(self.covariance[np.ix_(at, at)].mean()))

    def difference(self, name: str, other: str) -> tuple[float, float]:
        """Mean of one name minus that of another, and its standard error over shared tasks."""
        weights = np.zeros(len(self.names))
        for sign, one in ((1, name), (-1, other)):
            weights[self.places(one)] += sign / len(self.places(one))
        return float(weights @ self.means), float(np.sqrt(weights @ self.covariance @ weights))

    def ratio(self, name: str, below: str, member: int | None = None) -> tuple[float, float]:
        """Mean of one name over that of another, and its standard error over shared tasks."""
        weights = np.zeros((2, len(self.names)))
        for row, one in enumerate((name, below)):
            at = self.places(one)
            chosen = at if member is None or len(at) == 1 else at[member : member + 1]
            weights[row, chosen] = 1 / len(chosen)
        over, under = weights @ self.means
        change = (weights[0] - over / under * weights[1]) / under
        return float(over / under), float(np.sqrt(change @ self.covariance @ change))


def mean(samples: np.ndarray) -> tuple[float, float]:
    """Mean over the first axis and its standard error."""
    return samples.mean(0), samples.std(0, ddof=1) / math.sqrt(len(samples))


def ratio(over: np.ndarray, under: np.ndarray) -> tuple[float, float]:
    """Ratio of two means over the same tasks and its standard error, by the delta method."""
    found = over.mean() / under.mean()
    return float(found), float((over - found * under).std(ddof=1) / math.sqrt(len(over)) / under.mean())


def student(probability: float, df: float) -> float:
    """Quantile of Student's t, by integrating its density."""
    if math.isinf(df):
        return NormalDist().inv_cdf(probability)
    x = np.sinh(np.linspace(0, 12, 200_001))
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    density = scale * (1 + x**2 / df) ** (-(df + 1) / 2)
    below = 0.5 + np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(x))])
    return float(np.interp(probability, below, x))


def report(rows: list[Row]) -> None:
    """Print the table; exit with 1 if a difference is larger than chance allows."""
    wrong = 0
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  {'published':>12}  {'independent':>12}  {'allowed':>10}")
    for row in rows:
        allowed = row.error * student(1 - ALPHA / 2 / len(rows), row.df)
        differs = abs(row.published - row.independent) > allowed
        wrong += differs
        numbers = f"{row.published:12.6g}  {row.independent:12.6g}  {allowed:10.2g}"
        print(f"{row.name:{width}}  {numbers}  {'DIFFERS' if differs else 'agrees'}")
    print(f"{wrong} of {len(rows)} numbers differ by more than chance allows.")
    sys.exit(int(wrong > 0))
