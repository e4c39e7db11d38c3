"""What do transformers that read raw elements learn from linear dynamics: to copy, to precondition, to descend?

Thesis: Figures 3.4, 3.8, 3.12 and 3.13. Seven softmax layers, a hybrid of one softmax and six linear layers, and one of
a softmax and a mesa layer are compared with ridge regression, the limit, and one tuned step of gradient descent. The
first layer's sensitivities and attention show whether it copies the previous element into each token. Linear probes
predict from every layer the next element, the preconditioned input, and the result of a gradient step on that input.
Untrained networks and shuffled targets are controls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope import lenses, study
from mesascope.studies.common import converged
from mesascope.studies.mesa import bugs, dynamics, raw_tokens
from mesascope.studies.mesa.dynamics import errors_of, improvement
from mesascope.studies.mesa.raw_tokens import LAYERS, LONG, SHORT, copying, copying_of_each, cosine_plan, transformer
from mesascope.study import Claim, Figure, Reported, Study, Training, above, below, ours, printed, stage

LIMITED, TRAINED = ("converged", "limit-at-its-optimum"), ("converged",)
DEEP = ("softmax", "linear")
TARGETS = {"next": "next element", "preconditioned": "preconditioned input", "implicit": "a step on it"}
ROLES = {
    "softmax": ("trained", "7 softmax"), "linear": ("other", "softmax, 6 linear"),
    "mesa": ("interpolated", "softmax, mesa"), "gd": ("gd", "gradient step"), "limit": ("limit", "least squares"),
}  # fmt: skip
PROBED = {name: ROLES[name] for name in DEEP} | {"untrained": ("gd", "untrained")}

main = dynamics.labelled("comparison", ROLES)


@study.frozen
class FullTransformers(dynamics.Probing, raw_tokens.Transformers, dynamics.Dynamics):
    # Gradients of linear layers grow with the third power of their inputs.
    linear: Training = cosine_plan(2500, 1e-3, batch=64, warmup_steps=250, clip=0.1)
    """Training of hybrids of a softmax and six linear layers; in longer training or at higher rates, the loss rises."""


def measure(lab: study.Lab, settings: FullTransformers) -> None:
    family = settings.family()
    plans = {"softmax": settings.training, "linear": settings.linear, "mesa": settings.mesa}
    networks = {name: (transformer(name, normalise_keys=settings.normalise_keys), plan) for name, plan in plans.items()}
    trained = dynamics.trained_networks(lab, settings, family, networks)
    groups = {**trained, **dynamics.descents(lab, settings), **dynamics.least_squares(settings)}
    dynamics.compare_predictors(lab, settings, family, groups, ROLES, ["limit"])

    initial = {"untrained": lab.untrained(transformer("softmax"))}
    seen = lab.draw(family, settings.averaged_tasks, "sensitivity")
    lab.stage("sensitivity", raw_tokens.of_each, trained | initial, seen, lenses.element_sensitivity)
    lab.stage("attention", raw_tokens.of_each, trained, seen, lambda net, own: lenses.attention_maps(net, own)[0])
    lab.stage("weights", dynamics.kept_products, trained["linear"][0], 1, 2)
    dynamics.probe_stages(lab, settings, {name: trained[name] for name in DEEP} | initial, TARGETS)


def _near(maps: np.ndarray) -> np.ndarray:
    """Attention to the element itself and the previous one, mean over tokens and heads, of each network."""
    own, before = (np.diagonal(maps, -lag, 2, 3)[..., raw_tokens.BEGINNING :].mean((-2, -1)) for lag in (0, 1))
    return own + before


COPYING = {name: copying(name) for name in LAYERS}


def _jump(name: str) -> study.Reading:
    """Error after / before the last layer, divided by that ratio of each earlier layer, at 40 elements."""
    words = "error after / before the last layer, over that of each earlier layer, after 40 elements"
    return errors_of("next", name).map(lambda e: e[:, -1:, 2] / e[:, -2:-1, 2] / (e[:, 1:-1, 2] / e[:, :-2, 2]), words)


def _implicit_lines(name: str) -> study.Line:
    late = _on_decoded(name).at((slice(None), slice(None), -1), "after 40 elements")
    layers = late.map(lambda found: np.arange(found.shape[1]), "layer")
    return study.Line(layers, late, ROLES[name][0], each=True, marks="^-")


def _attention(r: Any) -> dict[str, np.ndarray]:
    return {
        f"{ROLES[name][1]}, head {head}": one[:20, :20]
        for name in LAYERS
        for head, one in enumerate(r["attention"][name][0], 1)
    }


def _before_last(target: str, name: str, *known: int) -> study.Reading:
    """Errors of a probe before the last layer, after ``known`` elements."""
    times = [dynamics.TIMES.index(one) for one in known]
    return errors_of(target, name).at((slice(None), -2, times), "before the last layer")


def _on_decoded(name: str) -> study.Reading:
    """Errors of a gradient step on the input decoded after each layer / errors of a step on the input itself."""
    words = "error of the step on the decoded / on the input, each with its best size"
    return (errors_of("implicit", name) / errors_of("implicit", "input")).map(lambda found: found, words)


def _implicit(id: str, name: str, kind: str, source: Any, former: str = "") -> Claim:
    at = (slice(None), -2, [dynamics.TIMES.index(known) for known in (20, 40)])
    return Claim(id, f"in each network of {kind}, one gradient step on the input decoded before the last layer errs "
                 "less than one on the input itself, after 20 and 40 elements",
                 _on_decoded(name).at(at, "before the last layer"), below(1.0), source, former=former)  # fmt: skip


def _best_implicit(id: str, name: str, kind: str) -> Claim:
    def least(found: np.ndarray) -> np.ndarray:
        late = found[:, 1:, -1]
        return np.take_along_axis(late, study.nominal(late).argmin(1)[:, None], 1)[:, 0]

    return Claim(id, f"in each network of {kind}, one gradient step on the input decoded after one of the layers errs "
                 "less than one on the input itself, after 40 elements",
                 _on_decoded(name).map(least, "least over layers, after 40 elements: error of the step on the decoded "
                 "/ on the input"), below(1.0), printed("Fig. 3.13"))  # fmt: skip


def _diagonal(r: Any) -> np.ndarray:
    """Mean |diagonal entry| / mean |other entry| of each product, averaged over heads and layers, ``(1, 2)``."""
    sizes = [np.abs(r["weights"][name]) for name in ("w_kq", "w_pv")]
    diagonals = [np.diagonal(one, axis1=-2, axis2=-1) for one in sizes]
    others = [(one.sum((-2, -1)) - own.sum(-1)) / (own.shape[-1] * (own.shape[-1] - 1))
              for one, own in zip(sizes, diagonals, strict=True)]  # fmt: skip
    return np.array([[(own.mean(-1) / rest).mean() for own, rest in zip(diagonals, others, strict=True)]])


OF_UNTRAINED = study.beside(
    [_before_last(own, "softmax", 20) / _before_last(own, "untrained", 20) for own in ("next", "preconditioned")],
    "error of the probe, trained / untrained, before the last layer, after 20 elements",
)

TOGETHER = "than all earlier layers together, failed"
# Deviations of every preset.
ALWAYS = (
    "Tokens of the hybrid of linear layers are clipped at 4 after each layer.", dynamics.FROM_CODE, dynamics.PROBED,
    "Gradient steps on decoded inputs, and those on inputs, have the best size for each number of elements.",
    dynamics.EACH,
)  # fmt: skip
STUDY = Study(
    name="mesa-transformer",
    source=f"{dynamics.THESIS}: Figs. 3.4, 3.8, 3.12 and 3.13",
    presets={
        "quick": FullTransformers(**SHORT, probe_tasks=500, linear=cosine_plan(120, 3e-3, batch=16)),
        "paper": FullTransformers(LONG, seeds=8),
        "thesis": FullTransformers(**raw_tokens.AS_PRINTED, linear=raw_tokens.AS_PRINTED["training"], seeds=8),
    },
    measure=measure, trainings=3, premises=("converged", "shuffled-targets"), at_least=3,
    claims=(
        converged(*LAYERS, most=0.02),
        dynamics.best_ridge(),
        dynamics.tuned_steps("gd", "comparison"),
        dynamics.simulated_ridge(),
        dynamics.nothing_known(LAYERS, "limit"),
    ),
    figures=(
        dynamics.losses(ROLES, LAYERS, "Thesis: Fig. 3.4 A", claims=(
            Claim("mesa-best", "every hybrid with a mesa layer has a smaller loss than every network of seven softmax "
                  "layers", dynamics.each_with_each(main, "mesa", "softmax"), below(1.0), printed("Fig. 3.4 A"),
                  premises=LIMITED, reported=Reported(0.862, "authors' stored results")),
            Claim("mesa-below-linear", "every hybrid with a mesa layer has a smaller loss than every hybrid of six "
                  "linear layers",
                  dynamics.each_with_each(main, "mesa", "linear"), below(1.0), printed("Fig. 3.4 A"), premises=LIMITED),
            Claim("mesa-near-the-limit", "each hybrid with a mesa layer has a loss at most 10 % above that of ridge "
                  "regression on all known pairs", main.ratio("mesa", "limit"), below(1.1), printed("section 3.5.1"),
                  premises=LIMITED, reported=Reported(1.048, "authors' stored results, against 0.1893")),
            Claim("below-one-step", "the loss of seven softmax layers is less than two fifths of that of one tuned "
                  "step of gradient descent", main.ratio("softmax", "gd"), below(0.4),
                  ours("its size"), former="printed, held",
                  premises=("converged", "gd-at-its-optimum"), reported=Reported(0.256, "authors' stored results")),
        )),
        raw_tokens.sensitivity_figure({name: ROLES[name][1] for name in LAYERS} | {"untrained": "untrained"},
                                      "Thesis: Figs. 3.4 B and 3.8 A", claims=(
            Claim("copies", "after the first layer, tokens are twice as sensitive to the element before as to any "
                  "earlier one, in networks of all kinds",
                  copying_of_each(LAYERS), above(2.0), printed("Fig. 3.4 B"), quantifier="median", premises=TRAINED),
            *(
                Claim(f"cleaner-copies-{kind}", f"the first layers of {kind} hybrids are more sensitive to the element "
                      "before, relative to earlier ones, than those of networks of softmax layers, of the same seed",
                      COPYING[kind] / COPYING["softmax"], above(1.0), printed("Fig. 3.4, caption"),
                      quantifier="median", premises=TRAINED, former="as one claim, cleaner-copies, undecided")
                for kind in LAYERS if kind != "softmax"
            ),
            Claim("untrained-copies", "in untrained networks, tokens are less than twice as sensitive to the element "
                  "before as to any earlier one",
                  copying("untrained"), below(2.0), ours("a null control"), quantifier="median", about="algorithms"),
        )),
        Figure("attention", "Attention of the first layer's heads, first seed, means over sequences; rows attend to "
               "columns. Thesis: section 3.5.1.", study.Matrices(_attention, 1.0, 3), claims=(
            *(
                Claim(f"attends-before-{kind}", f"the first layer of {kind} networks gives the element itself and the "
                      "one before more than half of its attention, over all heads", stage("attention")[kind].map(
                          _near, "attention of t to t and t - 1, mean over tokens and heads"),
                      above(0.5), printed("section 3.5.1, attention maps"), quantifier="median", premises=TRAINED,
                      former="of one head, to the element before alone: failed (linear), held")
                for kind in LAYERS
            ),
        )),
        Figure("probes", "Errors of linear probes on sequences held out, by layer; 0 is before the first. Thesis: "
               "Figs. 3.4 C and D, 3.8 B and C, 3.13.",
               tuple(dynamics.probe_panel(target, title, PROBED) for target, title in TARGETS.items()),
               shared_legend=True, claims=(
            dynamics.shuffled_targets(("next", "preconditioned"), (*DEEP, "untrained")),
            Claim("next-improves", "each of seven softmax layers lowers the error of a linear probe of the next "
                  "element", improvement("next", "softmax"), below(1.0), printed("Fig. 3.4 C")),
            Claim("jump", "after 40 elements, the last of seven softmax layers lowers the error of the probe of the "
                  "next element by a larger factor than each earlier layer",
                  _jump("softmax"), below(1.0), printed("Fig. 3.4 C"), former=TOGETHER),
            Claim("hybrid-jump", "after 40 elements, the last of six linear layers lowers the error of the probe of "
                  "the next element by a larger factor than each earlier layer",
                  _jump("linear"), below(1.0), printed("Fig. 3.8 B"), former=TOGETHER),
            Claim("preconditions", "each of the second, third and fourth of seven softmax layers, after the first "
                  "copied, lowers the error of the probe of the preconditioned input A_t^-1 s_t",
                  improvement("preconditioned", "softmax", slice(1, 4)), below(1.0), printed("Fig. 3.4 D"),
                  former="each of the first four, failed"),
            Claim("hybrid-preconditions", "in hybrids of a softmax and six linear layers, each linear layer but the "
                  "last lowers the error of the probe of the preconditioned input A_t^-1 s_t",
                  improvement("preconditioned", "linear", slice(1, 6)), below(1.0), printed("Fig. 3.8 C"),
                  former="also the softmax layer, failed"),
            Claim("hybrid-gives-up", "the last of six linear layers raises the error of the probe of the "
                  "preconditioned input A_t^-1 s_t",
                  improvement("preconditioned", "linear", slice(6, None)), above(1.0), printed("Fig. 3.8 C")),
            Claim("untrained", "before the last layer and after 20 elements, the error of the probes of both targets "
                  "is a fifth smaller on trained networks of seven softmax layers than on untrained ones",
                  OF_UNTRAINED, below(0.8),
                  ours("a null control")),
        )),
        Figure("implicit", "Error of one gradient step on the input decoded after each layer, over that of one on the "
               "input itself, after 40 elements; 0 is before the first layer, one line a seed. Thesis: Fig. 3.13.",
               tuple(study.Lines(ROLES[name][1], "layer", "error / of a step on the input",
                                 [_implicit_lines(name), study.Level(1.0, "gd")], "y") for name in DEEP),
               claims=(
            _implicit("implicit-step", "softmax", "seven softmax layers", ours("at the layer of hybrids"),
                      "printed, failed"),
            _implicit("hybrid-implicit-step", "linear", "a softmax and six linear layers", printed("Fig. 3.13 B")),
            Claim("hybrid-implicit-improves", "in hybrids of a softmax and six linear layers, one gradient step on the "
                  "input decoded after each linear layer but the last errs less than one on that decoded before it",
                  improvement("implicit", "linear", slice(1, 6)), below(1.0), printed("Fig. 3.13 B")),
            Claim("hybrid-implicit-gives-up", "one gradient step on the input decoded after the last of six linear "
                  "layers errs more than one on that decoded before it",
                  improvement("implicit", "linear", slice(6, None)), above(1.0), printed("Fig. 3.13 B")),
            _best_implicit("implicit-at-best", "softmax", "seven softmax layers"),
            _best_implicit("hybrid-implicit-at-best", "linear", "a softmax and six linear layers"),
        )),
        dynamics.weights_figure("Products of weights of the first two linear layers of a hybrid, first seed, each over "
                                "its largest entry. Thesis: Fig. 3.12.", 4, claims=(
            Claim("diagonals", "in the products of weights of the first two linear layers of one network, the mean "
                  "size of diagonal entries is more than 1.25 times that of other entries, averaged over heads and "
                  "layers", _diagonal, above(1.25), printed("Fig. 3.12"),
                  quantifier="exact", over="learners", at_least=1,
                  measures="mean size of diagonal entries / of others, mean over layers and heads, W_KQ and W_PV, "
                  "first seed; random weights have 1.0 +- 0.04",
                  exact_because="it is about the network of the figure, whose weights are known"),
        )),
    ),
    unlike=dict.fromkeys(("quick", "paper"), "10,000 to 20,000 steps of 256 sequences"),
    deviations={
        "paper": (
            *raw_tokens.DEVIATIONS["paper"],
            "The hybrid of linear layers trains for 2,500 steps at 1e-3, and the norm of its gradients is clipped at "
            "0.1.",
            *ALWAYS,
        ),
        "thesis": (*raw_tokens.DEVIATIONS["thesis"], *ALWAYS),
    },
    mutations=(
        bugs.FORGETTING, bugs.ONE_LATER, bugs.PROBES_IN_SAMPLE, bugs.STOPPING, bugs.LARGE_RIDGE, bugs.CONSTANT,
        bugs.own_sensitivities(1),
    ),
    mutated={
        **{name: cosine_plan(40, 3e-3, batch=8) for name in ("training", "linear", "mesa")},
        "tasks": 600, "tune_tasks": 50, "watch_tasks": 50, "probe_tasks": 200, "averaged_tasks": 1, "seeds": 8,
    },
)  # fmt: skip
