"""Does a network whose tokens alternate between inputs and targets first learn to copy, and then to descend?

ICML paper: Figure 5. Tasks are noiseless linear regression with N = d = 10. Two layers, softmax and then linear, read
x_1, y_1, x_2, y_2, ..., each beside a sinusoidal position, and are compared with one and with two steps of gradient
descent. A control has a linear first layer, and one linear layer on ready tokens (x, y) shows how much longer the
others take.

Except in preset ``thesis``, initial weights have the variance 1 / (depth * fan-in), 50 times that of the authors'
code. With 0.002 / (depth * fan-in), no seed had left the initial plateau after 2,500 steps at three times the
authors' learning rate.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mesascope import learners, lenses, nets, study, tasks
from mesascope.studies.common import converged, plan
from mesascope.studies.icl_gd import bugs, regression, shared
from mesascope.studies.icl_gd.regression import SecondTraining, authors_plan, watch_alignment
from mesascope.study import Claim, Figure, Level, Line, Lines, Reading, Study, above, ours, printed, stage, two_sided

FIRST_LAYERS = ("softmax", "linear")
PROBED = 16
PREMISES = ("softmax-converged", "no-worse-than-zero", "references-as-predicted")
DESCENDS = (*PREMISES, "one-step")

main, run = stage("softmax-comparison", **{"two-steps": "two steps"}), stage("softmax")


@study.frozen
class Copying(regression.Regression):
    ready: SecondTraining = SecondTraining(plan(1500, 1e-3, clip=10.0, evaluate_every=20))
    """Training of the layer on tokens (x, y)."""
    positions: study.Count = 10  # Width of position encodings.


def measure(lab: study.Lab, settings: Copying) -> None:
    family, layout = settings.family(), nets.Alternating("sinusoidal", size=settings.positions)
    gd = regression.best_step(family)
    two = regression.tuned(lab, settings, learners.GradientDescent(2, 1.0)).learner
    fresh = lab.draw(family, settings.tasks, "eval")
    watched = lab.draw(family, settings.sweep_tasks, "watch")
    aligned, probed = watch_alignment({"gd": gd, "zero": learners.Zero()}, watched), watched.part(0, PROBED)

    def look(net: Any) -> dict[str, float]:
        row = aligned(net)
        return row | {"capped mse": min(row["mse"], row["zero mse"])} | _reads(net, probed)

    for first in FIRST_LAYERS:
        layers = nets.TransformerConfig(
            layout.width(10, 1), n_layers=2, attention=(first, "linear"), init_scale=settings.init_scale
        )
        config = nets.InContextRegressorConfig(layers, layout)
        trained = lab.train(first, config, family, settings.training, watch=look)
        groups = {"trained": trained, "gd": [gd], "two-steps": [two]}
        lab.stage(f"{first}-comparison", lenses.measure_learners, groups, ["gd", "two-steps"], fresh)
    one = regression.network(settings, init_scale=settings.ready.init_scale)
    lab.train("ready", one, family, settings.ready.training, watch=aligned)
    lab.stage("predicted", regression.predicted, lab, settings, {"gd": gd, "two-steps": two})


def _reads(net: Any, episodes: tasks.Episode) -> dict[str, float]:
    """Mean sensitivity of input tokens after the first layer to themselves, the next token, and each other token."""
    norms = lenses.token_sensitivity(net, episodes)
    rows = range(0, norms.shape[0], 2)
    own, following = (float(np.mean([float(norms[row, row + shift]) for row in rows])) for shift in (0, 1))
    total = float(norms[list(rows)].sum()) / len(rows)
    return {"own": own, "next": following, "others": (total - own - following) / (norms.shape[0] - 2)}


def fall_made(run: Any) -> np.ndarray:
    """Fall of the loss, by seed and evaluation: 0 at the loss of predicting 0, 1 at gradient descent's."""
    return (run["zero mse"] - run["mse"]) / (run["zero mse"] - run["gd mse"])


def copying_before(run: Any, share: float = 0.05) -> np.ndarray:
    """Each seed's largest sensitivity to the next token / to each other token, while `fall_made` is below ``share``."""
    before = np.logical_and.accumulate(fall_made(run) < share, axis=1)
    return np.where(before, run["next"] / run["others"], 0.0).max(axis=1)


