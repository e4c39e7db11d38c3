"""The claims of the study of phase transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mesascope.evidence import Claim, above, below, ours, printed, two_sided
from mesascope.studies.common import converged
from mesascope.studies.icl_gd.shared_claims import as_predicted

__all__ = ["CLAIMS", "HEADS", "THRESHOLD", "rise_and_fall"]

HEADS = {"one-head": 1, "two-heads": 2}
THRESHOLD = 0.25
TRAINED = ("one-head-converged", "two-heads-converged", "references-as-predicted")


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


def _middle_half(one: np.ndarray, two: np.ndarray) -> float:
    """The same of the range of the middle half of the seeds, which no few late ones decide; steps are 10 apart."""
    wide, narrow = (np.subtract(*np.quantile(steps, [0.75, 0.25])) for steps in (one, two))
    return float(np.log2(max(wide, 10) / max(narrow, 10)))


def _late(one: np.ndarray, two: np.ndarray) -> float:
    """Share of seeds that arrive after twice their median, with one head less with two."""
    first, second = (np.mean(steps > 2 * np.median(steps)) for steps in (one, two))
    return float(first - second)


def _earlier(one: np.ndarray, two: np.ndarray) -> float:
    return float(np.median(two) / np.median(one))


def _crossings(r: Any) -> tuple[np.ndarray, np.ndarray]:
    """Each seed's step; those that never arrive count as if they did at the end, which makes late ones look earlier.

    Where none arrives nothing is known.
    """
    found = {name: (r[f"{name}-crossing"]["step"], r[name]["step"][-1]) for name in HEADS}
    return tuple(  # type: ignore[return-value]
        np.where(np.isnan(step), np.nan if np.isnan(step).all() else last, step) for step, last in found.values()
    )


def _arrived(r: Any, name: str) -> np.ndarray:
    """Losses over gradient descent's of the seeds that have left their plateau."""
    return r["losses"].ratio(name, "gd")[~np.isnan(r[f"{name}-crossing"]["step"])]


CLAIMS = (
    *(converged(name, id=f"{name}-converged", at_least=10) for name in HEADS),
    as_predicted(("gd",)),
    Claim(
        "reaches-gd", "layers of two heads, and those of one that have left their plateau, end within 3 % of gradient "
        "descent's loss", lambda r: np.concatenate([_arrived(r, "one-head"), r["losses"].ratio("two-heads", "gd")]),
        two_sided(0.03), printed("Fig. 15 left and centre"), measures="loss of trained / of gradient descent",
        over="learners", at_least=10, premises=TRAINED,
    ),
    Claim(
        "two-heads-all-arrive", "every layer of two heads leaves its plateau",
        lambda r: ~np.isnan(r["two-heads-crossing"]["step"]), above(0.9),
        printed("Fig. 15 centre: fast and robust convergence"), measures="share of seeds that do", quantifier="share",
        at_least=10, premises=TRAINED,
    ),
    Claim(
        "late-seeds",
        "with one head more seeds than with two stay on the plateau for more than twice as long as the " "median seed",
        _crossings, above(0.0, by="paper"), printed("Fig. 15 left: very long initial phases for some seeds"),
        measures="share of such seeds with one head, less that with two", quantifier="bootstrap", at_least=10,
        premises=TRAINED, statistic=_late,
    ),
    Claim(
        "spread-shrinks", "the step at which half the loss falls below 0.25 varies at least three times as much over "
        "seeds with one head as with two", _crossings, above(np.log2(3.0).item()), printed("Fig. 15 left and centre"),
        measures="log2 of one head's standard deviation over two heads'; 1.58 is three times", quantifier="bootstrap",
        at_least=10, premises=TRAINED, statistic=_spread,
    ),
    Claim(
        "middle-half-shrinks", "so it does over the middle half of the seeds, where late ones do not count", _crossings,
        above(np.log2(3.0).item()), ours("a standard deviation rests on the few late seeds"),
        measures="log2 of one head's interquartile range over two heads'; 1.58 is three times", quantifier="bootstrap",
        at_least=10, premises=TRAINED, statistic=_middle_half,
    ),
    Claim(
        "two-heads-arrive", "layers of two heads fall below 0.25 earlier than those of one", _crossings, below(1.0),
        printed("Fig. 15 left and centre"), measures="median step of two heads / of one", quantifier="bootstrap",
        at_least=10, premises=TRAINED, statistic=_earlier,
    ),
    Claim(
        "block-learns", "blocks end at most 20 % above gradient descent's loss on their own tasks",
        lambda r: r["grokking"]["own mse"][:, -1] / r["gradient-descent"]["own mse"], below(1.2), ours("premise"),
        measures="loss of block / of gradient descent, on each block's own tasks, mean over seeds", quantifier="mean",
        premises=("references-as-predicted",),
    ),
    Claim(
        "test-rises", "on the plateau the loss on fresh tasks rises by more than 5 % above its lowest value before",
        _blocks(0), above(0.05), printed("Fig. 15 right"), measures="largest rise, mean over seeds", quantifier="mean",
        premises=("block-learns",),
    ),
    Claim(
        "test-falls", "after that it falls to within 10 % of gradient descent's on the same tasks", _blocks(1),
        two_sided(0.1), printed("Fig. 15 right"),
        measures="lowest loss after the rise / gradient descent's, mean over seeds", quantifier="mean",
        premises=("block-learns",),
    ),
    Claim(
        "test-ends", "at the end it is within 10 % of gradient descent's on the same tasks",
        lambda r: r["grokking"]["mse"][:, -1] / float(r["gradient-descent"]["mse"]), two_sided(0.1),
        printed("Fig. 15 right: almost matching"), measures="last loss / gradient descent's, mean over seeds",
        quantifier="mean", premises=("block-learns",),
    ),
    Claim(
        "test-falls-late", "it falls late: it is half way down to gradient descent's after at least twice as many "
        "steps as the loss on the block's own tasks needs to fall by a tenth", _blocks(2), above(2.0),
        printed("Fig. 15 right"), measures="ratio of the two steps, mean over seeds", quantifier="mean",
        premises=("block-learns",),
    ),
)  # fmt: skip
