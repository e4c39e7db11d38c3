"""Check the losses of one-step: trained layers, the construction, and networks halfway, and the closed-form optimum.

Run `python tests/independent/interpolation.py`; it takes a quarter of a minute.

Tasks are y = w . x with w standard normal and x uniform in [-1/2, 1/2], N = d. A layer with products W_KQ and W_PV adds
sum_j W_PV e_j (e_j . W_KQ e_q) to the query's token e_q = (x_q, 0), with e_j = (x_j, y_j), and predicts minus the last
entry. Products are those that the run publishes, of each seed at N = d = 10. The best step size of one gradient step
and its loss are estimated from new tasks by least squares, for each size, and set beside the published closed form.
"""

from __future__ import annotations

import numpy as np
from published import Estimates, Row, arrays, claim, mean, ratio, report

STUDY, SCALE, TASKS, BATCH = "one-step", 0.5, 400_000, 20_000


def draw(rng: np.random.Generator, count: int, size: int) -> tuple[np.ndarray, ...]:
    """Inputs, targets, a query and its target for N = d = size."""
    x = rng.uniform(-SCALE, SCALE, (count, size + 1, size))
    y = (x @ rng.normal(size=(count, size, 1)))[..., 0]
    return x[:, :-1], y[:, :-1], x[:, -1], y[:, -1]


def layer(w_kq: np.ndarray, w_pv: np.ndarray, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Prediction of one linear attention layer."""
    tokens = np.concatenate([x, y[..., None]], -1)
    asked = np.concatenate([query, np.zeros((len(query), 1))], -1)
    scores = (tokens @ (asked @ w_kq.T)[..., None])[..., 0]
    return -((scores[..., None] * tokens).sum(1) @ w_pv.T)[:, -1]


def networks() -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Products W_KQ and W_PV of trained layers, of the construction, and halfway."""
    trained, built = arrays(STUDY, "weights"), arrays(STUDY, "construction")
    pairs = [(kq.astype(float), pv.astype(float)) for kq, pv in zip(trained["w_kq"], trained["w_pv"], strict=True)]
    end = (built["w_kq"][0].astype(float), built["w_pv"][0].astype(float))
    middle = [((kq + end[0]) / 2, (pv + end[1]) / 2) for kq, pv in pairs]
    return {"trained": pairs, "middle": middle, "other": [end]}


def losses(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Squared error of each network ``(networks, tasks)``, and of one gradient step at the closed-form size."""
    found: dict[str, list[np.ndarray]] = {}
    eta = arrays(STUDY, "optima")["optimum"][1]
    for _ in range(TASKS // BATCH):
        x, y, query, target = draw(rng, BATCH, 10)
        for name, members in networks().items():
            errors = [(layer(*one, x, y, query) - target) ** 2 for one in members]
            found.setdefault(name, []).append(np.stack(errors))
        step = eta * (query * (x * y[..., None]).mean(1)).sum(-1)
        found.setdefault("gd", []).append((step - target)[None] ** 2)
    return {name: np.concatenate(each, 1) for name, each in found.items()}


def loss_rows(found: dict[str, np.ndarray]) -> list[Row]:
    """Losses, and ratios on shared tasks, which are known far better."""
    published, rows = Estimates(STUDY, "size-10-comparison"), []
    for name, label in (("trained", "trained layers"), ("middle", "halfway"), ("gd", "gradient step")):
        there, error = published.mean(f"mse {name}")
        own, own_error = mean(found[name].mean(0))
        rows.append(Row(f"{label}, loss", there, own, float(np.hypot(error, own_error))))
    for name, below in (("trained", "gd"), ("middle", "trained"), ("middle", "gd"), ("other", "gd")):
        for seed in range(len(found[name])):
            there, error = published.ratio(f"mse {name}", f"mse {below}", seed)
            own, own_error = ratio(found[name][seed], found[below][min(seed, len(found[below]) - 1)])
            both = max(float(np.hypot(error, own_error)), 1e-8)  # products are published in single precision
            rows.append(Row(f"{name} / {below}, seed {seed}", there, own, both))
    return rows


def claim_row(found: dict[str, np.ndarray]) -> Row:
    """The claim on the midpoint: of its ratios to either end, the one farthest from 1."""
    ends = [(one, found["other"][0]) for one in found["trained"]]
    ratios = [ratio(middle, end) for middle, own in zip(found["middle"], ends, strict=True) for end in own]
    own, error = max(ratios, key=lambda one: abs(one[0] - 1))
    published = claim(STUDY, "interpolation")
    there = (published["high"] - published["low"]) / 2 / 3.29
    return Row("claim: midpoint / an end, farthest", published["value"], own, float(np.hypot(error, there)))


def optimum_rows(rng: np.random.Generator) -> list[Row]:
    """Best step size and its loss for each N = d, by least squares over tasks."""
    closed, rows = arrays(STUDY, "optima"), []
    for size, eta, limit in zip(closed["size"], closed["optimum"], closed["limit"], strict=True):
        steps, targets = [], []
        for _ in range(TASKS // BATCH):
            x, y, query, target = draw(rng, BATCH, int(size))
            steps.append((query * (x * y[..., None]).mean(1)).sum(-1))
            targets.append(target)
        g, target = np.concatenate(steps), np.concatenate(targets)
        own, error = ratio(g * target, g * g)
        rows.append(Row(f"best step size, N = d = {size}", float(eta), own, error))
        rows.append(Row(f"its loss, N = d = {size}", float(limit), *mean((own * g - target) ** 2)))
    return rows


def read_row() -> Row:
    """Step size read from the published weights, over the closed form: the one farthest from 1."""
    eta = -10 * arrays(STUDY, "weights")["w_pv"][:, -1, -1].astype(float)
    ratios = eta / arrays(STUDY, "optima")["optimum"][1]
    own = ratios[np.abs(ratios - 1).argmax()]
    return Row("claim: step size read / closed form", claim(STUDY, "eta-read")["value"], own, 1e-6)


if __name__ == "__main__":
    generator = np.random.default_rng(2)
    measured = losses(generator)
    report([*loss_rows(measured), claim_row(measured), read_row(), *optimum_rows(generator)])
