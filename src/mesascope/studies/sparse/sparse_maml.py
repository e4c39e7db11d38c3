"""Is a meta-learner with learned masks more accurate, and which entries do the masks close?

Thesis: Table 4.1 and Fig. 4.1. Networks meta-learn to classify images from few examples of each class; masks select
the entries that inner steps may change, and start half closed, or with more or fewer of them closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from mesascope import study
from mesascope.errors import refuse
from mesascope.studies.common import kept_weights
from mesascope.studies.sparse import few_shot
from mesascope.studies.sparse.few_shot import METHODS, OTHERS, FewShot, points_above
from mesascope.study import Claim, Figure, Line, Lines, Reading, Reported, above, below, ours, printed, stage, two_sided

TABLE, FIGURE = "Table 4.1", "Fig. 4.1"
SECTION = "section 4.3.3"
# Source of accuracies of Table 4.1, whose numbers are missing in the thesis' text.
PAPER = "von Oswald et al. (2021), 1-shot and 5-shot miniImageNet"
# Images of each class in two more trainings of masks, for the comparison in section 4.3.2.
SHOTS = (1, 5)
# Trainings in which few, half and many masks are closed at the start, with the roles of their lines.
STARTS = {"few-closed": 0.9, "sparse-maml": "trained", "many-closed": 0.2}


Method = Literal[
    "maml", "anil", "boil", "meta-sgd", "exp-maml", "sparse-relu-maml", "sparse-maml", "meta-curvature", "mt-net",
    "shrinkage",
]  # fmt: skip
WORDS = METHODS | OTHERS


@study.frozen
class Sparse(FewShot):
    methods: tuple[Method, ...] = get_args(Method)  # Methods to compare.
    few_closed: study.Share = 0.1  # Share of masks that are closed at the start of one more training.
    many_closed: study.Share = 0.9  # Share closed at the start of another training.

    def __post_init__(self) -> None:
        if "sparse-maml" not in self.methods:
            refuse("methods", "name sparse-maml, whose masks the study looks at", self.methods, "add it")


def measure(lab: study.Lab, settings: Sparse) -> None:
    lab.draw(replace(settings, shots=max(SHOTS)).family("test"), 1, "watch")  # too few images: told before training
    groups = {name: few_shot.meta_trained(lab, name, settings, name) for name in settings.methods}
    for name, closed in (("few-closed", settings.few_closed), ("many-closed", settings.many_closed)):
        groups[name] = few_shot.meta_trained(lab, name, settings, "sparse-maml", closed=closed)
    rate = settings.inner_lr or few_shot.recipe_of("sparse-maml", settings).inner_lr  # equal for all numbers of shots
    for shots in SHOTS:  # if one is the run's own setting, it is trained once
        few_shot.meta_trained(lab, f"{shots}-shot", replace(settings, shots=shots, inner_lr=rate), "sparse-maml")
    fresh = few_shot.own_tasks(lab, settings.family("test"), settings.tasks)
    lab.stage("accuracy", few_shot.accuracies, groups, fresh)
    if settings.architecture != "resnet12":  # whose inner steps change weights and the output's bias alone
        lab.stage("vectors", closed_vectors, groups["sparse-maml"])
    if "shrinkage" in groups:
        lab.stage("strengths", strengths, groups["shrinkage"])
    first = groups[settings.methods[0]]
    lab.stage("weights", kept_weights, first[0])
    lab.stage("controls", few_shot.controls, settings, first, fresh)


def closed_vectors(learners: Sequence[Any]) -> study.Arrays:
    """Percent closed of each layer's vectors, by kind: BatchNorm's scales and shifts, or biases if there is no norm.

    Biases before BatchNorm have no gradient, so their masks learn nothing. The output layer is left out.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    found = []
    for one in learners:
        vectors = [name for name, own in one.model.named_parameters() if own.ndim == 1][:-1]
        norms = [name for name in vectors if isinstance(one.model.get_submodule(name.rpartition(".")[0]), _BatchNorm)]
        shares, kinds = one.sparsity_by_parameter(), dict[str, list[float]]()
        for name in norms or vectors:
            kinds.setdefault(name.rpartition(".")[2], []).append(100 * shares[name])
        found.append([*kinds.values()])
    return study.Arrays({"closed": np.array(found)}, closed="seed kind layer")


def strengths(learners: Sequence[Any]) -> study.Arrays:
    """Strength of each layer's shrinkage, relative to that before meta-learning."""
    found = [[float(one.method.strength(names[0]).detach()) for names in few_shot.layers_of(one.model)]
             for one in learners]  # fmt: skip
    return study.Arrays({"strength": np.array(found) / learners[0].method.pull}, strength="seed layer")


