"""Settings, networks, baselines, premises and figures that the studies of linear dynamics share."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from mesascope import learners, lenses, nets, study, tasks
from mesascope.evidence.numbers import nominal
from mesascope.studies.common import plan, watch_loss
from mesascope.study import Claim, Count, Figure, Line, Reading, StageReading, Training, above, beside, ours, stage

THESIS = "von Oswald, thesis (2024), chapter 3"
LOSS = "half squared error a step"
# The regulariser of the limit: the noise's variance over the mean square of W's entries. Others must not be better.
RIDGES = {"orthogonal": 1e-3, "contracting": 2.6e-3}
FACTORS = {"a-third": 1 / 3, "threefold": 3.0}
# Step sizes that differ from the tuned ones by these factors must not be better, either.
STEPS = {"shorter": 0.9, "longer": 1.1}
# Regularisers that are tried where theory picks none.
TRIED = (1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

Several = Annotated[int, msgspec.Meta(ge=2)]
# Groups of predictors by name, the role and the label of each.
Shown = Mapping[str, tuple[Any, str]]

# How networks on constructed tokens train, and one linear layer at the paper preset.
adamw_plan = partial(plan, optimizer="adamw", weight_decay=0.1)
ONE_LAYER = adamw_plan(2500, 1e-3, batch=256)
# Settings of the quick preset of one layer.
QUICK: dict[str, Any] = {
    "training": adamw_plan(300, 5e-3, batch=32), "mesa": adamw_plan(120, 5e-2, batch=32),
    "tasks": 2_000, "tune_tasks": 1_000, "watch_tasks": 500,
}  # fmt: skip


@study.frozen
class Sequences:
    """Settings of a study of networks that predict sequences."""

    training: Training  # How the networks train.
    seeds: Count = 5  # Networks trained, one a seed.
    tasks: Several = 20_000  # Fresh sequences that networks and algorithms are compared on.
    tune_tasks: Several = 10_000  # Sequences that references are tuned on.
    watch_tasks: Several = 2_000  # Sequences of an evaluation while training.


@study.frozen
class Dynamics(Sequences):
    """Settings of a study of linear dynamics: sequences of 51 elements of width 10, and how networks train on them."""

    dynamics: Literal["orthogonal", "contracting"] = "orthogonal"  # Maps that sequences follow.

    def family(self) -> tasks.LinearDynamics:
        """The sequences: 50 steps to predict each, first elements uniform as in the authors' code."""
        return tasks.LinearDynamics(length=51, dynamics=self.dynamics, start="uniform")


@study.frozen
class Constructed(Dynamics):
    """Settings of a study of networks on tokens put together from elements."""

    init_scale: float = 0.006  # Variance of the initial weights, times depth and fan-in.
    mesa: Training = adamw_plan(2000, 1e-2, batch=128)  # How mesa layers train.

    def network(
        self,
        *channels: str,
        n_heads: int,
        n_layers: int = 1,
        attention: str = "linear",
        token_clip: float | None = None,
    ) -> Any:
        """The config of a network on tokens put together from these channels."""
        heads = nets.AttentionConfig(10 * len(channels), n_heads, key_size=20, init_scale=self.init_scale)
        transformer = nets.CausalTransformerConfig(heads, n_layers, attention, token_clip=token_clip)
        return nets.SequencePredictorConfig(transformer, 10, channels)

    def single_layer(self, n_heads: int, attention: str = "linear") -> Any:
        """The config of one layer on tokens (0, s_t, s_{t-1})."""
        return self.network("blank", "now", "before", n_heads=n_heads, attention=attention)


# Networks


def trained_networks(
    lab: study.Lab, settings: Sequences, family: Any, networks: Mapping[str, tuple[Any, Training]]
) -> dict[str, list[Any]]:
    """Trained networks by name, from the config and the training of each; the loss is logged on the same sequences."""
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    return {
        name: lab.train(name, config, family, training, watch=watched) for name, (config, training) in networks.items()
    }


