"""Check the losses of mesa-one-layer: ridge regression, a mesa layer over it, and one linear layer.

Run `python tests/independent/mesa_over_ridge.py`; it takes a few minutes.

Sequences are s_{t+1} = W s_t + 0.01 eps of width 10 and length 51, W uniform on the orthogonal group, s_1 uniform in
[-1, 1]. Ridge regression on the pairs (s_{i-1}, s_i) up to t, with s_0 = 0, predicts s_{t+1}. Its errors are recomputed
on new sequences, after each number of known elements. Those of the first mesa layer and of the first linear layer are
computed from their published weights, those of one gradient step from the published step size.
"""

from __future__ import annotations

import numpy as np
from published import Estimates, Row, arrays, mean, ratio, report

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


def mesa_layer(s: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Predictions of the first mesa layer: minus what its heads G_t (H_t + ridge)^-1 q_t write into the blank third."""
    found = arrays(STUDY, "mesa weights").items()
    weights = {name.rpartition("attention.")[2]: one.astype(float) for name, one in found if "attention" in name}
    tokens = np.concatenate([np.zeros_like(s), s, before], -1)
    ridge = 1e-3 + np.log1p(np.exp(weights["ridge_above"]))
    q, k, v = (
        (tokens @ weights[f"{name}_proj.weight"].T).reshape(*s.shape[:2], len(ridge), -1) for name in ("q", "k", "v")
    )
    H = np.einsum("h,ij->hij", ridge, np.eye(k.shape[-1])) + np.zeros((len(s), 1, 1, 1))
    G, written = np.zeros((*H.shape[:2], v.shape[-1], k.shape[-1])), np.zeros_like(tokens)
    for t in range(s.shape[1]):
        H += k[:, t, :, :, None] * k[:, t, :, None]
        G += v[:, t, :, :, None] * k[:, t, :, None]
        read = G @ np.linalg.solve(H, q[:, t][..., None])
        written[:, t] = read.reshape(len(s), -1) @ weights["o_proj.weight"].T
    return -written[..., :D]


def errors() -> dict[str, np.ndarray]:
    """Squared error of each predictor by sequence and number of known elements."""
    rng, eta = np.random.default_rng(1), float(arrays(STUDY, "coefficients")["eta"][0])
    found: dict[str, list[np.ndarray]] = {"limit": [], "gd": [], "linear": [], "mesa": []}
    for _ in range(SEQUENCES // BATCH):
        whole = draw(rng, BATCH)
        s, before = whole[:, :-1], np.concatenate([np.zeros((BATCH, 1, D)), whole[:, :-2]], 1)
        guesses = {"limit": ridge(s, before), "gd": gradient_step(s, before, eta),
                   "linear": linear_layer(s, before), "mesa": mesa_layer(s, before)}  # fmt: skip
        for name, guess in guesses.items():
            found[name].append(((guess - whole[:, 1:]) ** 2).mean(-1))
    return {name: np.concatenate(each) for name, each in found.items()}


def loss_rows(found: dict[str, np.ndarray]) -> list[Row]:
    """Losses of whole sequences."""
    published = Estimates(STUDY, "comparison")
    rows = []
    for name, label in (("limit", "ridge regression"), ("gd", "gradient step"), ("linear", "first linear layer"),
                        ("mesa", "first mesa layer")):  # fmt: skip
        at = published.places(f"mse {name}")[0]
        own, error = mean(found[name].mean(1))
        both = np.hypot(error, np.sqrt(published.covariance[at, at]))
        rows.append(Row(f"{label}, loss", D / 2 * published.means[at], D / 2 * own, D / 2 * both))
    for name, below, label in (
        ("linear", "gd", "linear layer / gradient step"),
        ("gd", "limit", "gradient step / ridge"),
        ("mesa", "limit", "mesa layer / ridge"),
    ):
        there, error = published.ratio(f"mse {name}", f"mse {below}", member=0)
        own, own_error = ratio(found[name].mean(1), found[below].mean(1))
        rows.append(Row(label, there, own, float(np.hypot(error, own_error))))
    return rows


def time_rows(found: dict[str, np.ndarray]) -> list[Row]:
    """Ridge regression's error and that of the first mesa layer over it, after each number of known elements."""
    rows = []
    for t in SHOWN:
        published, at = Estimates(STUDY, "by-time", t - 1), {name: one[:, t - 1] for name, one in found.items()}
        there, error = published.mean("mse limit")
        own, own_error = mean(at["limit"])
        rows.append(Row(f"ridge after {t}", there, own, float(np.hypot(error, own_error))))
        there, error = published.ratio("mse mesa", "mse limit", member=0)
        own, own_error = ratio(at["mesa"], at["limit"])
        rows.append(Row(f"mesa / ridge after {t}", there, own, float(np.hypot(error, own_error))))
    return rows


if __name__ == "__main__":
    measured = errors()
    report([*loss_rows(measured), *time_rows(measured)])