def _layers_of(curves: Any) -> int:
    """Number of layers whose closed shares were logged."""
    return sum(name.removeprefix("closed ").isdecimal() for name in curves)


def _by_layer(curves: Any) -> list[np.ndarray]:
    """Percent of each layer's weights that are closed, by seed and evaluation."""
    return [100 * curves[f"closed {layer}"] for layer in range(_layers_of(curves))]


curves, rates = stage("sparse-maml"), stage("exp-maml")


def _falls(curves: study.StageReading) -> Reading:
    """Points by which each layer's closed share is below that of the layer before, ``(seeds, layers - 1)``."""
    return curves.map(
        lambda curves: -np.diff(np.stack([one[:, -1] for one in _by_layer(curves)], axis=1), axis=1),
        "points by which a layer is less closed than the one before it",
    )


def _closes(curves: study.StageReading) -> Reading:
    """Points by which more entries are closed at the end than at the start."""
    return curves["closed"].map(
        lambda share: 100 * np.diff(share[:, [0, -1]], axis=1), "points closed more than at the start"
    )


def _layers(r: Any) -> list[Line]:
    layers, step = _by_layer(curves(r)), curves(r)["step"]
    last = max(len(layers) - 1, 1)
    return [Line(step, one, place / last, f"layer {place + 1}") for place, one in enumerate(layers)]


def _starts(column: str, **limits: Any) -> Lines:
    """A logged share, in percent, by outer step, for each share of masks closed at the start."""

    def lines(r: Any) -> list[Line]:
        return [Line(r[name]["step"], 100 * r[name][column], role, f"{100 * r[name]['closed'][0, 0]:.0f} %")
                for name, role in STARTS.items()]  # fmt: skip

    return Lines("", "outer steps", f"{column} (%)", lines, limits=limits)


