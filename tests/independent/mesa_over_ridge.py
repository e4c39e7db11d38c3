"""Check the losses of mesa-one-layer: ridge regression, a mesa layer over it, and one linear layer.

Run `python tests/independent/mesa_over_ridge.py`; it takes half a minute.

Sequences are s_{t+1} = W s_t + 0.01 eps of width 10 and length 51, W uniform on the orthogonal group, s_1 uniform in
[-1, 1]. Ridge regression on the pairs (s_{i-1}, s_i) up to t, with s_0 = 0, predicts s_{t+1}. Its errors are recomputed
on new sequences, after each number of known elements. The weights of mesa layers are not published: their published
errors are set over the recomputed ones of ridge regression. Those of the first linear layer are, and its
predictions are computed from them, beside one gradient step of the published size.
"""

from __future__ import annotations

import numpy as np
from published import Estimates, Row, arrays, claim, mean, ratio, report

STUDY = "mesa-one-layer"
SEQUENCES, BATCH, LENGTH, D, NOISE, RIDGE = 20_000, 1000, 51, 10, 0.01, 1e-3
SHOWN = (1, 5, 10, 11, 12, 15, 20, 30, 50)


def draw(rng: np.random.Generator, count: int) -> np.ndarray:
    """Sequences ``(count, LENGTH, D)``."""
    q, r = np.linalg.qr(rng.normal(size=(count, D, D)))
    maps = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None]
    elements = [rng.uniform(-1, 1, (count, D))]
    for _ in range(LENGTH - 1):
        elements.append(np.einsum("bij,bj->bi", maps, elements[-1]) + NOISE * rng.normal(size=(count, D)))
    return np.stack(elements, 1)


def sums(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Sums over i <= t of left_i right_i^T, for each t."""
    return np.cumsum(left[..., :, None] * right[..., None, :], 1)


def ridge(s: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Predictions of ridge regression on all pairs up to each t."""
    query = np.linalg.solve(sums(before, before) + RIDGE * np.eye(D), s[..., None])
    return (sums(s, before) @ query)[..., 0]


def gradient_step(s: np.ndarray, before: np.ndarray, eta: float) -> np.ndarray:
    """Predictions of one gradient step from W = 0 on the summed squared errors."""
    return eta * (sums(s, before) @ s[..., None])[..., 0]


def linear_layer(s: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Predictions of the first linear layer: what it writes into the blank third of tokens (0, s_t, s_{t-1})."""
    products = arrays(STUDY, "weights")
    tokens = np.concatenate([np.zeros_like(s), s, before], -1)
    pairs, written = sums(tokens, tokens), 0.0
    for w_kq, w_pv in zip(products["w_kq"][0].astype(float), products["w_pv"][0].astype(float), strict=True):
        written = written + (pairs @ (tokens @ w_kq.T)[..., None])[..., 0] @ w_pv.T
    return -written[..., :D]


def errors() -> dict[str, np.ndarray]:
    """Squared error of each predictor by sequence and number of known elements."""
    rng, eta = np.random.default_rng(1), float(arrays(STUDY, "coefficients")["eta"][0])
    found: dict[str, list[np.ndarray]] = {"limit": [], "gd": [], "linear": []}
    for _ in range(SEQUENCES // BATCH):
        whole = draw(rng, BATCH)
        s, before = whole[:, :-1], np.concatenate([np.zeros((BATCH, 1, D)), whole[:, :-2]], 1)
        guesses = {"limit": ridge(s, before), "gd": gradient_step(s, before, eta), "linear": linear_layer(s, before)}
        for name, guess in guesses.items():
            found[name].append(((guess - whole[:, 1:]) ** 2).mean(-1))
    return {name: np.concatenate(each) for name, each in found.items()}


def loss_rows(found: dict[str, np.ndarray]) -> list[Row]:
    """Losses of whole sequences."""
    published = Estimates(STUDY, "comparison")
    rows = []
    for name, label in (("limit", "ridge regression"), ("gd", "gradient step"), ("linear", "first linear layer")):
        at = published.places(f"mse {name}")[0]
        own, error = mean(found[name].mean(1))
        both = np.hypot(error, np.sqrt(published.covariance[at, at]))
        rows.append(Row(f"{label}, loss", D / 2 * published.means[at], D / 2 * own, D / 2 * both))
    for name, below, label in (
        ("linear", "gd", "linear layer / gradient step"),
        ("gd", "limit", "gradient step / ridge"),
    ):
        there, error = published.ratio(f"mse {name}", f"mse {below}", member=0)
        own, own_error = ratio(found[name].mean(1), found[below].mean(1))
        rows.append(Row(label, there, own, float(np.hypot(error, own_error))))
    return rows


def mesa_row(limit: np.ndarray) -> Row:
    """The claim's ratio: the mesa layer that is farthest from ridge regression, over the recomputed loss."""
    published, there = Estimates(STUDY, "comparison"), claim(STUDY, "mesa-at-the-limit")["value"]
    worst = max(published.places("mse mesa"), key=lambda at: published.means[at])
    own, error = mean(limit.mean(1))
    relative = np.hypot(error / own, np.sqrt(published.covariance[worst, worst]) / published.means[worst])
    return Row("mesa / ridge, all times", there, published.means[worst] / own, there * relative)


def time_rows(limit: np.ndarray) -> list[Row]:
    """Ridge regression's error and the mean mesa layer over it, after each number of known elements."""
    rows = []
    for t in SHOWN:
        published = Estimates(STUDY, "by-time", t - 1)
        there, error = published.mean("mse limit")
        own, own_error = mean(limit[:, t - 1])
        rows.append(Row(f"ridge after {t}", there, own, float(np.hypot(error, own_error))))
        mesa, mesa_error = published.mean("mse mesa")
        relative = np.hypot(mesa_error / mesa, own_error / own)
        rows.append(Row(f"mesa / ridge after {t}", mesa / there, mesa / own, float(mesa / own * relative)))
    return rows


if __name__ == "__main__":
    measured = errors()
    report([*loss_rows(measured), mesa_row(measured["limit"]), *time_rows(measured["limit"])])
