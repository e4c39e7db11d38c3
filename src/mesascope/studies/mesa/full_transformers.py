"""What do transformers that read raw elements learn from linear dynamics: to copy, to precondition, to descend?

Thesis: Figures 3.4, 3.8, 3.12 and 3.13. Seven softmax layers, a hybrid of one softmax and six linear layers, and one of
a softmax and a mesa layer are compared with ridge regression, the limit, and one tuned step of gradient descent. The
first layer's sensitivities and attention show whether it puts neighbours together; linear probes look in every layer
for the next element, for the preconditioned input, and for what a gradient step on that would predict. Untrained
networks and shuffled targets are controls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import lenses
from mesascope.evidence import Claim, Reported, above, below, ours, printed, stage
from mesascope.reports import Figure, Matrices
from mesascope.studies.common import converged, plan, watch_loss
from mesascope.studies.mesa.dynamics import (
    THESIS,
    Dynamics,
    around,
    best_ridge,
    compared,
    each_with_each,
    least_squares,
    losses,
    one_step,
    tuned_steps,
)
from mesascope.studies.mesa.probing import Probing, by_layer, improvement, probe_stages, probed, shuffled_targets
from mesascope.studies.mesa.transformers import (
    BEGINNING,
    DEVIATIONS,
    LAYERS,
    LONG,
    SHORT,
    USUAL,
    Transformers,
    copying,
    of_each,
    sensitivity_figure,
    transformer,
)
from mesascope.studies.mesa.weights import kept_products, weights_figure
from mesascope.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

# Gradients of linear layers grow with the third power of what they read.
CALM = USUAL | {"clip": 0.1}
PREMISES = ("converged", "limit-at-its-optimum")
PROBES = ("converged", "shuffled-targets")
DEEP = ("softmax", "linear")
STAGES = {
    "next-probe": "next element",
    "preconditioned-probe": "preconditioned input",
    "implicit-probe": "a step on it",
}


@dataclass(frozen=True)
class FullTransformers(Probing, Transformers, Dynamics):
    """Settings of the study."""

    linear: Training = field(default_factory=lambda: plan(2500, 1e-3, batch=64, warmup_steps=250, **CALM))
    """How hybrids of a softmax and six linear layers train: gently and not for long, or their loss springs back."""


def _copied(r: Any) -> np.ndarray:
    return np.stack([copying(r["sensitivity"][name]) for name in LAYERS], axis=1)


def _previous(r: Any) -> np.ndarray:
    """The attention of each first layer's head that looks most at the element before, mean over tokens."""
    return np.stack(
        [np.diagonal(r["attention"][name], -1, 2, 3)[..., BEGINNING:].mean(-1).max(-1) for name in LAYERS], axis=1
    )


def _last(r: Any, name: str) -> np.ndarray:
    """By how much the last layer reduces the error over how much all before it do, after 40 elements; 1 if as much."""
    errors = by_layer(r["next-probe"], name)[:, :, 2]
    return (errors[:, -1] / errors[:, -2]) / (errors[:, -2] / errors[:, 0])


def _implicit(r: Any) -> np.ndarray:
    """Error of a step on what is decoded before the last layer over that of one on the input, after 20 and 40."""
    found = r["implicit-probe"]
    return np.concatenate(
        [by_layer(found, name)[:, -2, 1:] / by_layer(found, "input")[:, -2, 1:] for name in DEEP], axis=1
    )


