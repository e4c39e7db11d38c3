"""Settings, networks, baselines, probes, premises and figures that the studies of linear dynamics share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from mesascope import constructions, learners, lenses, nets, study, tasks
from mesascope.studies.common import plan, thesis_plan, watch_loss
from mesascope.study import Claim, Figure, Line, Reading, StageReading, Training, above, below, beside, ours, stage
from mesascope.text import percent_text

if TYPE_CHECKING:
    from mesascope.nets.predictor import Channel

THESIS = "von Oswald, thesis (2024), chapter 3"
LOSS = "half squared error a step"
# Ridge of the limit: variance of the noise / mean square of W's entries. Other ridges must not be better.
RIDGES = {"orthogonal": 1e-3, "contracting": 2.6e-3}
FACTORS = {"a-third": 1 / 3, "threefold": 3.0}
# Step sizes that differ from the tuned ones by these factors must not be better.
STEPS = {"shorter": 0.9, "longer": 1.1}
# Ridges to try if theory does not give the best one.
TRIED = (1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

# Role and label of each group of predictors, by name.
Shown = Mapping[str, tuple[Any, str]]

# Training of networks on constructed tokens, and of one linear layer at the paper preset.
adamw_plan = partial(plan, optimizer="adamw", weight_decay=0.1)
ONE_LAYER = adamw_plan(2500, 1e-3, batch=256)
ONE_LAYER_AS_PRINTED: dict[str, Any] = {
    "training": thesis_plan(2500, learning_rate=2e-4), "mesa": thesis_plan(4500, learning_rate=4e-4),
}  # fmt: skip
# Deviations; `CLIPPED` is of preset `thesis` alone.
FROM_CODE = "First elements are U(-1, 1), as in the authors' code; von Oswald (2024) has N(0, I)."
CLIPPED = "The norm of gradients is clipped at 1, not their entries."
PROBED = "Probes are of A_t^{-1} s_t itself, with a regulariser of 0.1, not of a Chebyshev approximation."
EACH = "Claims are about each network, layer and number of elements, where the thesis shows means over five seeds."
_PRODUCTS = ("w_kq", "w_pv")
# Numbers of known elements at which networks are probed, and the regulariser of the preconditioned input. With a
# smaller one, a few sequences would dominate: those with an element almost outside the span of the elements before.
TIMES, REGULARISER = (10, 20, 40), 0.1
# Errors of ridge regression on orthogonal maps, by group and number of known elements, in a simulation.
ON_ORTHOGONAL = {"limit": {11: 8.62e-4, 50: 1.234e-4}}
# Settings of the quick preset of one layer.
QUICK: dict[str, Any] = {
    "training": adamw_plan(300, 5e-3, batch=32), "mesa": adamw_plan(120, 5e-2, batch=32),
    "tasks": 2_000, "tune_tasks": 1_000, "watch_tasks": 500,
}  # fmt: skip


@study.frozen
class Sequences:
    training: Training  # Training of the networks.
    seeds: study.Count = 5  # Networks trained, one per seed.
    tasks: study.Several = 20_000  # Fresh sequences for comparing networks and algorithms.
    tune_tasks: study.Several = 10_000  # Sequences for tuning references.
    watch_tasks: study.Several = 2_000  # Sequences for evaluations during training.


@study.frozen
class Dynamics(Sequences):
    dynamics: Literal["orthogonal", "contracting"] = "orthogonal"  # Maps that sequences follow.

    def family(self) -> tasks.LinearDynamics:
        """Sequences of 51 elements of width 10; first elements are uniform, as in the authors' code."""
        return tasks.LinearDynamics(length=51, dynamics=self.dynamics, start="uniform")


@study.frozen
class Constructed(Dynamics):
    init_scale: float = 0.006  # Variance of the initial weights, times depth and fan-in.
    mesa: Training = adamw_plan(2000, 1e-2, batch=128)  # Training of mesa layers.

    def network(
        self,
        *channels: Channel,
        n_heads: int,
        n_layers: int = 1,
        attention: str = "linear",
        normalise: bool | None = None,
        **options: Any,
    ) -> Any:
        """Config of a network whose tokens are these channels side by side."""
        heads = nets.AttentionConfig(
            10 * len(channels), n_heads, key_size=20, normalise=normalise, init_scale=self.init_scale
        )
        transformer = nets.CausalTransformerConfig(heads, n_layers, attention, **options)
        return nets.SequencePredictorConfig(transformer, 10, channels)