def untrained(lab: study.Lab, config: Any) -> list[Any]:
    """Networks with their initial weights, one a seed."""
    return [config.build(lab.stream("untrained", index)).to(lab.device) for index in range(len(lab.seeds))]


# Baselines and comparisons


def descents(lab: study.Lab, settings: Dynamics, name: str = "gd", steps: int = 1) -> dict[str, list[Any]]:
    """Online gradient descent of so many steps, tuned, and with shorter and longer steps."""
    start = learners.OnlineGradientDescent(steps, 0.03 if steps == 1 else [0.01] * steps)
    tuned: Any = learners.tune(start, settings.family(), tasks=settings.tune_tasks, seed=lab.seed).learner
    found = {name: [tuned]}
    for word, factor in STEPS.items():
        other = copy.deepcopy(tuned)
        other.eta.data.mul_(factor)
        found[f"{name}-{word}"] = [other]
    return found


def least_squares(settings: Dynamics) -> dict[str, list[Any]]:
    """Ridge regression on all known pairs: ``limit``, with the regulariser that theory picks, and with others."""
    ridge = RIDGES[settings.dynamics]
    named = {f"limit-{word}": [learners.RecursiveLeastSquares(factor * ridge)] for word, factor in FACTORS.items()}
    return {"limit": [learners.RecursiveLeastSquares(ridge)], **named}


def tuned_ridge(
    lab: study.Lab, settings: Sequences, family: Any, features: Any = None, times: Sequence[int] | None = None
) -> Any:
    """Ridge regression, on elements or features, with the regulariser that is best on sequences of its own.

    Args:
        times: numbers of elements known at which it is judged; all if None.
    """
    drawn = lab.draw(family, settings.tune_tasks, "tune")
    known = {f"{ridge:g}": learners.RecursiveLeastSquares(ridge, features=features) for ridge in TRIED}
    errors = lenses.errors_by_time({name: [learner] for name, learner in known.items()}, drawn, times)
    return known[min(known, key=lambda name: nominal(errors["mse", name]).sum())]


def compare_predictors(
    lab: study.Lab,
    settings: Sequences,
    family: Any,
    groups: Mapping[str, Sequence[Any]],
    shown: Iterable[str],
    against: Sequence[str] = (),
    kind: str = "",
) -> Any:
    """Stage ``comparison`` of all groups, ``by-time`` of those that are shown; return the sequences of both."""
    fresh = lab.draw(family, settings.tasks, "eval")
    lab.stage(f"{kind}comparison", lenses.measure_predictors, groups, against, fresh)
    lab.stage(f"{kind}by-time", lenses.errors_by_time, {name: groups[name] for name in shown}, fresh)
    return fresh


def kept_products(network: Any, *layers: int) -> study.Arrays:
    """W_KQ and W_PV of these layers, ``(layers, heads, width, width)``."""
    products = [network.products()[layer] for layer in layers]
    arrays = {
        name: np.stack([getattr(one, name).detach().cpu().numpy() for one in products]) for name in ("w_kq", "w_pv")
    }
    axes = dict.fromkeys(arrays, "layer head row column")
    return study.Arrays({"layer": np.array(layers), **arrays}, layer="layer", **axes)


# Readings and premises


def labelled(name: str, shown: Shown, **more: str) -> StageReading:
    """A stage whose groups have the labels of figures in sentences."""
    return stage(name, **{group: label for group, (_, label) in shown.items()} | more)


def after(by_time: StageReading, *known: int) -> StageReading:
    """The part of `lenses.errors_by_time` at these numbers of known elements."""
    words = f"after {', '.join(map(str, known))} elements"
    return by_time.where(lambda cases: np.isin(cases["t"], known), words)


def joined(readings: Iterable[Reading], words: str, axis: int = 1) -> Reading:
    """Readings ``(replicates, cases)`` as one with the cases of all; along axis 0, with the replicates of all."""
    all_ = tuple(readings)
    return Reading(words, lambda results: np.concatenate([one(results) for one in all_], axis))