CLAIMS = (
    converged(*LAYERS, at_least=3, most=0.02),
    best_ridge(),
    tuned_steps("gd", "comparison"),
    Claim(
        "mesa-best", "every hybrid with a mesa layer loses less than every network of seven softmax layers",
        lambda r: each_with_each(r["comparison"], "mesa", "softmax"), below(1.0), printed("Fig. 3.4 A"),
        measures="loss of softmax and mesa / of seven softmax layers, each with each", at_least=3, premises=PREMISES,
        reported=Reported(0.862, "authors' stored results"),
    ),
    Claim(
        "mesa-below-linear", "and less than every hybrid of six linear layers",
        lambda r: each_with_each(r["comparison"], "mesa", "linear"), below(1.0), printed("Fig. 3.4 A"),
        measures="loss of softmax and mesa / of softmax and six linear layers, each with each", at_least=3,
        premises=PREMISES,
    ),
    Claim(
        "mesa-near-the-limit",
        "each hybrid with a mesa layer loses at most 10 % more than ridge regression on all " "known pairs",
        stage("comparison").ratio("mesa", "limit"), below(1.1), printed("section 3.5.1"), at_least=3, premises=PREMISES,
        reported=Reported(1.048, "authors' stored results, against 0.1893"),
    ),
    Claim(
        "below-one-step",
        "seven softmax layers lose less than two fifths of what one tuned step of gradient descent " "does",
        stage("comparison").ratio("softmax", "gd"), below(0.4), printed("section 3.5.1"), at_least=3,
        premises=("converged", "gd-at-its-optimum"), reported=Reported(0.256, "authors' stored results"),
    ),
    Claim(
        "copies", "after the first layer, tokens depend on the element before twice as much as on any earlier one, in "
        "networks of all kinds", _copied, above(2.0), printed("Fig. 3.4 B"),
        measures="|d e_t / d s_{t-1}| / largest |d e_t / d s_{t-k}| of k > 1, means over tokens " "and seeds",
        quantifier="mean", at_least=3, premises=("converged",),
    ),
    Claim(
        "untrained-copies", "those of untrained networks do not", lambda r: copying(r["sensitivity"]["untrained"]),
        below(2.0), ours("a null control"), measures="the same of untrained seven softmax layers", quantifier="mean",
        at_least=3, about="algorithms",
    ),
    Claim(
        "attends-before", "a head of the first layer gives the element before more than half of its attention",
        _previous, above(0.5), printed("section 3.5.1, attention maps"),
        measures="attention of t to t - 1, mean over tokens, of the head that has most, mean over seeds",
        quantifier="mean", at_least=3, premises=("converged",),
    ),
    shuffled_targets(tuple(STAGES)[:2], (*DEEP, "untrained")),
    Claim(
        "next-improves", "through seven softmax layers the next element is decoded better after each than before it",
        lambda r: improvement(r["next-probe"], "softmax"), below(1.0), printed("Fig. 3.4 C"),
        measures="error of the probe after a layer / before it, at 10, 20 and 40 elements", at_least=3, premises=PROBES,
    ),
    Claim(
        "jump", "the last of seven softmax layers reduces its error by a larger factor than all layers before together",
        lambda r: _last(r, "softmax"), below(1.0), printed("Fig. 3.4 C"),
        measures="error after the last layer / before it, over that before it / before the first, after 40 elements",
        at_least=3, premises=PROBES,
    ),
    Claim(
        "hybrid-jump", "and so does the last of six linear layers", lambda r: _last(r, "linear"), below(1.0),
        printed("Fig. 3.8 B"), measures="the same of softmax and six linear layers", at_least=3, premises=PROBES,
    ),
    Claim(
        "preconditions", "the preconditioned input is decoded better from layer to layer, through the first four of "
        "seven softmax layers", lambda r: improvement(r["preconditioned-probe"], "softmax", slice(4)), below(1.0),
        printed("Fig. 3.4 D"), measures="error of the probe after a layer / before it", at_least=3, premises=PROBES,
    ),
    Claim(
        "hybrid-preconditions", "and through all of softmax and six linear layers but the last",
        lambda r: improvement(r["preconditioned-probe"], "linear", slice(6)), below(1.0), printed("Fig. 3.8 C"),
        measures="error of the probe after a layer / before it", at_least=3, premises=PROBES,
    ),
    Claim(
        "hybrid-gives-up", "whose last layer leaves less of it",
        lambda r: improvement(r["preconditioned-probe"], "linear", slice(6, None)), above(1.0), printed("Fig. 3.8 C"),
        measures="error of the probe after the last layer / before it", at_least=3, premises=PROBES,
    ),
    Claim(
        "untrained", "both targets are decoded a fifth better from trained networks of seven softmax layers than from "
        "untrained ones",
        lambda r: np.stack( [by_layer(r[s], "softmax")[:, -2, 1] / by_layer(r[s], "untrained")[:, -2, 1] for s in tuple(STAGES)[:2]], axis=1, ),
        below(0.8), ours("a null control"),
        measures="error of the probe, trained / untrained, before the last layer, after 20 elements", at_least=3,
        premises=PROBES,
    ),
    Claim(
        "implicit-step", "one gradient step on the input as it is decoded before the last layer errs less than one on "
        "the input itself, after 20 and after 40 elements", _implicit, below(1.0), printed("Fig. 3.13"),
        measures="error of the step on the decoded / on the input, both with the best step size of that time",
        at_least=3, premises=PROBES,
    ),
)  # fmt: skip


