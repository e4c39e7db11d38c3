"""Check what language-recall compares its layers with, and the row of answers that it publishes.

Run `python tests/independent/recall_row.py`; it takes half a minute, with SciPy for the error function.

Recall has 24 pairs of a key and a value out of 64; then the keys come again in another order. The best guess is the
most frequent value of the keys that have not come again yet. A network that sees nothing can only guess among all 64
values, and an untrained one among all tokens. Regression has pairs (x, W x + noise) of width 8, W orthogonal, and is
judged on the last six of 24 targets. The first network of delta layers answers new sequences, computed from its
published weights. Differences of shares of answers between kinds of layers are recomputed from the published means
of eight networks of each kind. Intervals are the range of eight networks, at
99.2 %, each widened by its own error over sequences.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from published import Estimates, Row, arrays, claim, mean, report
from scipy.special import erf, expit

STUDY, PAIRS, TOKENS, COPIED, D, NOISE = "language-recall", 24, 64, 33, 8, 0.1
GUESSED, SEQUENCES, ANSWERED = 2_000, 20_000, 1_000
HEADS, EPSILON = 2, 1e-5


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


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Each token less its mean, over its standard deviation, scaled and shifted."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON) * weight + bias


def delta_layer(x: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    """Output of a delta layer for each token: G_t q_t, with G_t = G_{t-1} + beta_t (v_t - G_{t-1} k_t) k_t^T."""
    both = np.concatenate([x @ w["q_proj.weight"].T, x @ w["k_proj.weight"].T], -1)
    mixed = np.zeros_like(both)
    for lag in range(w["convolution"].shape[1]):  # short convolutions of queries and keys
        mixed[:, lag:] += w["convolution"][:, lag] * both[:, : both.shape[1] - lag]
    mixed = mixed * expit(mixed)
    q, k, v = (one.reshape(*x.shape[:2], HEADS, -1) for one in (*np.split(mixed, 2, -1), x @ w["v_proj.weight"].T))
    q, k = (one / np.maximum(np.linalg.norm(one, axis=-1, keepdims=True), 1e-12) for one in (q, k))
    beta = expit(x @ w["beta_proj.weight"].T + w["beta_proj.bias"])
    memory, read = np.zeros((len(x), HEADS, v.shape[-1], k.shape[-1])), np.zeros_like(v)
    for t in range(x.shape[1]):
        wrong = v[:, t] - np.einsum("bhvk,bhk->bhv", memory, k[:, t])
        memory += np.einsum("bh,bhv,bhk->bhvk", beta[:, t], wrong, k[:, t])
        read[:, t] = np.einsum("bhvk,bhk->bhv", memory, q[:, t])
    read = read / np.sqrt((read**2).mean(-1, keepdims=True) + EPSILON) * w["norm"]
    return read.reshape(*x.shape[:2], -1) @ w["o_proj.weight"].T


def answers(rng: np.random.Generator) -> np.ndarray:
    """Percent answered right, by sequence, by the first trained network of two delta layers."""
    weights = {name: value.astype(float) for name, value in arrays(STUDY, "weights").items() if "@" not in name}
    keys = np.argsort(rng.random((ANSWERED, TOKENS)), 1)[:, :PAIRS]
    pairs = np.stack([keys, TOKENS + rng.integers(TOKENS, size=keys.shape)], -1)
    again = np.take_along_axis(pairs, np.argsort(rng.random(keys.shape), 1)[..., None], 1)
    tokens = np.concatenate([pairs, again], 1).reshape(ANSWERED, -1)
    x = weights["embedding.weight"][tokens[:, :-1]]
    for place in range(2):
        start = f"transformer.layers.{place}."
        own = {name.removeprefix(start): value for name, value in weights.items() if name.startswith(start)}
        inside = {name.removeprefix("attention."): value for name, value in own.items()}
        x = x + delta_layer(layer_norm(x, own["norm.weight"], own["norm.bias"]), inside)
        h = layer_norm(x, own["mlp_norm.weight"], own["mlp_norm.bias"]) @ own["mlp.up_proj.weight"].T
        x = x + (h * (1 + erf(h / np.sqrt(2))) / 2) @ own["mlp.down_proj.weight"].T
    guessed = (layer_norm(x, weights["norm.weight"], weights["norm.bias"]) @ weights["logits.weight"].T).argmax(-1)
    return 100 * (guessed == tokens[:, 1:])[:, 2 * PAIRS :: 2].mean(1)


def trained_row(rng: np.random.Generator) -> Row:
    """Percent answered by the first delta network, on new sequences."""
    published = Estimates(STUDY, "recall")
    at = published.places("answered delta")[0]
    own, error = mean(answers(rng))
    both = float(np.hypot(error, np.sqrt(published.covariance[at, at])))
    return Row("first delta network: answered, %", published.means[at], own, both)


def guess_row(rng: np.random.Generator) -> Row:
    """The share of best guesses that the sentence of 'finds' states, in whole per cent, beside that share."""
    stated = float(claim(STUDY, "finds")["sentence"].split("asked for has ")[1].split()[0])
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
        wider = NormalDist().inv_cdf(0.995) * np.sqrt(between)
        for part, value in (("value", np.median(own)), ("low", (own - wider).min()), ("high", (own + wider).max())):
            rows.append(Row(f"{kind}-recalls, {part}", claim(STUDY, f"{kind}-recalls")[part], value, 1e-4))
    return rows


if __name__ == "__main__":
    generator = np.random.default_rng(3)
    rows = [guess_row(generator), *chance_rows(), *regression_rows(generator), *answered_rows()]
    report([*rows, trained_row(generator)])
