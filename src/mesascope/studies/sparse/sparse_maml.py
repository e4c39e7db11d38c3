"""Does a meta-learner that may choose where to learn learn better, and where does it choose to?

Thesis: Table 4.1 and Fig. 4.1. Networks meta-learn to tell classes of images apart from few examples of each; masks
say which entries the inner steps may change, and start half closed, or with more or fewer of them closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.errors import require_number
from mesascope.evidence import Claim, above, ours, printed, stage, two_sided
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.sparse.few_shot import (
    METHODS,
    MINI_IMAGENET,
    QUICK,
    THESIS,
    FewShot,
    accuracies,
    closed_by_layer,
    layers_closed,
    meta_trained,
)
from mesascope.study import Study, strip

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

TABLE, FIGURE = "Table 4.1", "Fig. 4.1"


@dataclass(frozen=True)
class Sparse(FewShot):
    """Settings of the study."""

    few_closed: float = 0.1
    """Share of the masks that starts closed in one more training."""
    many_closed: float = 0.9
    """And in another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("few_closed", "many_closed"):
            require_number(name, getattr(self, name), least=0, most=1)


def measure(lab: Lab, settings: Sparse) -> None:
    """Train every method, and sparse-MAML from three starts, at equal cost; compare them on new classes."""
    groups = {name: meta_trained(lab, name, settings, name) for name in METHODS}
    for name, closed in (("few-closed", settings.few_closed), ("many-closed", settings.many_closed)):
        groups[name] = meta_trained(lab, name, settings, "sparse-maml", closed=closed)
    accuracies(lab, "accuracy", groups, lab.draw(settings.family("test"), settings.tasks, "eval"))


def _above(name: str, *others: str) -> Any:
    """Points of accuracy above others, by seed and other."""
    return lambda r: np.stack([r["accuracy"][name] - r["accuracy"][other] for other in others], axis=1)


def _fall(r: Any) -> np.ndarray:
    """Points by which each layer is less closed than the one before, by seed."""
    return -np.diff(layers_closed(r, "sparse-maml"), axis=1)


def _points(sentence: str) -> str:
    return f"points of accuracy {sentence}: mean over seeds"


CLAIMS = (
    Claim(
        "learns", "networks that adapt tell most images after meta-learning", stage("accuracy")["maml"], above(50.0),
        ours("premise"), quantifier="mean",
    ),
    Claim(
        "above-maml", "sparse-MAML tells more than MAML at equal cost", _above("sparse-maml", "maml"), above(0.0),
        printed(TABLE), measures=_points("above it"), quantifier="mean", premises=("learns",),
    ),
    Claim(
        "above-frozen", "and more than methods that freeze layers by hand, ANIL and BOIL",
        _above("sparse-maml", "anil", "boil"), above(0.0), printed(TABLE), measures=_points("above each"),
        quantifier="mean", premises=("learns",),
    ),
    Claim(
        "as-meta-sgd", "and as much as Meta-SGD, which learns every rate, or more", _above("sparse-maml", "meta-sgd"),
        above(-0.5), printed(TABLE), measures=_points("above it"), quantifier="mean", premises=("learns",),
    ),
    Claim(
        "relu-as-masks", "rectified rates and masks do equally well", _above("sparse-relu-maml", "sparse-maml"),
        two_sided(1.0, around=0.0), printed("section 4.3.3"), measures=_points("of one above the other"),
        quantifier="mean", premises=("learns",),
    ),
    Claim(
        "above-exp", "and both do better than rates that cannot close",
        lambda r: np.concatenate([_above(name, "exp-maml")(r) for name in ("sparse-maml", "sparse-relu-maml")], axis=1),
        above(0.0), printed("section 4.3.3"), measures=_points("above exp-MAML"), quantifier="mean",
        premises=("learns",),
    ),
    Claim(
        "closes", "more than half of the entries are closed in the end, from a half",
        lambda r: 100 * np.asarray(r["sparse-maml"]["closed"])[:, -1], above(52.0), printed(FIGURE),
        measures="percent of all entries closed: mean over seeds", quantifier="mean", premises=("learns",),
    ),
    Claim(
        "fewer-with-depth", "each layer's weights are less closed than those of the layer before", _fall, above(0.0),
        printed(FIGURE), measures="points closed of a layer below the one before: mean over seeds", quantifier="mean",
        premises=("learns",),
    ),
    Claim(
        "last-is-open", "the output layer's weights are less closed than the first layer's, by ten points",
        lambda r: _fall(r).sum(1), above(10.0), printed(FIGURE),
        measures="points closed of the first layer above the last: mean over seeds", quantifier="mean",
        premises=("learns",),
    ),
    Claim(
        "closes-from-few", "masks close from fewest closed at the start, too",
        lambda r: 100 * np.diff(np.asarray(r["few-closed"]["closed"])[:, [0, -1]], axis=1), above(2.0), printed(FIGURE),
        measures="points closed more than at the start: mean over seeds", quantifier="mean", premises=("learns",),
    ),
    Claim(
        "sparse-start-helps", "more closed at the start does better", _above("many-closed", "few-closed"), above(0.0),
        printed(FIGURE), measures=_points("of most above fewest"), quantifier="mean", premises=("learns",),
    ),
)  # fmt: skip