def _gain(run: Any) -> np.ndarray:
    """Log2, for each seed, of the growth of the ratio in `copying_before` until nine tenths of the loss's fall.

    It is 0 for a seed without such a fall, or without an evaluation before the fall.
    """
    fallen, before = fall_made(run) > 0.9, copying_before(run)
    first = fallen.argmax(1)[:, None]
    late = np.take_along_axis(np.where(fallen, run["next"] / run["others"], 0.0), first, 1)[:, 0]
    both = (late > 0) & (before > 0)
    return np.log2(np.where(both, late, 1.0) / np.where(both, before, 1.0))


def _arrivals(r: Any) -> tuple[np.ndarray, ...]:
    """Each seed's first step with half of the fall made, or the last step, for alternating and for (x, y) tokens."""
    done = [(r[name]["step"], fall_made(r[name]) > 0.5) for name in ("softmax", "ready")]
    return tuple(np.where(half.any(1), step[half.argmax(1)], step[-1]) for step, half in done)


def _spread(steps: np.ndarray, axis: int) -> np.ndarray:
    """Interquartile range over the median."""
    low, middle, high = np.quantile(steps, (0.25, 0.5, 0.75), axis)
    return (high - low) / middle


def _together(first: str, r: Any) -> list[Line]:
    """One line per seed: ratio of sensitivities against `fall_made`, in the order of evaluations."""
    made, ratio = np.clip(fall_made(r[first]), -0.2, 1.1), r[first]["next"] / r[first]["others"]
    return [Line(*pair, "trained", marks=".-") for pair in zip(made, ratio, strict=True)]


def _figure(first: str, *claims: Claim) -> Figure:
    logged = stage(first)
    capped = logged.map(lambda run: np.minimum(run["mse"] / 2, 0.6 * float(run["zero mse"].mean())), "capped")
    loss = [
        Line(logged["step"], capped, "trained", f"{first}, then linear", each=True),
        Level(logged["gd mse"] / 2, "gd", "one step of gradient descent"),
        Level(logged["zero mse"] / 2, "limit", "zero prediction"),
    ]
    reads = {"own": ("limit", "itself"), "next": ("trained", "the next token"), "others": ("gd", "each other")}
    return Figure(
        first, f"Alternating tokens, {first} first layer. Left: each seed, cut at 1.2 times the zero prediction's "
        "loss; centre: mean and range over seeds; right: each seed, evaluations in order. Paper: Fig. 5.",
        (
            Lines("", "training step", shared.HALF_MSE, loss),
            study.curves(logged, reads, "norm of the first layer's derivatives by", log="y"),
            Lines("", "share of the fall made", "next token / each other", partial(_together, first), "y"),
        ), claims=claims,
    )  # fmt: skip


SOFTMAX = _figure(
    "softmax",
    Claim("one-step", "the median loss is within 10 % of that of one step of gradient descent",
          main.ratio("trained", "gd"), two_sided(0.1), printed("Fig. 5 left"), quantifier="median",
          former="each of five losses, held"),
    Claim("not-two-steps", "the median loss is more than 10 % above that of two tuned steps of gradient descent",
          main.ratio("trained", "two-steps"), above(1.1), printed("Fig. 5 left"), quantifier="median",
          premises=DESCENDS, former="each of five losses, held"),
    Claim("copies-first", "before the loss has made 5 % of its fall, the first layer is more than 5 times as sensitive "
          "to the next token as to other tokens",
          run.map(copying_before, "largest ratio of the two sensitivities until then"), above(5.0),
          printed("Fig. 5 right"), quantifier="median", premises=DESCENDS, former="before half of the fall, held"),
    Claim("copies-while-falling", "the first layer's sensitivity to the next token, relative to other tokens, more "
          "than doubles between the start and the end of the loss's fall",
          run.map(_gain, "log2(ratio of the two sensitivities when nine tenths of the fall are made / largest before "
                  "a twentieth of it)"), above(1.0), ours("copying and descent rise together"), quantifier="median",
          premises=DESCENDS, former="with the largest ratio after nine tenths, held"),
    Claim("order-of-magnitude", "the median number of steps to half of the loss's fall is more than ten times that of "
          "one layer whose tokens hold x and y together",
          Reading("median step of alternating / of ready tokens", _arrivals),
          above(10.0, by="paper"), printed("Fig. 5 left: an order of magnitude longer"), quantifier="bootstrap",
          premises=DESCENDS, former="a ratio of means, undecided",
          statistic=lambda alternating, ready, axis=-1: np.median(alternating, axis) / np.median(ready, axis)),
    Claim("seeds-vary", "the interquartile range over seeds of the number of steps to half of the loss's fall is more "
          "than a tenth of the median", Reading("distance of the quartiles / median", _arrivals),
          above(0.1), printed("section 4: highly variant training speeds"), quantifier="bootstrap", premises=DESCENDS,
          statistic=lambda alternating, ready, axis=-1: _spread(alternating, axis),
          former="standard deviation / mean, undecided"),
)  # fmt: skip