def ratios(comparison: StageReading, groups: Iterable[str], below: str) -> Reading:
    """Losses of several groups over that of one, ``(seeds, groups)``."""
    return beside([comparison.ratio(name, below) for name in groups], str(comparison.ratio("each kind", below)))


def each_with_each(comparison: StageReading, one: str, other: str) -> Reading:
    """Loss of every network of one group over that of every one of the other, ``(seeds of the one, of the other)``."""
    words = f"{comparison.ratio(one, other)}, each with each"
    return comparison.map(lambda found: np.true_divide.outer(found["mse", one], found["mse", other]), words)


def tuned_steps(name: str, *stages: str, least: float = 0.999) -> Claim:
    """Premise: shorter and longer steps have at least ``least`` times the loss of the tuned ones."""
    others = [stage(own).ratio(f"{name}-{word}", name) for own in stages for word in STEPS]
    sentence = f"gradient descent at 0.9 and 1.1 of the tuned step size has at least {least:g} times its loss"
    return _at_its_optimum(name, sentence, others, "loss of each other / of the tuned one", least)


def best_ridge() -> Claim:
    """Premise: the regulariser of the limit is the best."""
    others = [stage("comparison").ratio(f"limit-{word}", "limit") for word in FACTORS]
    sentence = "no other regulariser lowers the loss of ridge regression"
    return _at_its_optimum("limit", sentence, others, "loss of each other ridge / of the limit", 0.9995)


def _at_its_optimum(name: str, sentence: str, others: list[Reading], words: str, least: float) -> Claim:
    """A reference that is not at its best would flatter every network."""
    return Claim(f"{name}-at-its-optimum", sentence, joined(others, words, axis=0), above(least), ours("premise"),
                 over="algorithms", at_least=len(others), about="algorithms")  # fmt: skip


# Figures


def along(by_time: StageReading, shown: Shown, title: str = "", d: int = 10) -> study.Lines:
    """Losses of a stage of `lenses.errors_by_time`."""
    known = by_time.case("t")
    lines = [Line(known, d / 2 * by_time["mse", name], *line) for name, line in shown.items()]
    return study.Lines(title, "elements known", LOSS, lines, "y")


def losses(shown: Shown, trained: Iterable[str], source: str, claims: tuple[Claim, ...], d: int = 10) -> Figure:
    """The losses of a study, from its trainings and from stage ``by-time``.

    Args:
        trained: the groups of ``shown`` that are trained.
        source: the figures of a source that show the same, in words.
        d: width of an element.
    """
    training = [Line(stage(name)["step"], d / 2 * stage(name)["mse"], *shown[name]) for name in trained]
    return Figure(
        "losses", "Loss of a step, while training and by the number of elements known; line and band: mean and range "
        f"over seeds. {source}.",
        (study.Lines("", "training step", LOSS, training, "y"), along(stage("by-time"), shown, d=d)),
        columns=2, shared_legend=True, claims=claims,
    )  # fmt: skip


def weights_figure(caption: str, rows: int, size: tuple[float, float], claims: tuple[Claim, ...] = ()) -> Figure:
    """The products of stage ``weights``, each over its largest entry, a row a layer and product."""

    def read(r: Any) -> dict[str, np.ndarray]:
        found, named = r["weights"], {}
        for place, layer in enumerate(found["layer"]):
            for key, label in (("w_kq", "W_KQ"), ("w_pv", "W_PV")):
                for head, matrix in enumerate(found[key][place]):
                    title = f"{label}, head {head + 1}" + (f", layer {layer + 1}" if len(found["layer"]) > 1 else "")
                    named[title] = matrix / max(np.abs(matrix).max(), 1e-12)
        return named

    return Figure("weights", caption, study.Matrices(read, 1.0, rows), size=size, claims=claims)
