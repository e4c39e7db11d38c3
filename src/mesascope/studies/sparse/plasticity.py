"""Do more and larger inner steps help a meta-learner with learned masks, and not one without?

Thesis: Fig. 4.2. MAML and sparse-MAML meta-learn with more and more inner steps, and with larger and larger ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope import study
from mesascope.studies.sparse import few_shot
from mesascope.studies.sparse.few_shot import FewShot
from mesascope.study import Arrays, Claim, Count, Figure, Positive, Reading, Study, above, below, frozen, printed, stage

FIGURE = "Fig. 4.2"
METHODS = {"maml": "MAML", "sparse-maml": "sparse-MAML"}


@frozen
class Plasticity(FewShot):
    lengths: study.NonEmpty[Count] = (5, 15, 25)  # Numbers of inner steps.
    rates: study.NonEmpty[Positive] = (0.05, 0.1, 0.2, 0.4)  # Inner learning rates, each with inner_steps steps.


def measure(lab: study.Lab, settings: Plasticity) -> None:
    fresh = few_shot.own_tasks(lab, settings.family("test"), settings.tasks)
    for axis, values, argument in (("rates", settings.rates, "inner_lr"), ("lengths", settings.lengths, "steps")):
        trained = {
            method: [few_shot.meta_trained(lab, f"{method} {argument} {value}", settings, method, **{argument: value})
                     for value in values]
            for method in METHODS
        }  # fmt: skip
        lab.stage(axis, _measured, trained, values, fresh)
    lab.stage("controls", few_shot.controls, settings, trained["maml"][0], fresh)


def _measured(trained: dict[str, list[list[Any]]], values: tuple[float, ...], fresh: Any) -> Arrays:
    """Accuracy in percent and percent closed, by seed and value."""
    groups = {f"{method} {place}": group for method in METHODS for place, group in enumerate(trained[method])}
    each = few_shot.accuracies(groups, fresh)
    places = range(len(values))
    found = {f"accuracy {own}": np.stack([each[f"{own} {place}"] for place in places], axis=1) for own in METHODS}
    found["closed"] = 100 * np.array([[one.sparsity() for one in group] for group in trained["sparse-maml"]]).T
    return Arrays({"x": np.array(values, dtype=float), **found}, x="value", **dict.fromkeys(found, "seed value"))


WORDS = {f"accuracy {method}": f"accuracy of {label} in percent" for method, label in METHODS.items()}
WORDS["closed"] = "percent of entries closed"
lengths, rates = stage("lengths", **WORDS), stage("rates", **WORDS)
LONGER, LARGER = "most steps less fewest", "largest rate less smallest"


def _gain(points: Reading, ends: str) -> Reading:
    """Points at the largest value minus points at the smallest, by seed."""
    return points.map(lambda numbers: numbers[:, -1] - numbers[:, 0], f"{points}, {ends}")


def _range(points: Reading) -> Reading:
    """Largest minus smallest number over the values, by seed."""
    return points.map(lambda numbers: np.ptp(numbers, axis=1), f"range over rates of {points}")


def _panels(axis: study.StageReading, x: str, log: str = "") -> tuple[study.Lines, study.Lines]:
    """Accuracy and percent closed over the values of an axis."""
    own = ("trained", "sparse-MAML")
    accuracy = {axis["accuracy maml"]: ("gd", "MAML"), axis["accuracy sparse-maml"]: own}
    return (
        study.sweep(x, "accuracy (%)", axis["x"], accuracy, marks="o-", log=log),
        study.sweep(x, "closed (%)", axis["x"], {axis["closed"]: own}, marks="o-", log=log),
    )


ACCURACIES, SHARES = zip(_panels(lengths, "inner steps"), _panels(rates, "inner learning rate", "x"), strict=True)

STUDY = Study(
    name="sparse-maml-plasticity",
    source=f"{few_shot.THESIS}, section 4.3.2",
    presets={
        "quick": Plasticity(**few_shot.QUICK | {"lengths": (5, 10), "rates": (0.1, 0.5)}),
        "paper": Plasticity(
            training=study.Training(500, 2, learning_rate=1e-3, schedule="constant", evaluate_every=250), inner_lr=0.1,
            tasks=200, watch_tasks=20,
        ),
        "mini-imagenet": Plasticity(**{**few_shot.MINI_IMAGENET, "inner_lr": 0.1, "inner_steps": 35, "order": 1}),
    },
    measure=measure,
    trainings=lambda settings: 2 * len({(rate, settings.inner_steps) for rate in settings.rates}
                                       | {(settings.inner_lr, steps) for steps in settings.lengths}),
    premises=("learns",), quantifier="median",
    claims=(few_shot.PERMUTED, few_shot.UNSEEN, few_shot.SHUFFLED, few_shot.masks_learn("sparse-maml")),
    figures=(
        Figure("plasticity", "Accuracy on new classes, and percent of entries closed, by the number of inner steps and "
               "by the inner learning rate; mean and range over seeds. Thesis: Fig. 4.2.", (*ACCURACIES, *SHARES),
               columns=2, claims=(
            few_shot.learns(lengths["accuracy maml"].at((slice(None), 0), "with fewest steps")),
            Claim("longer-helps", "sparse-MAML is more accurate with most inner steps than with fewest",
                  _gain(lengths["accuracy sparse-maml"], LONGER), above(0.0), printed(FIGURE)),
            Claim("longer-helps-more", "sparse-MAML gains more accuracy from more inner steps than MAML",
                  _gain(lengths["accuracy sparse-maml"], LONGER) - _gain(lengths["accuracy maml"], LONGER), above(0.0),
                  printed(FIGURE)),
            Claim("not-maml", "MAML's accuracy with most and with fewest inner steps differs by at most one point",
                  _gain(lengths["accuracy maml"], LONGER), study.two_sided(1.0, around=0.0), printed("section 4.3.2"),
                  former="a gain of less than one point, undecided"),
            Claim("no-overfitting", "MAML and sparse-MAML are each at most a point less accurate with most inner steps "
                  "than with fewest",
                  study.beside([_gain(lengths[f"accuracy {method}"], LONGER) for method in METHODS],
                               f"accuracy of each in percent, {LONGER}"), above(-1.0), printed("section 4.3.2")),
            Claim("larger-helps", "sparse-MAML is more accurate at the largest inner rate than at the smallest",
                  _gain(rates["accuracy sparse-maml"], LARGER), above(0.0), printed(FIGURE),
                  former="as larger-helps-more, held"),
            Claim("larger-helps-more", "sparse-MAML gains more accuracy from a larger inner rate than MAML",
                  _gain(rates["accuracy sparse-maml"], LARGER) - _gain(rates["accuracy maml"], LARGER), above(0.0),
                  printed(FIGURE)),
            Claim("maml-needs-tuning", "MAML's accuracy varies more between inner rates than that of sparse-MAML",
                  _range(rates["accuracy maml"]) - _range(rates["accuracy sparse-maml"]), above(0.0), printed(FIGURE)),
            Claim("larger-harms-maml", "MAML is less accurate at the largest inner rate than at the smallest",
                  _gain(rates["accuracy maml"], LARGER), below(0.0), study.ours("what masks protect from")),
            Claim("closes-with-length", "the share of closed entries is larger with most inner steps than with fewest",
                  _gain(lengths["closed"], LONGER), above(0.0), printed(FIGURE), former="bound > 1, undecided"),
            Claim("closes-with-rate", "the share of closed entries is larger at the largest inner rate than at the "
                  "smallest",
                  _gain(rates["closed"], LARGER), above(0.0), printed(FIGURE), former="bound > 1, held"),
        )),
    ),
    unlike=few_shot.UNLIKE,
    deviations={
        "paper": (
            "Omniglot in place of miniImageNet, with fewer filters, as in sparse-maml, and 500 outer steps, as most of "
            "the cost is that of long inner loops.",
            "Tasks have one example of each of twenty classes, in place of five examples of each of five. Inner rates "
            "are ours, and are compared at 5 inner steps.",
        ),
        "mini-imagenet": few_shot.MINI_DEVIATIONS,
    },
    mutations=(*few_shot.BUGS, few_shot.AVERAGED, few_shot.UPHILL, few_shot.UNADAPTED),
    mutated=few_shot.SMALL | {"lengths": (2, 4), "rates": (0.25, 0.5)},
)  # fmt: skip