@study.frozen
class SingleLayers(Constructed):
    added: ClassVar[dict[str, bool]] = {"normalise_keys": True}
    normalise_keys: bool = False  # Mesa layers divide keys and queries by their L2 norms.

    def linear_layer(self, n_heads: int) -> Any:
        """Config of one linear layer on tokens (0, s_t, s_{t-1})."""
        return self.network("blank", "now", "before", n_heads=n_heads)

    def mesa_layer(self, normalise_keys: bool | None = None) -> Any:
        """Config of one mesa layer of four heads; if ``normalise_keys`` is None, the setting applies."""
        own = self.normalise_keys if normalise_keys is None else normalise_keys
        return self.network("blank", "now", "before", n_heads=4, attention="mesa", normalise=own)


@study.frozen
class Probing:
    probe_tasks: Annotated[int, msgspec.Meta(ge=4)] = 4_000  # Sequences for fitting and judging probes.


# Networks


def trained_networks(
    lab: study.Lab, settings: Sequences, family: Any, networks: Mapping[str, tuple[Any, Training]]
) -> dict[str, list[Any]]:
    """Train networks; ``networks`` has the config and the training of each by name."""
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    return {name: lab.train(name, one, family, training, watch=watched) for name, (one, training) in networks.items()}


# Baselines and comparisons


def descents(lab: study.Lab, settings: Dynamics, name: str = "gd", steps: int = 1) -> dict[str, list[Any]]:
    """Tuned online gradient descent of ``steps`` steps, and the same with shorter and longer steps."""
    start = learners.OnlineGradientDescent(steps, 0.03 if steps == 1 else [0.01] * steps)
    tuned: Any = learners.tune(start, settings.family(), tasks=settings.tune_tasks, seed=lab.seed).learner
    scaled = {word: (factor * tuned.eta.detach()).tolist() for word, factor in STEPS.items()}
    others = {f"{name}-{word}": [learners.OnlineGradientDescent(steps, eta)] for word, eta in scaled.items()}
    return {name: [tuned]} | others


def least_squares(settings: Dynamics) -> dict[str, list[Any]]:
    """Ridge regressions on all known pairs: ``limit`` with the ridge of theory, others with multiples of it."""
    ridge = RIDGES[settings.dynamics]
    named = {f"limit-{word}": [learners.RecursiveLeastSquares(factor * ridge)] for word, factor in FACTORS.items()}
    return {"limit": [learners.RecursiveLeastSquares(ridge)], **named}


def built_mesa_layer(lab: study.Lab, settings: Dynamics) -> Any:
    """Mesa layer built to run ridge regression, with the best ridge in theory (`RIDGES`)."""
    built, _ = constructions.mesa_least_squares(settings.family().d, RIDGES[settings.dynamics])
    return built.float().to(lab.device)


def tuned_ridge(
    lab: study.Lab, settings: Sequences, family: Any, features: Any = None, times: Sequence[int] | None = None
) -> Any:
    """Ridge regression on elements or features, with the ridge of smallest total error at ``times`` (all if None)."""
    drawn = lab.draw(family, settings.tune_tasks, "tune")
    known = {f"{ridge:g}": learners.RecursiveLeastSquares(ridge, features=features) for ridge in TRIED}
    errors = lenses.errors_by_time({name: [learner] for name, learner in known.items()}, drawn, times)
    return known[min(known, key=lambda name: study.nominal(errors["mse", name]).sum())]


def compare_predictors(
    lab: study.Lab,
    settings: Sequences,
    family: Any,
    groups: Mapping[str, Sequence[Any]],
    shown: Iterable[str],
    against: Sequence[str] = (),
    kind: str = "",
) -> Any:
    """Compute stages ``comparison`` (all groups) and ``by-time`` (groups in ``shown``); return their sequences."""
    fresh = lab.draw(family, settings.tasks, "eval")
    lab.stage(f"{kind}comparison", lenses.measure_predictors, groups, against, fresh)
    lab.stage(f"{kind}by-time", lenses.errors_by_time, {name: groups[name] for name in shown}, fresh)
    return fresh


def kept_products(network: Any, *layers: int) -> study.Arrays:
    """W_KQ and W_PV of these layers, ``(layers, heads, width, width)``."""
    products = [network.products()[layer] for layer in layers]
    w_kq, w_pv = (np.stack([getattr(one, name).detach().cpu().numpy() for one in products]) for name in _PRODUCTS)
    axes = dict.fromkeys(_PRODUCTS, "layer head row column")
    return study.Arrays({"layer": np.array(layers), "w_kq": w_kq, "w_pv": w_pv}, layer="layer", **axes)


# Readings and premises


def labelled(name: str, shown: Shown, **more: str) -> StageReading:
    """Stage whose readings name groups by their figure labels."""
    return stage(name, **{group: label for group, (_, label) in shown.items()} | more)


def after(by_time: StageReading, *known: int) -> StageReading:
    """Part of a stage of `lenses.errors_by_time` at these numbers of known elements."""
    words = f"after {', '.join(map(str, known))} elements"
    return by_time.where(lambda cases: np.isin(cases["t"], known), words)