STARTS = {"few-closed": 0.9, "sparse-maml": "trained", "many-closed": 0.2}


def _over_training(key: str) -> Any:
    def lines(r: Any) -> list[Line]:
        return [
            Line(r[name]["step"], 100 * np.asarray(r[name][key]), role, f"{100 * float(r[name]['closed'][0, 0]):.0f} %")
            for name, role in STARTS.items()
        ]

    return lines


def _by_layer(r: Any) -> list[Line]:
    layers = closed_by_layer(r["sparse-maml"])
    return [
        Line(r["sparse-maml"]["step"], 100 * np.asarray(one), place / max(len(layers) - 1, 1), f"layer {place + 1}")
        for place, one in enumerate(layers)
    ]


FIGURES = (
    Figure(
        "closed", "Left: percent of entries that inner steps do not change while sparse-MAML meta-learns, by what is "
        "closed at the start. Centre: by layer, from a half. Right: accuracy on new classes. Mean and range over "
        "seeds. Thesis: Fig. 4.1.",
        (
            Lines("", "outer steps", "closed (%)", _over_training("closed"), limits={"ylim": (0, 100)}),
            Lines("", "outer steps", "closed (%)", _by_layer, limits={"ylim": (0, 100)}),
            Lines("", "outer steps", "accuracy (%)", _over_training("accuracy")),
        ), size=(9.5, 3.4),
        claims=("closes", "fewer-with-depth", "last-is-open", "closes-from-few", "sparse-start-helps"),
    ),
    Figure(
        "methods", "Accuracy of each method on new classes, each seed; the same tasks and as many outer steps for "
        "all.",
        (strip("accuracy (%)", METHODS, lambda r: {"each seed": r["accuracy"]}),),
        columns=1, size=(9, 3.2),
        claims=("learns", "above-maml", "above-frozen", "as-meta-sgd", "relu-as-masks", "above-exp"),
    ),
)  # fmt: skip

STUDY = Study(
    name="sparse-maml",
    source=f"{THESIS}, sections 4.3.1 and 4.3.3",
    presets={"quick": Sparse(**QUICK), "paper": Sparse(), "mini-imagenet": Sparse(**MINI_IMAGENET)},
    measure=measure,
    trainings=9,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Omniglot, twenty characters from one example of each, in place of miniImageNet, which cannot be passed "
        "on; 32 filters, 5 inner steps and 1,500 outer ones in place of 64, 35 and 40,000.",
        "Meta-SGD and exp-MAML train to first order, as the others do.",
    ),
)  # fmt: skip
