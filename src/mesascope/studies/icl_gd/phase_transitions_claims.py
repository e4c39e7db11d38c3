"""The claims of the study of phase transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mesascope.evidence import Claim, above, below, ours, printed, two_sided
from mesascope.studies.icl_gd.shared_claims import as_predicted, converged

__all__ = ["CLAIMS", "HEADS", "THRESHOLD", "rise_and_fall"]

HEADS = {"one-head": 1, "two-heads": 2}
THRESHOLD = 0.25
TRAINED = ("converged", "references-as-predicted")


def rise_and_fall(step: np.ndarray, test: np.ndarray, own: np.ndarray, limit: float) -> tuple[float, float, float]:
    """Largest rise of a test loss on its plateau, its least value after it over ``limit``, and how late it falls.

    The rise is a ratio less 1. How late is the step at which half of the fall is done over that at which the loss on a
    block's own tasks had fallen by a tenth, NaN where either never happens.
    """
    low = np.minimum.accumulate(test)
    plateau = low > (low[0] + limit) / 2  # before the test loss is half way down
    peak = int(np.argmax(np.where(plateau, test / low, 0)))
    half = np.flatnonzero((test < (low[peak] + limit) / 2) & (np.arange(len(test)) > peak))
    learnt = np.flatnonzero((own < 0.9 * low[peak]) & (step > 0))
    late = step[half[0]] / step[learnt[0]] if len(half) and len(learnt) else np.nan
    return test[peak] / low[peak] - 1, test[peak:].min() / limit, float(late)


def _blocks(part: int) -> Callable[[Any], np.ndarray]:
    """One number of `rise_and_fall` for each block, the limit being gradient descent on the same tasks."""

    def read(r: Any) -> np.ndarray:
        run, limit = r["grokking"], float(r["gradient-descent"]["mse"])
        pairs = zip(run["mse"], run["own mse"], strict=True)
        return np.array([rise_and_fall(run["step"], *pair, limit)[part] for pair in pairs])

    return read


def _spread(one: np.ndarray, two: np.ndarray) -> float:
    return float(np.log2(one.std(ddof=1) / two.std(ddof=1)))


def _earlier(one: np.ndarray, two: np.ndarray) -> float:
    return float(two.mean() / one.mean())


def _crossings(r: Any) -> tuple[np.ndarray, np.ndarray]:
    return r["one-head-crossing"]["step"], r["two-heads-crossing"]["step"]


CLAIMS = (
    converged(*HEADS, at_least=10),
    as_predicted(("gd",)),
    Claim(
        "reaches-gd", "layers of one head and of two end within 3 % of gradient descent's loss",
        "loss of trained / of gradient descent", printed("Fig. 15 left and centre"),
        lambda r: np.stack([r["comparison"].ratio(name, "gd") for name in HEADS], axis=1), two_sided(0.03),
        at_least=10, premises=TRAINED,
    ),
    Claim(
        "spread-shrinks", "the step at which half the loss falls below 0.25 varies at least three times as much over "
        "seeds with one head as with two", "log2 of one head's standard deviation over two heads'; 1.58 is three times",
        printed("Fig. 15 left and centre"), _crossings, above(np.log2(3.0).item()), quantifier="bootstrap",
        statistic=_spread, at_least=10, premises=TRAINED,
    ),
    Claim(
        "two-heads-arrive", "layers of two heads fall below 0.25 earlier than those of one",
        "mean step of two heads / of one", printed("Fig. 15 left and centre"), _crossings, below(1.0),
        quantifier="bootstrap", statistic=_earlier, at_least=10, premises=TRAINED,
    ),
    Claim(
        "block-learns", "blocks end at most 20 % above gradient descent's loss on their own tasks",
        "loss of block / of gradient descent, on each block's own tasks, mean over seeds",
        ours("premise"), lambda r: r["grokking"]["own mse"][:, -1] / r["gradient-descent"]["own mse"], below(1.2),
        quantifier="mean", premises=("references-as-predicted",),
    ),
    Claim(
        "test-rises", "on the plateau the loss on fresh tasks rises by more than 5 % above its lowest value before",
        "largest rise, mean over seeds", printed("Fig. 15 right"), _blocks(0), above(0.05), quantifier="mean",
        premises=("block-learns",),
    ),
    Claim(
        "test-falls", "after that it falls to within 10 % of gradient descent's on the same tasks",
        "lowest loss after the rise / gradient descent's, mean over seeds", printed("Fig. 15 right"), _blocks(1),
        two_sided(0.1), quantifier="mean", premises=("block-learns",),
    ),
    Claim(
        "test-falls-late", "it falls late: it is half way down to gradient descent's after at least twice as many "
        "steps as the loss on the block's own tasks needs to fall by a tenth",
        "ratio of the two steps, mean over seeds",
        printed("Fig. 15 right"), _blocks(2), above(2.0), quantifier="mean", premises=("block-learns",),
    ),
)  # fmt: skip