LINEAR = _figure(
    "linear",
    Claim("linear-fails", "with a linear first layer each loss stays more than 10 % above that of one gradient step",
          stage("linear-comparison").ratio("trained", "gd"), above(1.1), printed("section 4"),
          premises=("linear-converged", "references-as-predicted", "one-step")),
)  # fmt: skip

STUDY = Study(
    name="copying",
    source=f"{regression.PAPER}: Fig. 5",
    presets={
        "quick": Copying(
            plan(1400, 6e-3, batch=512, decay_from=0.5, clip=1.0, evaluate_every=20), init_scale=1.0,
            sweep_tasks=500, tune_tasks=2000,
            ready=SecondTraining(plan(600, 6e-3, batch=512, clip=1.0, evaluate_every=20)),
        ),
        "paper": Copying(plan(15_000, 1e-3, clip=10.0, evaluate_every=150), init_scale=1.0, seeds=20),
        "thesis": Copying(
            authors_plan(10_000, learning_rate=1e-3, clip=10.0), init_scale=0.02, seeds=20, positions=20,
            ready=SecondTraining(authors_plan(5000, learning_rate=1e-3, clip=0.001, evaluate_every=20)),
        ),
    },
    measure=measure,
    trainings=3,
    premises=PREMISES,
    claims=(
        # Without the cap, initial losses of thousands would make any training look converged.
        *(converged(first, quantity="capped mse", id=f"{first}-converged", each=False, former=former)
          for first, former in zip(FIRST_LAYERS, ("of each network, held", "of each network, failed"), strict=True)),
        Claim("no-worse-than-zero", "each network with a softmax first layer has a loss at most a tenth above that of "
              "predicting zero",
              main["mse", "trained"] / run["zero mse"].at((..., -1), "zero prediction"), study.below(1.1),
              ours("premise")),
        shared.as_predicted(("gd", "two-steps")),
    ),
    figures=(SOFTMAX, LINEAR),
    unlike=dict.fromkeys(("quick", "paper"), "initial weights of a fiftieth of the variance"),
    deviations={
        "paper": (
            "Twenty networks train for 15,000 steps in place of five for 10,000, as quartiles need twenty.",
            "Initial weights have 50 times the variance of the authors' code, from which no seed left the plateau in "
            "time; those of the layer on ready tokens have the variance of that code.",
            "Position encodings have a width of 10, as in the authors' code; the text has 20.",
            shared.AVERAGED, shared.INPUTS,
        ),
        "thesis": (
            "Twenty networks train in place of five, as quartiles need twenty.",
            "Position encodings have a width of 20, as in the text; the authors' code has 10.",
            "Initial weights have a variance of 0.02 over depth and fan-in, as in the authors' code; the text has a "
            "standard deviation of 0.002 over depth.",
            "Gradients of the layer on ready tokens are clipped at 0.001, as in the authors' code; the text has 10.",
            shared.INPUTS, shared.ADAM,
        ),
    },
    mutations=(
        bugs.HALF_STEP, bugs.TWICE_STEP, bugs.FEWER_STEPS, bugs.SHIFTED_TARGETS, bugs.NOISY, bugs.LEAK,
        bugs.UNNORMALISED,
    ),
    mutated={
        "training": plan(500, 6e-3, batch=128, decay_from=0.5, clip=1.0, evaluate_every=100), "tasks": 8000,
        "sweep_tasks": 2000, "ready": SecondTraining(plan(50, 6e-3, batch=128, clip=1.0)),
    },
)  # fmt: skip