def ratios(comparison: StageReading, groups: Iterable[str], below: str) -> Reading:
    """Losses of several groups / loss of ``below``, ``(seeds, groups)``."""
    return beside([comparison.ratio(name, below) for name in groups], str(comparison.ratio("each kind", below)))


def each_with_each(comparison: StageReading, one: str, other: str) -> Reading:
    """Loss of every network of ``one`` / every network of ``other``, ``(seeds of one, seeds of other)``."""
    words = f"{comparison.ratio(one, other)}, all pairs of networks"
    return comparison.map(lambda found: np.true_divide.outer(found["mse", one], found["mse", other]), words)


def tuned_steps(name: str, *stages: str, least: float = 0.999, former: str = "") -> Claim:
    """Premise: shorter and longer steps have at least ``least`` times the loss of the tuned ones."""
    others = [stage(own).ratio(f"{name}-{word}", name) for own in stages for word in STEPS]
    sentence = f"gradient descent at 0.9 and 1.1 of the tuned step size has at least {least:g} times its loss"
    return _at_its_optimum(name, sentence, others, "loss of each other / of the tuned one", least, former)


def best_ridge() -> Claim:
    """Premise: the ridge of the limit is the best."""
    others = [stage("comparison").ratio(f"limit-{word}", "limit") for word in FACTORS]
    sentence = "ridge regression with a third and with three times the ridge has at least 0.9995 times the loss"
    return _at_its_optimum("limit", sentence, others, "loss with another ridge / with the limit's", 0.9995)


def _at_its_optimum(
    name: str, sentence: str, others: list[Reading], words: str, least: float, former: str = ""
) -> Claim:
    """Premise: a reference has its best parameter; with another, every network would look better than it is."""
    ratios = beside(others, words).map(np.ravel, words)
    return Claim(f"{name}-at-its-optimum", sentence, ratios, above(least), ours("premise"), over="algorithms",
                 at_least=len(others), former=former)  # fmt: skip


def simulated_ridge(simulated: Mapping[str, Mapping[int, float]] = ON_ORTHOGONAL, within: float = 0.2) -> Claim:
    """Control: errors of ridge regression agree with those of an independent simulation of 10,000 sequences.

    ``simulated`` has the errors of each group by the number of known elements; ``within`` is the relative difference
    allowed.
    """
    by_time = labelled("by-time", {"limit": ("limit", "ridge regression")}, mse="error")
    relative = [
        after(by_time, t)["mse", name] / error for name, errors in simulated.items() for t, error in errors.items()
    ]
    times = " and ".join(map(str, sorted({t for errors in simulated.values() for t in errors})))
    return Claim(
        "simulated-ridge", f"after {times} elements errors of ridge regression are within {percent_text(within)} of "
        "those in a simulation", beside(relative, "error of ridge regression / in the simulation"),
        study.two_sided(within), ours("control: 10,000 sequences drawn outside of any study"), over="algorithms",
    )  # fmt: skip


def built_at_the_limit() -> Claim:
    """Control: a mesa layer built to run ridge regression does so: it forgets nothing and has the given ridge."""
    by_time = labelled("by-time", {"built": ("trained", "a built mesa layer"), "limit": ("limit", "ridge regression")})
    return Claim(
        "built-at-the-limit", "after each number of elements the loss of a mesa layer that is built to be ridge "
        "regression equals that of ridge regression within 0.1 %", by_time.ratio("built", "limit"),
        study.two_sided(1e-3), ours("control: the layer's own mechanism"), over="algorithms",
    )  # fmt: skip


def learns(*names: str, by_time: str = "by-time") -> Claim:
    """Control: each network's error falls along a sequence; judged even if its training has not converged."""
    errors = labelled(by_time, {}, mse="error")
    falls = [after(errors, 20)["mse", name] / after(errors, 1)["mse", name] for name in names]
    return Claim(
        "learns", "after 20 elements the error of each trained network is less than 0.9 of that after one",
        beside(falls, "error after 20 elements / after 1"), below(0.9),
        ours("control: with one element nothing is known"), at_least=3, premises=(),
    )  # fmt: skip


def nothing_known(names: Iterable[str], ridge: str) -> Claim:
    """Control: trained networks predict about 0 after one element; untrained networks do not."""
    first = after(labelled("by-time", {}, mse="error"), 1)
    return Claim(
        "nothing-known", "after one element the error of each trained network is less than 1.3 times that of ridge "
        "regression, which predicts 0", beside([first.ratio(name, ridge) for name in names], str(first.ratio(
            "each network", ridge))), below(1.3),
        ours("control: with one element nothing is known"), premises=(),
    )  # fmt: skip


# Figures


