"""Do longer and larger inner steps help a meta-learner that chooses where to learn, and not one that does not?

Thesis: Fig. 4.2. MAML and sparse-MAML meta-learn with more and more inner steps, and with larger and larger ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.errors import require_count, require_number
from mesascope.evidence import Arrays, Claim, above, below, ours, printed
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.sparse.few_shot import MINI_IMAGENET, QUICK, THESIS, FewShot, hits, meta_trained
from mesascope.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

FIGURE = "Fig. 4.2"
COMPARED = ("maml", "sparse-maml")


@dataclass(frozen=True)
class Plasticity(FewShot):
    """Settings of the study."""

    lengths: tuple[int, ...] = (5, 15, 25)
    """Numbers of inner steps."""
    rates: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """Inner learning rates, each of inner_steps steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in self.lengths:
            require_count("lengths", value)
        for value in self.rates:
            require_number("rates", value, above=0)


def measure(lab: Lab, settings: Plasticity) -> None:
    """Train both methods at each length and at each rate."""
    drawn = lab.draw(settings.family("test"), settings.tasks, "eval")
    for axis, values, argument in (("rates", settings.rates, "inner_lr"), ("lengths", settings.lengths, "steps")):
        trained = {
            method: [meta_trained(lab, f"{method} {argument} {v}", settings, method, **{argument: v}) for v in values]
            for method in COMPARED
        }
        lab.stage(axis, lambda trained=trained, values=values: _measured(trained, values, drawn))


def _measured(trained: dict[str, list[list[Any]]], values: tuple[float, ...], drawn: Any) -> Arrays:
    """Accuracy in percent and percent closed, by seed and value."""
    accuracy = {
        f"accuracy {method}": 100 * np.array([[hits(one, drawn).mean() for one in group] for group in groups]).T
        for method, groups in trained.items()
    }
    closed = 100 * np.array([[one.closed() for one in group] for group in trained["sparse-maml"]]).T
    return Arrays(
        {"x": np.array(values, dtype=float), **accuracy, "closed": closed},
        x="value", **dict.fromkeys([*accuracy, "closed"], "seed value"),
    )  # fmt: skip


def _gain(axis: str, quantity: str) -> Any:
    """Points at the largest value above the smallest, by seed."""
    return lambda r: r[axis][quantity][:, -1] - r[axis][quantity][:, 0]


def _more(axis: str) -> Any:
    """Points that sparse-MAML gains more than MAML."""
    return lambda r: _gain(axis, "accuracy sparse-maml")(r) - _gain(axis, "accuracy maml")(r)


CLAIMS = (
    Claim(
        "learns", "networks that adapt tell most images after meta-learning",
        lambda r: r["lengths"]["accuracy maml"][:, 0], above(50.0), ours("premise"),
        measures="percent of queries, MAML with fewest steps: mean over seeds", quantifier="mean",
    ),
    Claim(
        "longer-helps", "sparse-MAML tells more where it adapts for more steps",
        _gain("lengths", "accuracy sparse-maml"), above(0.0), printed(FIGURE),
        measures="points of accuracy with most steps above fewest: mean over seeds", quantifier="mean",
        premises=("learns",),
    ),
    Claim(
        "longer-helps-more", "and gains more by them than MAML does", _more("lengths"), above(0.0), printed(FIGURE),
        measures="points gained more than MAML gains: mean over seeds", quantifier="mean", premises=("learns",),
    ),
    Claim(
        "not-maml", "which gains less than a point", _gain("lengths", "accuracy maml"), below(1.0), printed(FIGURE),
        measures="points of accuracy with most steps above fewest: mean over seeds", quantifier="mean",
        premises=("learns",),
    ),
    Claim(
        "larger-helps-more", "sparse-MAML gains more by larger steps than MAML does", _more("rates"), above(0.0),
        printed(FIGURE),
        measures="points gained from the smallest rate to the largest, more than MAML gains: mean over seeds",
        quantifier="mean", premises=("learns",),
    ),
    Claim(
        "closes-with-length", "more is closed where there are more inner steps", _gain("lengths", "closed"), above(1.0),
        printed(FIGURE), measures="points closed with most steps above fewest: mean over seeds", quantifier="mean",
        premises=("learns",),
    ),
    Claim(
        "closes-with-rate", "and where these are larger", _gain("rates", "closed"), above(1.0), printed(FIGURE),
        measures="points closed at the largest rate above the smallest: mean " "over seeds", quantifier="mean",
        premises=("learns",),
    ),
)  # fmt: skip


def _accuracy(axis: str) -> Any:
    return lambda r: [
        Line(r[axis]["x"], r[axis][f"accuracy {method}"], role, label, marks="o-")
        for method, role, label in (("maml", "gd", "MAML"), ("sparse-maml", "trained", "sparse-MAML"))
    ]


def _closed(axis: str) -> Any:
    return lambda r: [Line(r[axis]["x"], r[axis]["closed"], "trained", "sparse-MAML", marks="o-")]


FIGURES = (
    Figure(
        "plasticity", "Accuracy on new classes, and percent of entries closed, by the number of inner steps and by "
        "the inner learning rate; mean and range over seeds. Thesis: Fig. 4.2.",
        (
            Lines("", "inner steps", "accuracy (%)", _accuracy("lengths")),
            Lines("", "inner learning rate", "accuracy (%)", _accuracy("rates"), log="x"),
            Lines("", "inner steps", "closed (%)", _closed("lengths")),
            Lines("", "inner learning rate", "closed (%)", _closed("rates"), log="x"),
        ), columns=2, claims=tuple(claim.id for claim in CLAIMS),
    ),
)  # fmt: skip

STUDY = Study(
    name="sparse-maml-plasticity",
    source=f"{THESIS}, section 4.3.2",
    presets={
        "quick": Plasticity(**QUICK | {"lengths": (5, 10), "rates": (0.1, 0.5)}),
        "paper": Plasticity(
            training=Training(500, 2, learning_rate=1e-3, schedule="constant", evaluate_every=250), inner_lr=0.1,
            tasks=200, watch_tasks=20,
        ),
        "mini-imagenet": Plasticity(**{**MINI_IMAGENET, "inner_lr": 0.1}),
    },
    measure=measure,
    trainings=lambda settings: 2 * len({(rate, settings.inner_steps) for rate in settings.rates}
                                       | {(settings.inner_lr, steps) for steps in settings.lengths}),
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Omniglot in place of miniImageNet, with fewer filters, as in sparse-maml, and 500 outer steps, as most of "
        "the cost is that of long inner loops.",
    ),
)  # fmt: skip
