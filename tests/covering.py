"""Coverage of intervals by quantifier, distribution and number of replicates: table and limits of docs/evidence.md.

``python tests/covering.py`` prints both, from 20,000 samples a cell (2,000 for bootstraps, 1,000 for their limit).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import binom, t

from mesascope.evidence import LEVEL, judging

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def late(share: float, by: float) -> Draw:
    """Normal replicates of which some are late, as a seed that stays on a plateau."""
    return lambda rng, shape: rng.normal(size=shape) + by * (rng.random(shape) < share)


LAWS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "Student's t, 3 degrees": lambda rng, shape: rng.standard_t(3, shape),
    "lognormal": lambda rng, shape: rng.lognormal(0, 1, shape),
    "uniform": lambda rng, shape: rng.random(shape),
    "one in ten late": late(0.1, 10.0),
    "two in ten dead": late(0.2, -30.0),
}
# Replicates judged on the same tasks share the error of these tasks: their correlation.
SHARED = (0.2, 0.5)
REPLICATES, TASKS, MANY = (8, 10, 20, 30), (500, 1_000, 10_000), (20, 30, 100)
# Correlation of the two losses of a task, of whose means a ratio is taken.
PAIRED = (0.0, 0.9)
STATISTICS: dict[str, Any] = {
    "log2 of a ratio of medians": (2, lambda a, b: float(np.log2((40 + np.median(a)) / (40 + np.median(b))))),
    "distance of the quartiles": (1, lambda a: float(np.subtract(*np.quantile(a, [0.75, 0.25])))),
    "log2 of a ratio of middle nine tenths": (2, lambda a, b: float(np.log2(_nine_tenths(a) / _nine_tenths(b)))),
    "difference of late shares": (2, lambda a, b: float(_late_share(a) - _late_share(b))),
}
# Numbers of replicates of statistics that need more than twenty.
_AT = dict.fromkeys([*STATISTICS][2:], (100,))


def _nine_tenths(values: np.ndarray) -> float:
    return float(np.subtract(*np.quantile(values, [0.95, 0.05])))


def _late_share(values: np.ndarray) -> float:
    return float(np.mean(values > np.median(values) + 2))


def covered(quantifier: str, samples: Any, errors: Any, truth: float, **claim: Any) -> float:
    """Share of samples, one a column, whose interval contains the true value."""
    own = SimpleNamespace(over="seeds", **claim)
    error = (1 - LEVEL) * judging.STRICTER.get(quantifier, 1)
    intervals = judging._INTERVALS[quantifier](own, (judging._Samples(samples, errors),))(error, len(samples))
    return float(np.mean([one.low <= truth <= one.high for one in intervals]))


def cells(samples: int = 20_000, resampled: int = 2_000) -> Iterator[tuple[str, str, int, float]]:
    """Quantifier, distribution, number of replicates or tasks, and coverage."""
    rng = np.random.default_rng(0)
    for law, draw in LAWS.items():
        large = draw(rng, (2_000_000,))
        for n in TASKS:
            rounds = -(-samples * n // 10_000_000)
            drawn = [draw(rng, (-(-samples // rounds), n)) for _ in range(rounds)]
            means = np.concatenate([one.mean(1) for one in drawn])[None]
            errors = np.concatenate([one.std(1, ddof=1) for one in drawn])[None] / n**0.5
            yield "every", law, n, covered("every", means, errors, exact_mean(law))
        for n in REPLICATES:
            values = draw(rng, (n, samples))
            yield "median", law, n, covered("median", values, np.zeros_like(values), float(np.median(large)))
    for correlation in PAIRED:
        for n in TASKS:
            found = [ratio_of_means(rng, correlation, -(-samples // 20), n) for _ in range(20)]
            ratios, errors = (np.concatenate(part)[None] for part in zip(*found, strict=True))
            label = f"ratio of lognormal means, correlation of logarithms {correlation:g}"
            yield "every", label, n, covered("every", ratios, errors, 1.0)
    for correlation in SHARED:
        for n in REPLICATES:
            values = (1 - correlation) ** 0.5 * rng.normal(size=(n, samples))
            values += correlation**0.5 * rng.normal(size=samples)
            errors = np.full_like(values, correlation**0.5)
            label = f"normal, correlation {correlation}, included"
            yield "median", label, n, covered("median", values, errors, 0.0)
    for share in (0.5, 0.9, 0.99):
        for n in (5, *REPLICATES):
            values = (np.arange(n)[:, None] < np.arange(n + 1)).astype(float)  # a column for each number of true ones
            inside = [covered("share", one[:, None], np.zeros((n, 1)), share) for one in values.T]
            exact = float(binom.pmf(np.arange(n + 1), n, share) @ inside)
            yield "share", f"true with probability {share}", n, exact
    for name, (count, statistic) in STATISTICS.items():
        for law in ("normal", "lognormal", "one in ten late"):
            truth = statistic(*(LAWS[law](rng, (2_000_000,)) for _ in range(count)))
            for n in _AT.get(name, MANY) if resampled else ():
                yield (
                    "bootstrap",
                    f"{law}: {name}",
                    n,
                    bootstrapped(rng, LAWS[law], count, statistic, n, truth, resampled),
                )


def limits(samples: int = 20_000, resampled: int = 1_000) -> Iterator[tuple[str, int, list[float]]]:
    """Coverages and shares that docs/evidence.md states in sentences: subject, number of samples, and shares."""
    rng = np.random.default_rng(1)
    for by in (10, 100):
        found = [student(late(0.1, by)(rng, (n, samples)), 0.1 * by) for n in (3, 5, 8, 10)]
        yield f"Student's t, late by {by}", samples, found
    yield "no late seed", samples, [float(binom.pmf(0, 8, 0.1))]
    losses = LAWS["lognormal"](rng, (samples, 64))
    errors = losses.std(1, ddof=1)[None] / 8
    yield "few tasks", samples, [covered("every", losses.mean(1)[None], errors, exact_mean("lognormal"))]
    found = []
    for correlation in SHARED:
        values = (1 - correlation) ** 0.5 * rng.normal(size=(8, samples)) + correlation**0.5 * rng.normal(size=samples)
        found.append(covered("median", values, np.zeros_like(values), 0.0))
    yield "correlation, ignored", samples, found
    if resampled:
        truth = np.sqrt(np.e * (np.e - 1))
        found = [bootstrapped(rng, LAWS["lognormal"], 1, deviation, 100, truth, resampled, judging.RESAMPLES)]
        yield "standard deviation", resampled, found


def deviation(values: np.ndarray, axis: int = -1) -> Any:
    return values.std(axis, ddof=1)


def ratio_of_means(
    rng: np.random.Generator, correlation: float, samples: int, tasks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ratios of the means of two lognormal losses of the same tasks, and their standard errors, a number a sample."""
    common = correlation**0.5 * rng.normal(size=(samples, tasks))
    one, other = (np.exp(common + (1 - correlation) ** 0.5 * rng.normal(size=(samples, tasks))) for _ in range(2))
    ratios = one.mean(1) / other.mean(1)
    left = one - ratios[:, None] * other
    return ratios, left.std(1, ddof=1) / other.mean(1) / tasks**0.5