def along(by_time: StageReading, shown: Shown, title: str = "", d: int = 10) -> study.Lines:
    """Losses of a stage of `lenses.errors_by_time`."""
    known = by_time.case("t")
    lines = [Line(known, d / 2 * by_time["mse", name], *line) for name, line in shown.items()]
    return study.Lines(title, "elements known", LOSS, lines, "y")


def losses(shown: Shown, trained: Iterable[str], source: str, claims: tuple[Claim, ...], d: int = 10) -> Figure:
    """Losses of groups ``trained`` by training step, and of ``shown`` by elements known; elements have width ``d``."""
    training = [Line(stage(name)["step"], d / 2 * stage(name)["mse"], *shown[name]) for name in trained]
    caption = "Loss of a step, while training and by the number of elements known; line and band: mean and range over"
    panels = study.Lines("", "training step", LOSS, training, "y"), along(stage("by-time"), shown, d=d)
    return Figure("losses", f"{caption} seeds. {source}.", panels, shared_legend=True, claims=claims)


def weights_figure(caption: str, rows: int, claims: tuple[Claim, ...]) -> Figure:
    """Weight products of stage ``weights``, each divided by its largest |entry|, in ``rows`` rows of panels."""

    def read(r: Any) -> dict[str, np.ndarray]:
        found, named = r["weights"], {}
        for place, layer in enumerate(found["layer"]):
            of = f", layer {layer + 1}" if len(found["layer"]) > 1 else ""
            for name in _PRODUCTS:
                for head, matrix in enumerate(found[name][place], 1):
                    named[f"{name.upper()}, head {head}{of}"] = matrix / max(np.abs(matrix).max(), 1e-12)
        return named

    return Figure("weights", caption, study.Matrices(read, 1.0, rows), claims=claims)


# Probes


def probe_stages(lab: study.Lab, settings: Any, groups: Mapping[str, Sequence[Any]], targets: Collection[str]) -> None:
    """Compute a stage ``TARGET-probe`` for each target."""
    shown = lab.draw(settings.family(), settings.probe_tasks, "probe")
    for target in targets:
        probe = partial(lenses.probe, times=TIMES, regulariser=REGULARISER, generator=lab.stream("shuffle"))
        lab.stage(f"{target}-probe", probe, groups, shown, target)


def errors_of(target: str, name: str) -> Reading:
    """Errors of the probe of a group, ``(seeds, layers, times)``; layer 0 is before the first."""
    return _by_layer(stage(f"{target}-probe", mse="error of the probe")["mse", name])


def _by_layer(errors: Reading) -> Reading:
    return errors.map(_layered, str(errors))


def _layered(found: np.ndarray) -> np.ndarray:
    """Numbers ``(seeds, layers, times)``."""
    return found.reshape(len(found), -1, len(TIMES))


def improvement(target: str, name: str, layers: slice = slice(None)) -> Reading:
    """Ratio of the probe's error after each layer to that before the layer, ``(seeds, layers * times)``.

    Runs that did not store errors before each layer have larger intervals, as the two errors count as independent.
    """

    def read(found: Any) -> np.ndarray:
        after = _layered(found["mse", name])
        paired = ("before", name) in found.names
        ratios = after[:, 1:] / (_layered(found["before", name])[:, 1:] if paired else after[:, :-1])
        return ratios[:, layers].reshape(len(ratios), -1)

    return stage(f"{target}-probe").map(read, "error of the probe after a layer / before it")


def shuffled_targets(targets: Collection[str], names: Collection[str]) -> Claim:
    """Premise: probes of shuffled targets predict worse than the mean; if not, they were fitted to their test data."""

    def ratios(r: Any) -> np.ndarray:
        found = [r[f"{target}-probe"].ratio(f"{name}-shuffled", "constant") for target in targets for name in names]
        return np.array([np.concatenate([one.ravel() for one in own]).mean() for own in zip(*found, strict=True)])

    return Claim("shuffled-targets", "probes fitted to shuffled targets have a larger error than predicting the "
                 "mean target, averaged over layers, times, groups and targets",
                 ratios, above(1.0), ours("premise"), about="algorithms", former="bound > 0.9, held",
                 measures="error of these probes / of the mean target, averaged")  # fmt: skip


def probe_panel(target: str, title: str, shown: Shown) -> study.Lines:
    """Errors of a probe by layer, relative to errors of the targets' mean."""
    lines = []
    for name, (role, label) in shown.items():
        relative = _by_layer(stage(f"{target}-probe").ratio(name, "constant"))
        layers = relative.map(lambda found: np.arange(found.shape[1]), "layer")
        for place, (time, marks) in enumerate(zip(TIMES, ("o:", "s--", "^-"), strict=True)):
            at = relative.at((slice(None), slice(None), place), f"{time} elements")
            lines.append(Line(layers, at, role, f"{label}, {time} elements", marks=marks))
    return study.Lines(title, "layer", "error of the probe / of the mean", lines, "y")