def measure(lab: Lab, settings: FullTransformers) -> None:
    """Train networks of each kind, compare, look into the first layer and probe."""
    family = settings.family()
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    trained = {
        name: lab.train(name, transformer(name), family, training, watch=watched)
        for name, training in (
            ("softmax", settings.training),
            ("linear", settings.linear),
            ("mesa", settings.mesa),
        )
    }
    groups = {**trained, **around("gd", one_step(lab, settings)), **least_squares(settings)}
    fresh = lab.draw(family, settings.tasks, "eval")
    compared(lab, groups, ["limit"], ROLES, fresh)

    untrained = [transformer("softmax").build(lab.stream("untrained", index)) for index in range(settings.seeds)]
    seen = lab.draw(family, settings.averaged_tasks, "sensitivity")
    lab.stage("sensitivity", lambda: of_each({**trained, "untrained": untrained}, seen, lenses.element_sensitivity))
    lab.stage("attention", lambda: of_each(trained, seen, lambda net, own: lenses.attention_maps(net, own)[0]))
    lab.stage("weights", lambda: kept_products(trained["linear"][0], 1, 2))

    shown = lab.draw(family, settings.probe_tasks, "probe")
    probe_stages(lab, {name: trained[name] for name in DEEP} | {"untrained": untrained}, shown, STAGES)


ROLES = {
    "softmax": ("trained", "7 softmax"),
    "linear": ("other", "softmax, 6 linear"),
    "mesa": ("interpolated", "softmax, mesa"),
    "gd": ("gd", "gradient step"),
    "limit": ("limit", "least squares"),
}
PROBED = {name: ROLES[name] for name in DEEP} | {"untrained": ("gd", "untrained")}


def _attention(r: Any) -> dict[str, np.ndarray]:
    return {
        f"{ROLES[name][1]}, head {head + 1}": one[:20, :20]
        for name in LAYERS
        for head, one in enumerate(r["attention"][name][0])
    }


FIGURES = (
    losses(
        ROLES, tuple(LAYERS), "Thesis: Fig. 3.4 A",
        ("mesa-best", "mesa-below-linear", "mesa-near-the-limit", "below-one-step"),
    ),
    sensitivity_figure(
        {name: ROLES[name][1] for name in LAYERS} | {"untrained": "untrained"}, "Thesis: Figs. 3.4 B and 3.8 A",
        ("copies", "untrained-copies"),
    ),
    Figure(
        "attention", "Attention of the first layer's heads, first seed, means over sequences; rows attend to columns. "
        "Thesis: section 3.7.4.", Matrices(_attention, 1.0, 3), size=(9, 6.6), claims=("attends-before",),
    ),
    Figure(
        "probes", "Errors of linear probes on sequences held out, by layer; 0 is before the first. Thesis: Figs. 3.4 C "
        "and D, 3.8 B and C, 3.13.", tuple(probed(stage, title, PROBED) for stage, title in STAGES.items()),
        shared_legend=True,
        claims=(
            "next-improves", "jump", "hybrid-jump", "preconditions", "hybrid-preconditions", "hybrid-gives-up",
            "untrained", "implicit-step", "shuffled-targets",
        ),
    ),
    weights_figure(
        "Products of weights of the first two linear layers of a hybrid, first seed, each over its largest entry. "
        "Thesis: Fig. 3.12.", 4, (9, 8.6),
    ),
)  # fmt: skip

STUDY = Study(
    name="mesa-transformer",
    source=f"{THESIS}: Figs. 3.4, 3.8, 3.12 and 3.13",
    presets={
        "quick": FullTransformers(**SHORT, probe_tasks=500, linear=plan(120, 3e-3, batch=16, **USUAL)),
        "paper": FullTransformers(LONG),
    },
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        *DEVIATIONS,
        "Tokens of the hybrid of linear layers are clipped at 4 after each layer; it trains for 2,500 steps at "
        "1e-3, and the norm of its gradients is clipped at 0.1.",
        "First elements are U(-1, 1), as in the authors' code; the thesis has N(0, I).",
        "Probes are of A_t^{-1} s_t itself, with a regulariser of 0.1, not of a Chebyshev approximation.",
    ),
)  # fmt: skip
