"""When does a layer discover gradient descent, and can one block grok it?

ICML paper: Figure 15. Tasks are noiseless linear regression with N = d = 10. One linear layer with one head, and with
two, trains at a constant learning rate from many seeds, as only a few seeds stay long on the plateau. A seed has left
it at the step at which half the mean squared error falls below 0.25. Then one block of attention and MLP trains without
weight decay on a fixed set of tasks: each seed has its own set, and every step uses all of it. The question is whether
its MLP memorises those tasks before its attention finds gradient descent.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mesascope import lenses, study
from mesascope.studies.common import converged, taking, watch_loss
from mesascope.studies.icl_gd import bugs, regression, shared
from mesascope.study import Claim, Figure, Level, Line, Lines, Mutation, Reading, Training, above, below, printed, stage

HEADS = {"one-head": 1, "two-heads": 2}
THRESHOLD = 0.25
TRAINED = ("one-head-converged", "two-heads-converged", "references-as-predicted")

block = stage("grokking", **{"own mse": "loss on own tasks"})
descent = stage("gradient-descent", **{"mse": "gradient descent's", "own mse": "gradient descent's"})


def _constant(steps: int, batch: int) -> Training:
    """Training without decay and averaging: the study asks for the state of a layer at each step."""
    return Training(steps, batch, 1e-3, "constant", clip=0.001, evaluate_every=10)


def _block_plan(steps: int) -> Training:
    return Training(steps, 8192, 3e-3, "constant", evaluate_every=10)


@study.frozen
class Block:
    """Settings of the block of attention and MLP; one batch is its whole set of tasks."""

    training: Training  # Training of the blocks.
    seeds: study.Count = 8  # Blocks trained, one per seed.
    mlp: study.Count = 16  # Hidden width of the MLP as a multiple of the token width.
    init_scale: study.Positive = 1.0  # Variance of the initial weights, times fan-in.
    tasks: study.Several = 20_000  # Fresh tasks for evaluations during training.


@study.frozen
class PhaseTransitions(regression.Regression):
    seeds: study.Count = 100  # Layers trained with one head, and with two, one per seed.
    block: Block = Block(_block_plan(1100))  # The block on a fixed set of tasks.


def measure(lab: study.Lab, settings: PhaseTransitions) -> None:
    family = settings.family()
    gd = regression.best_step(family)
    loss = watch_loss(mse=lab.draw(family, settings.sweep_tasks, "watch"))
    level, groups = {"gd mse": loss(gd)["mse"]}, {}
    for name, heads in HEADS.items():
        config = regression.network(settings, n_heads=heads, key_size=11)
        groups[name] = lab.train(name, config, family, settings.training, watch=lambda net: loss(net) | level)
        lab.stage(f"{name}-crossing", lambda name=name: _crossing(lab.run.results[name]))
    groups["gd"], same = [gd], {"x_scale": [settings.x_scale]}
    lab.stage(
        "losses", lambda: lenses.sweep(groups, family, same, tasks=settings.tasks, seed=lab.seed, device=lab.device)
    )
    lab.stage("predicted", regression.predicted, lab, settings, {"gd": gd})
    _grok(lab, settings, gd)


def _crossing(curves: Any) -> dict[str, np.ndarray]:
    """Each seed's first step below the threshold; nan if there is none."""
    below = curves["mse"] / 2 < THRESHOLD
    return {"step": np.where(below.any(axis=1), curves["step"][below.argmax(axis=1)], np.nan)}


def _grok(lab: study.Lab, settings: PhaseTransitions, gd: Any) -> None:
    """Train the blocks; save gradient descent's loss on the same fresh tasks and on each seed's own tasks."""
    block, seeds = settings.block, range(lab.seed, lab.seed + settings.block.seeds)
    pooled, watched = settings.family(pool=block.training.batch), lab.draw(settings.family(), block.tasks, "block")
    own = [pooled.seeded(seed).sample(block.training.batch, lab.stream("pool")) for seed in seeds]
    config = regression.network(settings, mlp=block.mlp, init_scale=block.init_scale)
    watches = [watch_loss(**{"mse": watched, "own mse": one}) for one in own]
    lab.train("grokking", config, pooled, block.training, seeds=seeds, watch=watches)

    def references() -> study.Arrays:
        looks = [look(gd) for look in watches]
        found = {"mse": looks[0]["mse"], "own mse": [look["own mse"] for look in looks]}
        return study.Arrays(found, **{"own mse": "seed"})

    lab.stage("gradient-descent", references)