RELU_BOUNDS = dict.fromkeys(("quick", "paper", "mini-imagenet"), two_sided(1.0, around=0.0)) | {
    "mini-imagenet-resnet12": above(0.0)
}
FROZEN_BOUNDS = dict.fromkeys(RELU_BOUNDS, above(0.0)) | {"mini-imagenet-resnet12": above(-1.0)}
STUDY = study.Study(
    name="sparse-maml",
    source=f"{few_shot.THESIS}, sections 4.3.1 and 4.3.3",
    presets={
        "quick": Sparse(**few_shot.QUICK), "paper": Sparse(),
        "mini-imagenet": Sparse(**few_shot.MINI_IMAGENET),
        "mini-imagenet-resnet12": Sparse(
            **few_shot.RESNET12, methods=("maml", "anil", "boil", "sparse-maml", "sparse-relu-maml")
        ),
    },
    measure=measure, trainings=lambda settings: len(settings.methods) + 2 + len({*SHOTS} - {settings.shots}),
    premises=("learns",), quantifier="median",
    claims=(few_shot.PERMUTED, few_shot.UNSEEN, few_shot.SHUFFLED, few_shot.masks_learn(*STARTS)),
    figures=(
        Figure("closed", "Left: percent of entries that inner steps do not change while sparse-MAML meta-learns, by "
               "what is closed at the start. Centre: by layer, from a half. Right: accuracy on new classes. Mean and "
               "range over seeds. Thesis: Fig. 4.1.", (
            _starts("closed", ylim=(0, 100)),
            Lines("", "outer steps", "closed (%)", _layers, limits={"ylim": (0, 100)}),
            _starts("accuracy"),
        ), size=(9.5, 3.4), claims=(
            Claim("closes", "of masks that start half closed, a larger share is closed at the end than at the start "
                  "(closed: inner steps do not change the entry)",
                  _closes(curves), above(0.0), printed(FIGURE), former="bound > 52 % closed, held"),
            Claim("fewer-with-depth", "each layer has a smaller share of closed weights than the layer before",
                  _falls(curves), above(0.0), printed(FIGURE)),
            Claim("fewer-from-any-start", "of masks that start almost all open, or almost all closed, each layer has a "
                  "smaller share of closed weights than the layer before",
                  study.beside([_falls(stage(name)) for name in ("few-closed", "many-closed")],
                               "points by which a layer is less closed than the one before it, of both starts"),
                  above(0.0), printed("section 4.3.1")),
            Claim("last-is-open", "the output layer has a smaller share of closed weights than the first layer",
                  _falls(curves).map(lambda points: points.sum(1), "points closed of the first layer above the last"),
                  above(0.0), printed(FIGURE), former="bound > 10, held"),
            Claim("vectors-fewer-with-depth", "each layer has a smaller share of closed scales, and of closed shifts, "
                  "of BatchNorm than the layer before (of biases, in a network without BatchNorm)",
                  stage("vectors")["closed"].map(
                      lambda closed: -np.diff(closed, axis=2).reshape(len(closed), -1),
                      "points by which a layer's scales or shifts are less closed than the one before it"),
                  above(0.0), printed("section 4.3.1")),
            Claim("bias-closes", "at the end, more than half of the entries of the output layer's bias are closed, and "
                  "a larger share than of its weights",
                  curves.map(lambda one: 100 * (one["closed bias"][:, -1:] - np.stack(
                      [np.full(len(one["closed"]), 0.5), one[f"closed {_layers_of(one) - 1}"][:, -1]], axis=1)),
                      "points closed of the output bias, above a half, and above the output weights"),
                  above(0.0), printed("section 4.3.1"), former="more than half, undecided"),
            Claim("closes-with-fewer-shots", "a larger share of entries is closed with fewer examples of each class "
                  "than with more", (stage("1-shot")["closed"] - stage("5-shot")["closed"]).map(
                      lambda share: 100 * share[:, -1], "percent of entries closed, fewer shots less more"),
                  above(0.0), printed("section 4.3.2"),
                  reported=Reported((4.06, 4.0), "printed, 1-shot less 5-shot miniImageNet; then of rectified rates")),
            Claim("closes-from-few", "of masks that start almost all open, more than half are closed at the end",
                  stage("few-closed")["closed"].map(lambda share: 100 * share[:, -1], "percent closed at the end"),
                  above(50.0), study.derived(f"{FIGURE}, left: sparsity adapts; random changes close at most half"),
                  former="more than at the start, held"),
            Claim("sparse-start-helps", "sparse-MAML is more accurate if most masks start closed than if few do",
                  points_above("many-closed", "few-closed"), above(0.0), printed(FIGURE)),
        )),
        Figure("methods", "Accuracy of each method on new classes, each seed; all take as many outer steps, and all of "
               "a seed have the same tasks.",
               (study.strip("accuracy (%)", {name: label.replace("-", "-\n") for name, label in WORDS.items()},
                            lambda r: {"each seed": r["accuracy"]}),), size=(9, 3.4), claims=(
            few_shot.learns(stage("accuracy", maml="accuracy of MAML in percent")["maml"]),
            Claim("above-maml", "sparse-MAML is more accurate than MAML",
                  points_above("sparse-maml", "maml"), above(0.0), printed(TABLE),
                  reported=Reported((2.28, 3.88, 1.11, 0.66), f"{PAPER}; then printed for ResNet-12")),
            Claim("above-frozen", "sparse-MAML is more accurate than ANIL and BOIL, which freeze layers by hand; with "
                  "ResNet-12 it is at most a point less accurate",
                  points_above("sparse-maml", "anil", "boil"), FROZEN_BOUNDS, printed(TABLE),
                  reported=Reported((3.65, 0.74, 5.53, 0.58), f"{PAPER}; printed for ResNet-12: -0.23, none, "
                                    "-0.01, -0.48")),
            Claim("relu-above-all", "sparse-ReLU-MAML, which rectifies its rates, is more accurate than MAML, ANIL "
                  "and BOIL",
                  points_above("sparse-relu-maml", "maml", "anil", "boil"), above(0.0), printed("Tables 4.1 and 4.2"),
                  reported=Reported((2.08, 3.45, 0.54, 3.65, 5.3, 0.35, 2.48, 1.14, 3.65, 2.98, 2.51), f"{PAPER}, each "
                                    "against MAML, ANIL and BOIL; then printed for ResNet-12, without 1-shot BOIL")),
            Claim("meta-sgd-helps", "Meta-SGD, which learns every rate, is more accurate than MAML",
                  points_above("meta-sgd", "maml"), above(0.0), printed(TABLE),
                  reported=Reported((2.4, 0.88), PAPER)),
            Claim("as-meta-sgd", "sparse-MAML is at most half a point less accurate than Meta-SGD",
                  points_above("sparse-maml", "meta-sgd"), above(-0.5), printed(TABLE),
                  premises=("learns", "meta-sgd-helps"), reported=Reported((-0.12, 3.0), PAPER)),
            Claim("matrices-help", "meta-curvature and MT-net, which learn matrices, are more accurate than MAML",
                  study.beside([points_above(name, "maml", names=WORDS) for name in ("meta-curvature", "mt-net")],
                               "points of accuracy of each above MAML"), above(0.0), printed(SECTION),
                  reported=Reported(3.63, "von Oswald et al. (2021), MT-net on 1-shot miniImageNet")),
            Claim("as-matrices", "sparse-MAML is at most a point and a half less accurate than meta-curvature and "
                  "MT-net", points_above("sparse-maml", "meta-curvature", "mt-net", names=WORDS),
                  above(-1.5), printed(SECTION), premises=("learns", "matrices-help"),
                  reported=Reported(-1.35, "von Oswald et al. (2021), MT-net on 1-shot miniImageNet")),
            Claim("shrinkage-as-maml", "MAML with learned shrinkage towards the initial weights is at most half a "
                  "point more accurate than MAML", points_above("shrinkage", "maml", names=WORDS),
                  below(0.5), printed("section 4.3.1"), premises=("learns", "strengths-learn")),
            Claim("strengths-learn", "control: meta-learning changes the strength of shrinkage by more than 0.1 % in "
                  "each layer",
                  stage("strengths")["strength"].map(lambda ratio: 100 * np.abs(ratio - 1), "percent of change"),
                  above(0.1), ours("control: strengths are learned"), quantifier="exact",
                  exact_because="strengths of the same networks are compared", premises=(), about="algorithms"),
            Claim("shrinkage-freezes-early", "after meta-learning, shrinkage is stronger in the first layer than in "
                  "the last", stage("strengths")["strength"].map(
                      lambda ratio: np.log2(ratio[:, 0] / ratio[:, -1]), "log2 of the strength, first over last layer"),
                  above(0.0), printed("section 4.3.1")),
            Claim("anil-as-maml", "ANIL, which adapts the last layer alone, is at most two points less accurate than "
                  "MAML", points_above("anil", "maml"), above(-2.0), printed("section 4.1"),
                  former="at most one point, undecided",
                  reported=Reported((-1.37, -1.65, 1.34, 0.67), f"{PAPER}; then printed for ResNet-12")),
            Claim("relu-as-masks", "the accuracies of rectified rates and of masks differ by at most one point; with "
                  "ResNet-12 rectified rates are more accurate",
                  points_above("sparse-relu-maml", "sparse-maml"), RELU_BOUNDS, printed(SECTION),
                  reported=Reported((-0.2, -0.23, 1.37, 2.99), f"{PAPER}; then printed for ResNet-12")),
            Claim("exp-lowers-early", "after meta-learning, exp-MAML's mean rate is lower in the first layer than in "
                  "the last",
                  rates.map(lambda one: np.log2(one["rate 0"][:, -1] / one[f"rate {_layers_of(one) - 1}"][:, -1]),
                            "log2 of exp-MAML's mean rate, first layer over last"), below(0.0),
                  printed(SECTION)),
            Claim("exp-lowers", "exp-MAML's mean rate in the first layer is lower after meta-learning than before",
                  rates.map(lambda one: np.log2(one["rate 0"][:, -1] / one["rate 0"][:, 0]),
                            "log2 of exp-MAML's mean rate in the first layer, after over before"),
                  below(0.0), printed(SECTION)),
            Claim("above-exp", "sparse-ReLU-MAML and sparse-MAML are more accurate than exp-MAML, whose rates cannot "
                  "reach 0",
                  study.beside([points_above(name, "exp-maml") for name in ("sparse-maml", "sparse-relu-maml")],
                         "points of accuracy of each above exp-MAML"), above(0.0), printed(SECTION)),
        )),
    ),
    unlike=few_shot.UNLIKE,
    deviations={
        "paper": (
            "Omniglot, twenty characters from one example of each, in place of miniImageNet, which cannot be passed "
            "on; 32 filters, 5 inner steps and 1,500 outer ones in place of 64, 35 and 40,000.",
            "Each method has an inner rate of its own, tuned on other tasks of training characters (see TUNED), in "
            "place of 0.25 or 0.1 for sparse-MAML; tasks have two queries a class in place of 15.",
            "All methods train to first order; Meta-SGD, meta-curvature and MT-net are of second order in the thesis. "
            "The last two have MAML's inner rate, which is not tuned for them.",
            "Shrinkage has one strength for each layer, as in Chen et al. (2020), where the thesis speaks of one for "
            "each parameter; meta-curvature trains without added images.",
        ),
        "mini-imagenet": few_shot.MINI_DEVIATIONS,
        "mini-imagenet-resnet12": (
            *few_shot.MINI_DEVIATIONS, "The norm of outer gradients is clipped at 10, not their entries.",
        ),
    },
    mutations=(*few_shot.BUGS, few_shot.UPHILL, few_shot.UNADAPTED, few_shot.FROZEN_RATES),
    mutated=few_shot.SMALL,
)  # fmt: skip
