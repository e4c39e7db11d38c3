"""Check what language-recall compares its layers with, and the row of answers that it publishes.

Run `python tests/independent/recall_row.py`; it takes a few seconds.

Recall has 24 pairs of a key and a value out of 64; then the keys come again in another order. The best guess is the
most frequent value of the keys that have not come again yet. A network that sees nothing can only guess among all 64
values, and an untrained one among all tokens. Regression has pairs (x, W x + noise) of width 8, W orthogonal, and is
judged on the last six of 24 targets. Shares of answers, and their differences between kinds of layers, are
recomputed from the published means of eight networks of each kind. Intervals are the range of eight networks, at
99.2 %, widened by the largest error over sequences.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from published import Estimates, Row, claim, mean, report

STUDY, PAIRS, TOKENS, COPIED, D, NOISE = "language-recall", 24, 64, 33, 8, 0.1
GUESSED, SEQUENCES = 2_000, 20_000


def guesses(rng: np.random.Generator) -> np.ndarray:
    """Percent right, by sequence, of guessing the most frequent value of those not yet asked for."""
    right = np.zeros(GUESSED)
    for sequence in range(GUESSED):
        values = rng.integers(TOKENS, size=PAIRS)
        for asked in range(PAIRS):
            right[sequence] += 100 / PAIRS * np.bincount(values[asked:]).max() / (PAIRS - asked)
    return right


def regression_errors(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Squared error by sequence of ridge regression on all pairs before, and of predicting 0."""
    q, r = np.linalg.qr(rng.normal(size=(SEQUENCES, D, D)))
    maps = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None]
    x = rng.normal(size=(SEQUENCES, PAIRS, D))
    y = x @ maps.swapaxes(1, 2) + NOISE * rng.normal(size=x.shape)
    last = range(3 * PAIRS // 4, PAIRS)
    ridge, nothing = np.zeros((2, SEQUENCES))
    for n in last:
        seen = x[:, :n].swapaxes(1, 2)
        w = np.linalg.solve(seen @ x[:, :n] + D * NOISE**2 * np.eye(D), seen @ y[:, :n])
        ridge += ((np.einsum("bi,bij->bj", x[:, n], w) - y[:, n]) ** 2).mean(1) / len(last)
        nothing += (y[:, n] ** 2).mean(1) / len(last)
    return ridge, nothing


def guess_row(rng: np.random.Generator) -> Row:
    """The share of best guesses that the sentence of 'finds' states, in whole per cent, beside that share."""
    stated = float(claim(STUDY, "finds")["sentence"].split("right in ")[1].split()[0])
    found, error = mean(guesses(rng))
    return Row("finds, stated / best guess, %", stated, found, error + 0.5)


def chance_rows() -> list[Row]:
    """Percent answered by networks that cannot know; their seeds share the sequences."""
    rows = []
    for stage, name, classes in (("recall", "window", TOKENS), ("recall", "untrained", 2 * TOKENS),
                                 ("copying", "untrained", COPIED)):  # fmt: skip
        found = Estimates(STUDY, stage)
        seeds = found.means[found.places(f"answered {name}")]
        there, error = found.mean(f"answered {name}")
        both = max(error, mean(seeds)[1])
        rows.append(Row(f"{stage}, {name}: answered, %", there, 100 / classes, both, len(seeds) - 1))
    return rows


def regression_rows(rng: np.random.Generator) -> list[Row]:
    """Errors of the references, and the mesa layers' over that of ridge regression."""
    ridge, nothing = regression_errors(rng)
    published, rows = Estimates(STUDY, "regression"), []
    for name, errors in (("least-squares", ridge), ("nothing", nothing)):
        there, error = published.mean(f"mse {name}")
        own, own_error = mean(errors)
        rows.append(Row(f"regression, error of {name}", there, own, float(np.hypot(error, own_error))))
    mesa, error = published.mean("mse mesa")
    own, own_error = mean(ridge)
    relative = np.hypot(error / mesa, own_error / own)
    rows.append(Row("mesa / ridge", claim(STUDY, "mesa-solves")["value"], mesa / own, float(mesa / own * relative)))
    return rows


def answered_rows() -> list[Row]:
    """Claims on shares of answers, from the median network; the error is that of rounding."""
    found = Estimates(STUDY, "recall")
    answered = {kind: found.means[found.places(f"answered {kind}")] for kind in ("linear", "delta", "mesa")}
    least = min(np.median(seeds) for seeds in answered.values())
    rows = [Row("finds, value", claim(STUDY, "finds")["value"], least, 1e-4)]
    for kind in ("delta", "mesa"):
        own = answered[kind] - answered["linear"]
        at, other = found.places(f"answered {kind}"), found.places("answered linear")
        between = found.covariance[at, at] + found.covariance[other, other] - 2 * found.covariance[at, other]
        wider = NormalDist().inv_cdf(0.995) * np.sqrt(between.max())
        for part, value in (("value", np.median(own)), ("low", own.min() - wider), ("high", own.max() + wider)):
            rows.append(Row(f"{kind}-recalls, {part}", claim(STUDY, f"{kind}-recalls")[part], value, 1e-4))
    return rows


if __name__ == "__main__":
    generator = np.random.default_rng(3)
    report([guess_row(generator), *chance_rows(), *regression_rows(generator), *answered_rows()])
