"""Networks, tasks and learners of the page, as JSON for its own JavaScript."""

from __future__ import annotations

from typing import Any

from mesascope.errors import refuse
from mesascope.explore.plots import SIGNS
from mesascope.explore.predicting import DISCS
from mesascope.explore.setup import LEAST_RIDGE, Setup
from mesascope.nets import Concatenated, InContextRegressor
from mesascope.tasks import LinearRegression

# Learners of the catalogue that the page's JavaScript implements.
LEARNERS = (
    "zero", "mean", "last label", "averaging", "gradient-descent", "gradient-descent-plus-plus",
    "centred gradient-descent", "ridge least-squares", "centred least-squares", "newton", "nearest-neighbours",
    *(f"{one} kernel-smoother" for one in ("gaussian", "laplace", "exponential")),
    *(f"{one} kernel-ridge" for one in ("gaussian", "laplace", "manhattan", "quadratic", "cubic")),
)  # fmt: skip
# Number of tasks per network on a saved page, and on a page that a server takes over.
TASKS, FIRST_TASKS = 5, 2


def payload(setup: Setup, tasks: int = TASKS) -> dict[str, Any]:
    """Input of the page's JavaScript.

    Args:
        tasks: number of tasks per network.
    """
    return {
        "subjects": {name: subject(setup, name, tasks) for name in setup.subjects},
        "catalogue": {name: spans(setup, name) for name in LEARNERS},
        "least_ridge": LEAST_RIDGE, "signs": [SIGNS[True], SIGNS[False]], "discs": DISCS,
    }  # fmt: skip


def subject(setup: Setup, name: str, tasks: int) -> dict[str, Any]:
    """Weights, tasks and settings of a network."""
    setup.choose(name)
    subject = setup.subject
    network, family = subject.learner, subject.family
    config: Any = getattr(getattr(network, "config", None), "transformer", None)
    plain = isinstance(network, InContextRegressor) and isinstance(network.config.layout, Concatenated) and (
        config.mlp is None and not any(config.layer_norms) and len({*config.attentions}) == 1
        and config.token_clip is None and network.w0 is None and network.embedding is None
    )  # fmt: skip
    if not plain or not isinstance(family, LinearRegression):
        remedy = "leave LEARNER out, or serve the page"
        refuse("--save", "be used with linear or softmax layers trained on linear regression", subject.title, remedy)
    layers = [
        {"w_kq": one.w_kq.double().tolist(), "w_pv": (config.damping * one.w_pv.double()).tolist()}
        for one in network.products()
    ]
    looped = config.n_layers == 1 or config.shared
    values = {key: value for key, value in setup.values.items() if key != "free"}
    algorithm = "gradient-descent-plus-plus" if subject.has_gamma else "gradient-descent"
    if subject.is_centred:
        algorithm = "centred gradient-descent"
    return {
        "title": subject.title, "titles": setup.titles, "d": subject.d_in, "looped": looped,
        "layers": layers[:1] if looped else layers, "softmax": not network.linear, "w_scale": family.w_scale,
        "algorithm": algorithm, "gamma": subject.has_gamma, "values": values,
        "tasks": [_task(setup, seed) for seed in range(tasks)],
    }  # fmt: skip


def _task(setup: Setup, seed: int) -> dict[str, Any]:
    """A task at input scale 1: inputs, labels without noise, noise of standard deviation 1, and query."""
    setup.seed = seed
    setup.values |= {"scale": 1.0, "pairs": setup.subject.most_pairs, "noise": 0.0}
    (x, y), xq, _ = setup.task()
    setup.values["noise"] = 1.0
    noise = setup.task().context.y - y
    setup.seed = 0
    return {"x": x[0].tolist(), "y": y[0, :, 0].tolist(), "noise": noise[0, :, 0].tolist(), "xq": xq[0, 0].tolist()}


def spans(setup: Setup, name: str) -> dict[str, Any]:
    free = setup.catalogue[name].free
    return {key: {"low": one.low, "high": one.high, "scale": one.scale} for key, one in free.items()}