def rise_and_fall(
    step: np.ndarray, test: np.ndarray, own: np.ndarray, limit: float, zero: float
) -> tuple[float, float, float]:
    """Rise of the loss ``test`` on its plateau, its lowest later value / ``limit``, and the delay of its fall.

    The plateau ends halfway between ``zero``, the loss of predicting 0, and ``limit``; initial losses can be far larger
    than ``zero``. The rise is relative to the lowest loss before. The delay is the step at which ``test`` has made half
    of its fall / the step at which ``own``, the loss on own tasks, is a tenth below the plateau; NaN if there is none.
    """
    low = np.minimum.accumulate(test)
    plateau = low > (min(low[0], zero) + limit) / 2
    peak = int(np.argmax(np.where(plateau, test / low, 0)))
    level = min(low[peak], zero)
    half = np.flatnonzero((test < (level + limit) / 2) & (np.arange(len(test)) > peak))
    learnt = np.flatnonzero((own < 0.9 * level) & (step > 0))
    late = step[half[0]] / step[learnt[0]] if len(half) and len(learnt) else np.nan
    return test[peak] / low[peak] - 1, test[peak:].min() / limit, float(late)


def _blocks(part: int, words: str) -> Reading:
    """One number of `rise_and_fall` for each block; ``limit`` is gradient descent's loss on the same tasks."""

    def read(r: Any) -> np.ndarray:
        run, limit = r["grokking"], float(r["gradient-descent"]["mse"])
        pairs = zip(run["mse"], run["own mse"], strict=True)
        return np.array([rise_and_fall(run["step"], *pair, limit, regression.ZERO)[part] for pair in pairs])

    return Reading(words, read)


def _crossings(r: Any) -> tuple[np.ndarray, ...]:
    """Crossing steps of the seeds for each number of heads; all nan if no seed crosses.

    Seeds that do not cross count as crossing at the last step, which underestimates how late they are.
    """
    found = [(r[f"{name}-crossing"]["step"], r[name]["step"][-1]) for name in HEADS]
    return tuple(np.where(np.isnan(step), np.nan if np.isnan(step).all() else last, step) for step, last in found)


def _middle(steps: np.ndarray, axis: int, share: float) -> np.ndarray:
    """Range of the middle ``share`` of the seeds; at least 10 steps, the interval between evaluations."""
    return np.maximum(np.subtract(*np.quantile(steps, [0.5 + share / 2, 0.5 - share / 2], axis)), 10)


def _late(steps: np.ndarray, axis: int) -> np.ndarray:
    """Share of seeds that cross later than twice the median step."""
    return np.mean(steps > 2 * np.median(steps, axis, keepdims=True), axis)


def _reached(r: Any) -> np.ndarray:
    """Loss over gradient descent's, for one-head layers that left their plateau and all two-head layers."""
    arrived = ~np.isnan(r["one-head-crossing"]["step"])
    return np.concatenate([r["losses"].ratio("one-head", "gd")[arrived], r["losses"].ratio("two-heads", "gd")])


def _margins(r: Any) -> np.ndarray:
    """Distance of half the loss above 0.25 before the crossing, and below 0.25 at it: ``(networks, 2)``."""
    rows = []
    for name in HEADS:
        step, loss, crossing = r[name]["step"], r[name]["mse"] / 2, r[f"{name}-crossing"]["step"][:, None]
        before = np.where(step < np.nan_to_num(crossing, nan=np.inf), loss, 1.0).min(axis=1)
        rows.append([before - 0.25, 0.25 - np.where(step == crossing, loss, 0.0).max(axis=1)])
    return np.concatenate(rows, axis=1).T


def _of_curves(r: Any) -> np.ndarray:
    """(Loss / gradient descent's) on fresh tasks / the same ratio at the end of the curve, ``(seeds, 2)``."""
    fresh = [study.nominal(r["losses"].ratio(name, "gd"))[:, 0] for name in HEADS]
    ends = [r[name]["mse"][:, -1] / r[name]["gd mse"][:, -1] for name in HEADS]
    return (np.stack(fresh) / np.stack(ends)).T


# Claims about the steps at which layers of one head and of two leave their plateau, and about blocks.
_over_heads = partial(Claim, quantifier="bootstrap")
_of_blocks = partial(
    Claim, quantifier="median", premises=("block-learns",), unlike="settings of the block that the paper does not state"
)


def _heads(name: str) -> Lines:
    run = stage(name)
    levels = [Level(THRESHOLD, "limit", "threshold"), Level(run["gd mse"] / 2, "gd", "gradient descent")]
    return Lines(
        f"Each seed, {name.replace('-', ' ')}", "training step", shared.HALF_MSE,
        [Line(run["step"], run["mse"] / 2, "trained", each=True), *levels], limits={"ylim": (0.18, 0.5)},
    )  # fmt: skip


