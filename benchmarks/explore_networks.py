"""Train the networks that `mesascope explore` ships: ``python benchmarks/explore_networks.py [NAME ...]``.

Published runs hold no weights, so each network is trained here, with the plan of a study's preset. A folder of
src/mesascope/explore/networks holds the weights, the config, and record.json: tasks, training, seed, algorithm, loss.
Then assets/first.json is written, with which the page answers before Python does; ``first`` as NAME writes it alone.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

import mesascope
from mesascope import learners, lenses, nets
from mesascope.explore.page import subjects
from mesascope.explore.payload import FIRST_TASKS, payload
from mesascope.explore.setup import Setup
from mesascope.records import registered, to_record
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics, LinearRegression
from mesascope.training import Training, train

FOLDER = Path(mesascope.__file__).parent / "explore" / "networks"
SIZES = {1: LinearRegression(n_context=10, d_in=1), 10: LinearRegression(x_scale=0.5)}
TASKS = 20_000
# With one input, W_KQ can score pairs by their input or by their label: both predict alike. Seed 0 found the labels,
# seed 2 the inputs, as the construction has it.
SEEDS = {"linear-1": 2, "looped-1": 2}


def regressors() -> dict[str, tuple[str, Any, Any, Any, Training, str]]:
    """Title, config, family, algorithm to tune, training plan and its source, by name."""
    presets = {name: registered("study")[name].presets["quick"] for name in ("one-step", "two-steps", "softmax")}
    one, two, soft = presets["one-step"], presets["two-steps"], presets["softmax"].two_heads
    found = {}
    for d, family in SIZES.items():
        width = d + 1
        found[f"linear-{d}"] = (
            "one linear layer", nets.TransformerConfig(width, init_scale=one.init_scale), family,
            learners.GradientDescent(1, 1.0), one.training, "one-step, preset quick",
        )  # fmt: skip
        found[f"looped-{d}"] = (
            "two looped layers", nets.TransformerConfig(width, 2, shared=True, init_scale=two.init_scale), family,
            learners.GradientDescentPlusPlus(2, 1.0, 0.01), two.training, "two-steps, preset quick",
        )  # fmt: skip
        heads = nets.TransformerConfig(width, n_heads=2, key_size=width, attention="softmax", init_scale=0.02)
        found[f"softmax-{d}"] = (
            "softmax layer of two heads", heads, family, learners.Centred(learners.GradientDescent(1, 1.0)),
            soft.training, "softmax, preset quick, two heads",
        )  # fmt: skip
    return {name: (title, nets.InContextRegressorConfig(one), *rest) for name, (title, one, *rest) in found.items()}


def predictors() -> dict[str, tuple[str, Any, Any, Any, Training, str]]:
    """The same for networks that predict sequences of two entries, which turn by an angle."""
    heads = nets.AttentionConfig(width=20, n_heads=2, positions=10, window=4, ridge=0.1)
    plain = dataclasses.replace(heads, window=None, positions=20)
    family, plan = LinearDynamics(d=2, length=32), Training(steps=1500, batch=64, learning_rate=0.01)
    found = {
        "mesa-2": ("mesa hybrid", heads, ("softmax", "mesa")),
        "softmax-2": ("two softmax layers", plain, ("softmax", "softmax")),
    }
    return {
        name: (
            title, nets.SequencePredictorConfig(nets.CausalTransformerConfig(own, 2, kinds), d=2), family,
            learners.RecursiveLeastSquares(ridge=1e-3), plan, "README, for longer",
        )
        for name, (title, own, kinds) in found.items()
    }  # fmt: skip


def make(name: str, title: str, config: Any, family: Any, algorithm: Any, plan: Training, source: str) -> None:
    seed = SEEDS.get(name, 0)
    network = train(config.build, family, plan, seeds=[seed]).member(0).requires_grad_(False)
    sequences = isinstance(family, LinearDynamics)
    if not sequences:
        algorithm = learners.tune(algorithm, family).learner
    tasks = family.sample(TASKS, stream(seed, "eval"))
    found = lenses.agreement(network, algorithm, tasks)
    network.save_pretrained(FOLDER / name)
    record = {
        "title": title, "family": to_record(family), "algorithm": _algorithm(algorithm),
        "training": to_record(plan), "plan": source, "seed": seed,
        "mse": found.mse_a.value, "algorithm mse": found.mse_b.value, "tasks": TASKS,
        "versions": {"mesascope": mesascope.__version__, "torch": torch.__version__},
        "command": f"python benchmarks/explore_networks.py {name}",
    }  # fmt: skip
    (FOLDER / name / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"{name}: mse {found.mse_a.value:.4g}, its algorithm's {found.mse_b.value:.4g}", flush=True)


def _algorithm(learner: Any) -> Any:
    if isinstance(learner, learners.Centred):
        return {"centred": to_record(learner.learner)}
    return to_record(learner)


def first() -> None:
    """Write the networks and two tasks of each as JSON, with numbers of 8 digits."""
    found = json.dumps(rounded(payload(Setup(subjects()), FIRST_TASKS)), separators=(",", ":"))
    (FOLDER.parent / "assets" / "first.json").write_text(found + "\n")


def rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: rounded(one) for name, one in found.items()}
    if isinstance(found, list):
        return [*map(rounded, found)]
    return float(f"{found:.8g}") if isinstance(found, float) else found


if __name__ == "__main__":
    known = regressors() | predictors()
    for chosen in sys.argv[1:] or known:
        if chosen != "first":
            make(chosen, *known[chosen])
    first()
