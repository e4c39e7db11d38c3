"""How do transformers predict systems of which they see a part?

Source: von Oswald et al. (2023, arXiv 2309.05858). A hidden state of width 15 is observed through 5 numbers:
three consecutive elements determine it, and one does not. Seven softmax layers, and a softmax and a mesa layer, are
compared with ridge regression on the last one to five elements.
"""

from __future__ import annotations

from dataclasses import replace

from mesascope import learners, lenses, study, tasks
from mesascope.studies.common import converged, drawn_with
from mesascope.studies.mesa import bugs, dynamics, raw_tokens
from mesascope.studies.mesa.raw_tokens import EXTENDED, Transformers, copying, copying_of_each, transformer
from mesascope.study import Claim, Mutation, Study, above, below, derived, ours, printed

KINDS = ("softmax", "mesa")
ROLES = {
    "softmax": ("trained", "7 softmax"), "mesa": ("interpolated", "softmax, mesa"),
    "one": ("gd", "least squares on 1"), "two": (0.5, "on 2"), "three": ("limit", "on 3"), "four": ("other", "on 4"),
}  # fmt: skip

main = dynamics.labelled("comparison", ROLES, one="ridge regression on single elements")
# Errors of ridge regression on one and on two elements, by the number of known elements, in a simulation.
SIMULATED = {"one": {50: 0.557}, "two": {50: 0.244}}
late = dynamics.after(dynamics.labelled("by-time", ROLES, mse="error"), 50)


def measure(lab: study.Lab, settings: Transformers) -> None:
    family = tasks.ObservedDynamics(length=51)
    plans = {"softmax": settings.training, "mesa": settings.mesa}
    own = {"d": family.d, "normalise_keys": settings.normalise_keys}
    networks = {name: (transformer(name, **own), plan) for name, plan in plans.items()}
    trained = dynamics.trained_networks(lab, settings, family, networks)
    groups = {**trained}
    for count, name in enumerate(("one", "two", "three", "four", "five"), 1):
        groups[name] = [dynamics.tuned_ridge(lab, settings, family, learners.Lags(count))]
    for count, name in enumerate(("one", "two", "three"), 1):
        groups[f"{name}-late"] = [dynamics.tuned_ridge(lab, settings, family, learners.Lags(count), [50])]
    dynamics.compare_predictors(lab, settings, family, groups, groups)
    seen = lab.draw(family, settings.averaged_tasks, "sensitivity")
    trained["untrained"] = lab.untrained(transformer("softmax", family.d))
    lab.stage("sensitivity", raw_tokens.of_each, trained, seen, lenses.element_sensitivity)


ON_THREE = study.beside(
    [late.ratio("three-late", f"{few}-late") for few in ("one", "two")], "error on three elements / on one, on two"
).at(0, "after 50 elements")
OVER_TWO = study.beside(
    [late.ratio(kind, "two-late") for kind in KINDS],
    "error of each kind / of ridge regression on two elements, after 50 elements",
)


LONG = Transformers(raw_tokens.LONG, seeds=8)
LONG = replace(LONG, training=replace(LONG.training, steps=10_000), mesa=replace(LONG.mesa, steps=10_000))
STUDY = Study(
    name="mesa-partial",
    source=EXTENDED,
    presets={"quick": Transformers(**raw_tokens.SHORT), "paper": LONG,
             "thesis": Transformers(**raw_tokens.AS_PRINTED, seeds=8)},
    measure=measure, trainings=2, premises=("converged",), at_least=3,
    claims=(converged(*KINDS, most=0.02, start=1.0,
                      former="counted from the initial loss, held"), dynamics.nothing_known(KINDS, "one"),
            dynamics.simulated_ridge(SIMULATED, within=0.3)),
    figures=(
        dynamics.losses(ROLES, KINDS, "Compare the extended paper", d=5, claims=(
            Claim("three-are-needed", "after 50 elements the error of least squares on the last three elements is less "
                  "than a tenth of that on one or two", ON_THREE, below(0.1),
                  derived("the state has width 15, an element 5"), over="algorithms", at_least=2),
            Claim("several-elements", "networks of both kinds have a smaller loss than ridge regression on single "
                  "elements", dynamics.ratios(main, KINDS, "one"), below(1.0), printed(EXTENDED)),
            Claim("beyond-two", "after 50 elements networks of both kinds have a smaller error than ridge regression "
                  "on two elements", OVER_TWO, below(1.0), derived("the state needs three")),
            raw_tokens.in_context(KINDS, ROLES),
        )),
        raw_tokens.sensitivity_figure({name: ROLES[name][1] for name in KINDS} | {"untrained": "untrained"},
                                      "Compare the extended paper", claims=(
            Claim("copies-two-back", "after the first layer, tokens are more than 1.5 times as sensitive to the "
                  "element two before as to any four or more before",
                  copying_of_each(KINDS, 2, 4), above(1.5), printed(EXTENDED), quantifier="median"),
            Claim("untrained-copies", "in untrained networks, tokens are less than 1.5 times as sensitive to the "
                  "element two before as to any four or more before", copying("untrained", 2, 4), below(1.5),
                  ours("a null control"), quantifier="median", about="algorithms"),
        )),
    ),
    unlike=dict.fromkeys(("quick", "paper"), "256 sequences a step"),
    deviations={
        preset: (
            *(one.replace("6,000", "10,000") for one in own),
            "Widths are the extended paper's, noise and length those of the other studies.",
        )
        for preset, own in raw_tokens.DEVIATIONS.items()
    },
    mutations=(
        bugs.CHANGING["ObservedDynamics"], bugs.NOISY["ObservedDynamics"], bugs.UNTUNED_RIDGE, bugs.STOPPING,
        bugs.FORGETTING, bugs.own_sensitivities(2),
        Mutation("the whole state is seen", "mesascope.tasks:ObservedDynamics.sample", drawn_with(hidden=5)),
        Mutation("features are one element short", "mesascope.learners:Lags.__init__",
                 lambda init: lambda self, count: init(self, max(count - 1, 1))),
    ),
    mutated={
        "training": raw_tokens.cosine_plan(40, 3e-3, batch=8), "mesa": raw_tokens.cosine_plan(40, 8e-3, batch=8),
        "tasks": 400, "tune_tasks": 100, "watch_tasks": 50, "seeds": 8,
    },
)  # fmt: skip