def _arrivals(r: Any) -> list[Line]:
    lines = []
    for name, role in (("one-head", "trained"), ("two-heads", "gd++")):
        arrived = np.sort(r[f"{name}-crossing"]["step"])  # nan, for seeds that never arrive, comes last
        share = np.arange(1, len(arrived) + 1) / len(arrived)
        lines.append(Line(arrived, share, role, name.replace("-", " "), marks="."))
    return lines


TRANSITIONS = Figure(
    "transitions", "Losses on held-out tasks while training, each seed. Paper: Fig. 15 left and centre.",
    tuple(map(_heads, HEADS)), share_y=True, claims=(
        Claim("reaches-gd", "layers of two heads, and those of one that have left their plateau, end within 3 % of "
              "gradient descent's loss", Reading("loss of trained / of gradient descent", _reached),
              study.two_sided(0.03), printed("Fig. 15 left and centre"), over="learners", at_least=10),
    ),
)  # fmt: skip

ARRIVALS = Figure(
    "arrivals", "Share of seeds whose half loss has fallen below 0.25, by step. Paper: Fig. 15 left and centre.",
    (Lines("", "training step", "share of seeds", _arrivals),), claims=(
        Claim("two-heads-all-arrive", "more than nine in ten layers of two heads leave their plateau",
              stage("two-heads-crossing")["step"].map(lambda step: ~np.isnan(step), "share of seeds that do"),
              above(0.9), printed("Fig. 15 centre: fast and robust convergence"), quantifier="share", at_least=10),
        _over_heads("late-seeds", "a larger share of seeds with one head than with two leaves the plateau later than "
                    "twice the median step",
                    Reading("share of such seeds with one head - with two", _crossings),
                    above(0.0, by="paper"), printed("Fig. 15 left: very long initial phases for some seeds"),
                    statistic=lambda one, two, axis=-1: _late(one, axis) - _late(two, axis)),
        _over_heads("spread-shrinks", "the range of the middle nine tenths of the steps at which half the loss falls "
                    "below 0.25 is larger with one head than with two",
                    Reading("log2 of one head's range over two heads'", _crossings), above(0.0),
                    printed("Fig. 15 left and centre"),
                    statistic=lambda one, two, axis=-1: np.log2(_middle(one, axis, 0.9) / _middle(two, axis, 0.9)),
                    former="of standard deviations, three times as large, held"),
        _over_heads("middle-half-shrinks", "the interquartile range of the step at which half the loss falls below "
                    "0.25 is at least three times as large with one head as with two",
                    Reading("log2 of one head's interquartile range over two heads'; 1.58 is three times", _crossings),
                    above(np.log2(3.0).item()), study.ours("late seeds decide spread-shrinks"),
                    statistic=lambda one, two, axis=-1: np.log2(_middle(one, axis, 0.5) / _middle(two, axis, 0.5))),
        _over_heads("two-heads-arrive", "the median step at which half the loss falls below 0.25 is earlier with two "
                    "heads than with one",
                    Reading("median step of two heads / of one", _crossings), below(1.0),
                    printed("Fig. 15 left and centre"),
                    statistic=lambda one, two, axis=-1: np.median(two, axis) / np.median(one, axis)),
    ),
)  # fmt: skip

GROKKING = Figure(
    "grokking", "One block of attention and MLP on a fixed set of tasks, each seed. Paper: Fig. 15 right.", (
        Lines(
            "", "training step", shared.HALF_MSE, [
                Line(block["step"], block["own mse"] / 2, "other", "its own tasks", each=True),
                Line(block["step"], block["mse"] / 2, "trained", "fresh tasks", each=True),
                Level(descent["mse"] / 2, "gd", "gradient descent, the same fresh tasks"),
                Level(descent["own mse"] / 2, "limit", "gradient descent, the blocks' tasks"),
            ], limits={"ylim": (0.15, 0.6)},
        ),
    ), claims=(
        Claim("block-learns", "blocks end at most 20 % above gradient descent's loss on the tasks that they trained on",
              block["own mse"].at((..., -1), "at the end") / descent["own mse"], below(1.2), study.ours("premise"),
              quantifier="median", premises=("references-as-predicted",)),
        _of_blocks("test-rises", "on the plateau the loss on fresh tasks rises by more than 5 % above its lowest value "
                   "before", _blocks(0, "largest rise"), above(0.05), printed("Fig. 15 right"),
                   former="with a plateau that ended halfway from the initial loss, failed"),
        _of_blocks("test-falls", "after the plateau, the loss on fresh tasks falls to within 10 % of gradient "
                   "descent's on the same tasks", _blocks(1, "lowest loss after the rise / gradient descent's"),
                   study.two_sided(0.1), printed("Fig. 15 right")),
        _of_blocks("test-ends", "at the end, the loss on fresh tasks is within 10 % of gradient descent's on the same "
                   "tasks", block["mse"].at((..., -1), "at the end") / descent["mse"], study.two_sided(0.1),
                   printed("Fig. 15 right: almost matching")),
        _of_blocks("test-falls-late", "the loss on fresh tasks takes at least twice as many steps to half of its fall "
                   "as the loss on the block's own tasks takes to a tenth",
                   _blocks(2, "ratio of the two steps"), above(2.0), printed("Fig. 15 right"),
                   former="counted from the initial loss, undecided"),
    ),
)  # fmt: skip


