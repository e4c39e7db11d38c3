"""How do transformers predict systems of which they see a part?

The extended paper behind chapter 3 of the thesis. A hidden state of width 15 is seen through 5 numbers, so that three
elements in a row tell it, and one does not. Seven softmax layers, and a softmax and a mesa layer, are compared with
ridge regression on the last one to five elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses, tasks
from mesascope.evidence import Claim, above, below, derived, ours, printed
from mesascope.studies.common import converged, watch_loss
from mesascope.studies.mesa.dynamics import compared, losses, times, tuned_ridge
from mesascope.studies.mesa.transformers import (
    DEVIATIONS,
    EXTENDED,
    LONG,
    SHORT,
    Transformers,
    copying,
    in_context,
    of_each,
    sensitivity_figure,
    transformer,
)
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

KINDS = ("softmax", "mesa")
PREMISES = ("converged",)


def _late(r: Any, names: tuple[str, ...], others: tuple[str, ...]) -> np.ndarray:
    """Errors after 50 elements over those of least squares that is tuned for them."""
    late = times(r["by-time"], [50])
    return np.concatenate([late.ratio(name, f"{other}-late") for name in names for other in others], axis=1)


CLAIMS = (
    converged(*KINDS, at_least=3, most=0.02),
    Claim(
        "three-are-needed", "least squares on the last three elements errs less than a tenth of what it does on one "
        "or two, after 50 elements", lambda r: _late(r, ("three-late",), ("one", "two")).ravel(), below(0.1),
        derived("the state has width 15, an element 5"), measures="error on three / on one, on two", over="algorithms",
        at_least=2, about="algorithms",
    ),
    Claim(
        "several-elements",
        "networks of both kinds put several elements together: they lose less than ridge " "regression on single ones",
        lambda r: np.stack([r["comparison"].ratio(name, "one") for name in KINDS], axis=1), below(1.0),
        printed(EXTENDED), measures="loss of trained / of ridge regression on one element", at_least=3,
        premises=PREMISES,
    ),
    Claim(
        "beyond-two", "after 50 elements they err less than ridge regression on two",
        lambda r: _late(r, KINDS, ("two",)), below(1.0), derived("the state needs three"),
        measures="error of trained / of ridge regression on two elements", at_least=3, premises=PREMISES,
    ),
    in_context(*KINDS),
    Claim(
        "copies-two-back", "after the first layer, tokens depend on the element two before more than on any that is "
        "four or more before", lambda r: np.stack([copying(r["sensitivity"][name], 2, 4) for name in KINDS], axis=1),
        above(1.5), printed(EXTENDED),
        measures="|d e_t / d s_{t-2}| / largest |d e_t / d s_{t-k}| of k > 3, means over tokens, seeds",
        quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "untrained-copies", "those of untrained networks do not",
        lambda r: copying(r["sensitivity"]["untrained"], 2, 4), below(1.5), ours("a null control"),
        measures="the same of untrained seven softmax layers", quantifier="mean", at_least=3, about="algorithms",
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Transformers) -> None:
    """Train both kinds of network, and compare with least squares on one to five elements."""
    family = tasks.ObservedDynamics(length=51)
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    trained = {
        name: lab.train(name, transformer(name, family.d), family, training, watch=watched)
        for name, training in (("softmax", settings.training), ("mesa", settings.mesa))
    }
    lags = {
        name: [tuned_ridge(lab, settings, family, learners.Lags(count))]
        for count, name in enumerate(("one", "two", "three", "four", "five"), 1)
    }
    late = {
        f"{name}-late": [tuned_ridge(lab, settings, family, learners.Lags(count), [50])]
        for count, name in ((1, "one"), (2, "two"), (3, "three"))
    }
    groups = {**trained, **lags, **late}
    fresh = lab.draw(family, settings.tasks, "eval")
    compared(lab, groups, [], groups, fresh)
    untrained = [transformer("softmax", family.d).build(lab.stream("untrained", n)) for n in range(settings.seeds)]
    seen = lab.draw(family, settings.averaged_tasks, "sensitivity")
    lab.stage("sensitivity", lambda: of_each({**trained, "untrained": untrained}, seen, lenses.element_sensitivity))


ROLES = {
    "softmax": ("trained", "7 softmax"),
    "mesa": ("interpolated", "softmax, mesa"),
    "one": ("gd", "least squares on 1"),
    "two": (0.5, "on 2"),
    "three": ("limit", "on 3"),
    "four": ("other", "on 4"),
}

FIGURES = (
    losses(
        ROLES, KINDS, "The extended paper has the like",
        ("several-elements", "beyond-two", "in-context", "three-are-needed"),
        d=5,
    ),
    sensitivity_figure(
        {name: ROLES[name][1] for name in KINDS} | {"untrained": "untrained"}, "The extended paper has the like",
        ("copies-two-back", "untrained-copies"),
    ),
)  # fmt: skip

STUDY = Study(
    name="mesa-partial",
    source=EXTENDED,
    presets={"quick": Transformers(**SHORT), "paper": Transformers(LONG)},
    measure=measure,
    trainings=2,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(*DEVIATIONS, "Widths are the extended paper's, noise and length those of the other studies."),
)
