"""Check differences between known algorithms: those that docs/identify.md prints, and losses of good-regression.

Run `python tests/independent/identify_error.py`; it takes a few seconds.

The difference of two algorithms is the squared difference of their predictions over the variance of those of the first,
at most 4. A task counts by its own squared deviation if that is larger than the variance, and all are scaled so
that the mean prediction differs by 1. The first example is ridge regression with ridge 0.7 on tasks of 12 pairs,
width 3 and noise 0.3, beside the mean label. The second repeats the last label of 8 pairs of width 2, beside the
ridge regression and the number of neighbours nearest to it. Inputs are U(-1, 1), and w is standard normal. A printed
number is of 100 tasks, which gives its error: some ten points.

The losses of good-regression are known to half a percent: ridge regression with ridge 0.09 and twelve gradient steps of
0.6, on tasks of 20 pairs, width 5 and noise 0.3, published of twenty sets of 20,000 tasks.
"""

from __future__ import annotations

import re

import numpy as np
from published import ROOT, Row, arrays, mean, ratio, report

TASKS, PRINTED_TASKS = 200_000, 100
RIDGES = np.logspace(-4, 4, 33)


def draw(rng: np.random.Generator, pairs: int, width: int, noise: float) -> tuple[np.ndarray, ...]:
    """Inputs, labels with noise, one query a task and its target."""
    x = rng.uniform(-1, 1, (TASKS, pairs + 1, width))
    y = (x @ rng.normal(size=(TASKS, width, 1)))[..., 0]
    return x[:, :-1], y[:, :-1] + noise * rng.normal(size=(TASKS, pairs)), x[:, -1], y[:, -1]


def ridge(x: np.ndarray, y: np.ndarray, query: np.ndarray, penalty: float) -> np.ndarray:
    """Predictions of ridge regression."""
    gram = x.swapaxes(1, 2) @ x + penalty * np.eye(x.shape[-1])
    w = np.linalg.solve(gram, (x * y[..., None]).sum(1)[..., None])[..., 0]
    return (w * query).sum(1)


def neighbours(x: np.ndarray, y: np.ndarray, query: np.ndarray, count: int) -> np.ndarray:
    """Mean label of the nearest pairs."""
    nearest = ((x - query[:, None]) ** 2).sum(-1).argsort(1)[:, :count]
    return np.take_along_axis(y, nearest, 1).mean(1)


def differences(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Difference of other from one, by task, in percent."""
    own = (one - one.mean()) ** 2
    larger = np.maximum(own, own.mean())
    return 100 * np.minimum((one - other) ** 2 / (larger * (own / larger).mean()), 4)


def printed(pattern: str) -> float:
    """The percentage that the page prints after these words."""
    text = (ROOT / "docs" / "identify.md").read_text()
    found = re.search(pattern + r"(\d+) %", text)
    if not found:
        raise SystemExit(f"docs/identify.md no longer prints {pattern!r}: update this check.")
    return float(found[1])


def row(name: str, pattern: str, found: np.ndarray) -> Row:
    """The printed number, rounded to 1 %, beside the check's."""
    own, error = mean(found)
    of_printed = found.std() / np.sqrt(PRINTED_TASKS)
    return Row(name, printed(pattern), own, float(np.sqrt(error**2 + of_printed**2 + 1 / 12)))


def loss_rows(rng: np.random.Generator) -> list[Row]:
    """Half squared errors of ridge regression and of twelve gradient steps, and their ratio on shared tasks."""
    x, y, query, target = draw(rng, 20, 5, 0.3)
    w = np.zeros((TASKS, 5))
    for _ in range(12):
        residual = y - (x @ w[..., None])[..., 0]
        w += 0.6 * (x * residual[..., None]).mean(1)
    descent = ((w * query).sum(1) - target) ** 2 / 2
    solved = (ridge(x, y, query, 0.09) - target) ** 2 / 2
    by_set = {"ridge": arrays("good-regression", "rivals")["loss"][:, 0]}
    by_set["descent"] = arrays("good-regression", "path")["network"][:, -1]
    by_set["ratio"] = by_set["ridge"] / by_set["descent"]
    own = {"ridge": mean(solved), "descent": mean(descent), "ratio": ratio(solved, descent)}
    labels = {"ridge": "ridge 0.09, loss", "descent": "twelve steps, loss", "ratio": "ridge / twelve steps, loss"}
    return [
        Row(label, mean(by_set[key])[0], own[key][0], float(np.hypot(mean(by_set[key])[1], own[key][1])))
        for key, label in labels.items()
    ]


def printed_rows(rng: np.random.Generator) -> list[Row]:
    """Three printed differences."""
    x, y, query, _ = draw(rng, 12, 3, 0.3)
    first = row("ridge 0.7 / mean label, %", "next family, averages, ", differences(ridge(x, y, query, 0.7), y.mean(1)))
    x, y, query, _ = draw(rng, 8, 2, 0.0)
    last = y[:, -1]
    by_ridge = min((differences(last, ridge(x, y, query, one)) for one in RIDGES), key=np.mean)
    by_count = min((differences(last, neighbours(x, y, query, one)) for one in range(1, 9)), key=np.mean)
    return [
        first,
        row("last label / ridge, %", "nearest, least squares, leaves ", by_ridge),
        row("last label / neighbours, %", "next family, neighbours, ", by_count),
    ]


if __name__ == "__main__":
    generator = np.random.default_rng(4)
    report([*printed_rows(generator), *loss_rows(generator)])