def _exchanged(sweep: Any) -> Any:
    """Exchange layers with one head and layers with two."""
    turned = dict(zip(HEADS, reversed(HEADS), strict=True))
    return lambda groups, *rest, **options: sweep(
        {name: groups[turned.get(name, name)] for name in groups}, *rest, **options
    )


STUDY = study.Study(
    name="phase-transitions",
    source=f"{regression.PAPER}: Fig. 15",
    presets={
        "quick": PhaseTransitions(
            _constant(1500, 512), seeds=10, sweep_tasks=1000, block=Block(_block_plan(700), tasks=2000)
        ),
        "paper": PhaseTransitions(_constant(2500, 2048), sweep_tasks=2000),
    },
    measure=measure,
    trainings=3,
    premises=TRAINED,
    claims=(
        *(converged(name, id=f"{name}-converged", at_least=10, each=False) for name in HEADS),
        shared.as_predicted(("gd",)),
        Claim("crossings", "control: each half loss is at least 0.25 before the step at which it crosses 0.25, and "
              "smaller at that step",
              Reading("half loss before the crossing - 0.25; 0.25 - half loss at it", _margins), above(0.0),
              study.ours("control: crossings are read off the curves"), quantifier="exact", at_least=10,
              exact_because="they are read off the same curves", about="algorithms"),
        Claim("networks-of-curves", "control: each layer's loss over gradient descent's, on fresh tasks, is within 5 "
              "% of the same ratio at the end of its training curve",
              Reading("loss over gradient descent's, on fresh tasks / at the end of the curve", _of_curves),
              study.two_sided(0.05), study.ours("control: each curve is that of its network"), quantifier="exact",
              at_least=10, exact_because="errors of the losses are far below the bound",
              about="algorithms", former="of the median, which exchanged networks also satisfied, held"),
    ),
    figures=(TRANSITIONS, ARRIVALS, GROKKING),
    deviations=(
        "A hundred seeds train for 2,500 steps in place of ten for 5,000: late arrivals are rare.",
        shared.CLIPPED, shared.INPUTS, shared.INITIAL,
        "The paper does not give the block's settings: the width of its MLP, its initial scale and learning rate "
        "were searched for those that grok most.",
    ),
    mutations=(
        bugs.HALF_STEP, bugs.LEAK, bugs.FIRST_HEAD,
        Mutation("losses are not halved before the threshold", f"{__name__}:_crossing",
                 lambda crossing: lambda curves: crossing({"step": curves["step"], "mse": 2 * curves["mse"]})),
        Mutation("crossings are counted an evaluation late", f"{__name__}:_crossing", lambda crossing: lambda curves: {
                 "step": crossing(curves)["step"] + np.diff(curves["step"])[0]}),
        Mutation("layers of one head and of two are exchanged", "mesascope.lenses:sweep", _exchanged),
        Mutation("blocks' own tasks and fresh tasks are exchanged", f"{__name__}:watch_loss",
                 lambda watch: lambda **own: watch(**dict(zip(reversed(own), own.values(), strict=True))), anew=True),
        Mutation("own tasks of blocks are those of the next seed", "mesascope.studies.lab:Lab.train",
                 taking("watch", lambda watch: [*watch[1:], watch[0]] if isinstance(watch, list) else watch),
                 anew=True),
    ),
    mutated={
        "training": Training(100, 128, 1e-2, "constant", clip=0.001, evaluate_every=10), "init_scale": 0.01,
        "tasks": 20_000, "sweep_tasks": 10_000, "tune_tasks": 3000,
        "block": Block(Training(160, 256, 2e-2, "constant", evaluate_every=10), tasks=200),
    },
)  # fmt: skip