def student(values: np.ndarray, truth: float) -> float:
    """Share of samples, one a column, whose interval of Student's t at 99.9 % contains the mean."""
    reach = t.isf(0.0005, len(values) - 1) * values.std(0, ddof=1) / len(values) ** 0.5
    return float(np.mean(np.abs(values.mean(0) - truth) <= reach))


def exact_mean(law: str) -> float:
    known = {"normal": 0.0, "lognormal": np.exp(0.5), "uniform": 0.5, "one in ten late": 1.0, "two in ten dead": -6.0}
    return float(known.get(law, 0.0))


def bootstrapped(
    rng: np.random.Generator, draw: Draw, count: int, statistic: Any, n: int, truth: float, samples: int,
    resamples: int = 499,
) -> float:  # fmt: skip
    inside = 0
    own = SimpleNamespace(over="seeds", statistic=statistic)
    with mock.patch.object(judging, "RESAMPLES", resamples):
        for _ in range(samples):
            read = tuple(judging._Samples(draw(rng, (n, 1)), np.zeros((n, 1))) for _ in range(count))
            (found,) = judging._bootstrap(own, read)((1 - LEVEL) * judging.STRICTER["bootstrap"], n)
            inside += found.low <= truth <= found.high
    return inside / samples


def table(found: dict[tuple[str, str], dict[int, float]]) -> str:
    head = "| quantifier | distribution | coverage (%) by number of replicates, of tasks for *every* |"
    lines = [head, "|---|---|---|"]
    for (quantifier, law), by in found.items():
        lines.append(f"| {quantifier} | {law} | {', '.join(f'{n:,}: {100 * one:.2f}' for n, one in by.items())} |")
    return "\n".join(lines)


def main() -> None:
    found: dict[tuple[str, str], dict[int, float]] = {}
    for quantifier, law, n, coverage in cells():
        found.setdefault((quantifier, law), {})[n] = coverage
        print(quantifier, law, n, coverage, file=sys.stderr, flush=True)
    print(table(dict(sorted(found.items(), key=lambda item: list(judging._INTERVALS).index(item[0][0])))))
    for subject, _, shares in limits():
        print(f"{subject}: {', '.join(f'{100 * one:.1f}' for one in shares)} %", flush=True)


if __name__ == "__main__":
    main()
