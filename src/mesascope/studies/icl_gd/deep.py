"""Do five separate linear self-attention layers, and ten looped ones, run GD++?

ICML paper: Figures 3 (right), 6c and 7. Tasks are noiseless linear regression with N = d = 10. Tokens are clipped at
10 throughout. Five layers with weights of their own are compared with five gradient steps (a tuned step size each),
with five steps of GD++ (an eta and a gamma each, tuned), with GD++ of the step sizes in their weights, and with GD++
tuned from these step sizes: deep GD++ has many good step sizes, and each network finds its own. Ten looped
layers are compared with ten tied steps of GD++.

From small random weights, some layers die: their step sizes shrink to 0. Other networks start from the weight products
of five gradient steps plus random ones. Each layer of both kinds of network is left out in turn.

Mean losses depend on rare contexts where deep GD++ diverges, so median losses are reported as well. One network trains
with the authors' settings; in preset ``thesis`` all do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mesascope import lenses, study
from mesascope.studies.common import converged, midpoint, midpoint_distances, midpoint_losses, plan
from mesascope.studies.icl_gd import bugs, deep_networks, regression, shared
from mesascope.studies.icl_gd.deep_networks import LOOPED, SEPARATE, Deep, as_network
from mesascope.studies.icl_gd.regression import CLIP, SecondTraining, authors_plan, compare_midpoints, own_descent
from mesascope.studies.icl_gd.shared import SUITED
from mesascope.study import Claim, Figure, Line, Lines, Reading, Training, above, below, ours, printed, stage, two_sided

TRAINED = ("separate-converged",)
TUNED = (*TRAINED, "separate-gd++-at-its-optimum")
TIED = ("looped-converged", "looped-gd++-at-its-optimum")

main, looped, warm, authors = (stage(f"{name}-comparison") for name in ("separate", "looped", "warm", "authors"))
unseen, unseen_teachers = stage("separate-unseen-inputs"), stage("separate-unseen-teacher-scale")
paths, quantiles, built = stage("paths"), stage("quantiles"), stage("to-tuned", other="the construction")
shares = quantiles["quantile"]
teachers = stage("separate-teacher-scale")
scaled = stage("separate-input-scale")
near = scaled.where(lambda cases: shared.over_training(cases["x_scale"]) <= 1.25, "scales up to 1.25 times training's")
smaller = teachers.where(lambda cases: cases["w_scale"] <= 2.0, "scales up to 2")
# Training of the authors' code for five separate layers.
AUTHORS = authors_plan(50_000, learning_rate=5e-4, clip=10.0)
LONG = "50,000 steps of 2,048 tasks at a learning rate of 5e-4"
SHORT = dict.fromkeys(("quick", "paper"), "5,000 steps of 2,048 tasks at a learning rate of 5e-4")
# Source of claims about GD++ with the step sizes in a network's weights; the paper tunes GD++ for each depth.
OWN = study.derived("Figs. 3b and 6c, whose GD++ is tuned")
HELD, FAILED = "of each network, held", "of each network, failed"
LAYERS = Reading("layer", lambda r: np.arange(1, SEPARATE + 1))


def measure(lab: study.Lab, settings: Deep) -> None:
    fresh = lab.draw(settings.family(), settings.tasks, "eval")
    references = regression.untied_descents(lab, settings, SEPARATE)
    alone = {name: [one] for name, one in references.items()}
    trained = regression.contrast(
        lab, settings, "separate", deep_networks.separate(settings, settings.init_scale), references, own=SEPARATE,
        more=lambda networks: {"near": deep_networks.near(lab, settings, networks)}, sweeps=tuple(regression.SWEEPS),
    )  # fmt: skip
    lab.stage("read", deep_networks.step_sizes, [own_descent(net, SEPARATE) for net in trained])
    goals = {
        "own": [as_network(net, own_descent(net, SEPARATE)) for net in trained],
        "tuned": [as_network(net, references["gd++"]) for net in trained],
    }
    lab.stage("to-own", compare_midpoints, trained, goals["own"], fresh)
    lab.stage("to-tuned", compare_midpoints, trained, goals["tuned"], fresh, {"gd++": alone["gd++"]})
    lab.stage("paths", deep_networks.paths, trained, goals, fresh)
    lab.stage("quantiles", deep_networks.quantiles, {"trained": trained} | alone, fresh)

    warm = deep_networks.warm(lab, settings)
    few = fresh.part(0, settings.sweep_tasks)
    lab.stage("left-out", deep_networks.left_out, trained, few)
    lab.stage("warm-left-out", deep_networks.left_out, warm, few)
    groups = {"warm": warm, "own": [own_descent(net, SEPARATE) for net in warm]}
    lab.stage("warm-comparison", lenses.measure_learners, groups, ["own"], fresh)

    recipe, tied = settings.looped, deep_networks.tied(lab, settings)
    config = regression.network(settings, n_layers=LOOPED, shared=True, token_clip=CLIP, init_scale=recipe.init_scale)
    looped = regression.contrast(
        lab, settings, "looped", config, {"gd++": tied}, recipe.training, own=LOOPED, seeds=5,
        more=lambda networks: {"middle": regression.midpoints(networks, [as_network(net, tied) for net in networks])},
    )  # fmt: skip
    goal = [as_network(net, tied) for net in looped]
    lab.stage("looped-interpolation", compare_midpoints, looped, goal, fresh, {"gd++": [tied]})

    recipe, watched = settings.authors, deep_networks.watch(lab, settings)
    config = deep_networks.separate(settings, recipe.init_scale)
    chosen = lab.seeds[: settings.authors_seeds]
    authors = lab.train("authors", config, settings.family(), recipe.training, seeds=chosen, watch=watched)
    lab.stage("authors-comparison", lenses.measure_learners, {"trained": authors} | alone, list(alone), fresh)


def _smooth(losses: Any) -> np.ndarray:
    """True for each network whose midpoint has a loss less than 10 % above that of each end."""
    return study.nominal(losses).max(axis=1) < 1.1


def _raised(losses: Any) -> np.ndarray:
    """True for each network whose midpoint has a loss more than 10 % above that of each end."""
    return study.nominal(losses).min(axis=1) > 1.1


def _less_alike(r: Any) -> np.ndarray:
    """|log(loss / loss of tuned GD++)| at each end of both sweeps over unseen inputs - that on tasks of training.

    ``(seeds, 4)``
    """
    one, two, own = (
        np.abs(np.log(study.nominal(swept(r).ratio("trained", "gd++")))) for swept in (unseen, unseen_teachers, main)
    )
    return np.concatenate([one[:, [0, -1]], two[:, [0, -1]]], axis=1) - own[:, None]


def _without_each(name: str) -> Reading:
    """Median loss without each layer / of the whole network, ``(seeds, layers)``."""
    ratios = [stage(name).ratio(f"without {layer}", "trained", "median") for layer in range(1, SEPARATE + 1)]
    return study.beside(ratios, "median loss without a layer / of the whole network, for each layer")


def _loses(ratios: Any) -> np.ndarray:
    """True for each network with a layer without which its median loss does not double."""
    return study.nominal(ratios).min(axis=1) < 2


def _changes(ratios: Any) -> np.ndarray:
    return np.abs(study.nominal(ratios) - 1)


def _alive_over_warm(r: Any) -> np.ndarray:
    """Median loss of each network without a dead layer (of any, if all have one) / of each warm-started network."""
    alive = ~_loses(_without_each("left-out")(r))
    chosen = alive if alive.any() else ~alive
    return np.true_divide.outer(main["median", "trained"](r)[chosen], warm["median", "warm"](r))


def _worse(r: Any) -> np.ndarray:
    """Loss of each looped network / of each separate one, ``(separate, looped)``."""
    separate, tied = (study.nominal(one["mse", "trained"](r)) for one in (main, looped))
    return tied / separate[:, None]


def _apart(name: str, end: str) -> Claim:
    """Premise: the midpoint's predictions differ from both ends, not necessarily by half: deep paths are curved."""
    return Claim(f"{name}-apart", f"the predictions halfway to {end} differ from those of each end by more than a "
                 "tenth of the difference between the ends",
                 midpoint_distances(name), above(0.1), ours("premise"), premises=())  # fmt: skip


def _median(id: str, sentence: str, *rest: Any, **options: Any) -> Claim:
    """Claim about the median network of five separate layers."""
    return Claim(id, f"in the median network of five layers, the {sentence}", *rest, quantifier="median", **options)


_each = partial(study.sweep, each=True, marks=".-")  # one line per seed

FIVE = shared.contrast_figures(
    "separate", "five separate layers", ("gd", "gd++"), "Paper: Figs. 3b and 6c", "y", claims=(
        _median("loss-matches-own-gd++", "loss is within 10 % of that of GD++ with step sizes read from its weights",
                main.ratio("trained", "own"), two_sided(0.1), OWN, former="printed, of each network, failed"),
        _median("loss-matches-gd++", "loss is within 10 % of that of tuned GD++", main.ratio("trained", "gd++"),
                two_sided(0.1), printed("Fig. 3b left: matches GD++"), premises=TUNED, former=FAILED),
        _median("below-gd", "loss is smaller than that of five gradient steps, each tuned", main.ratio("trained", "gd"),
                below(1.0, by="paper"), printed("Fig. 3b left"), premises=(*TRAINED, SUITED), former=HELD),
        _median("cosine-own-gd++", "sensitivities have a cosine above 0.99 with those of GD++ with step sizes read "
                "from its weights", main["cosine", "trained", "own"], above(0.99), OWN,
                former="printed, of each network, held"),
        _median("cosine-tuned-gd++", "sensitivities have a cosine above 0.99 with those of tuned GD++",
                main["cosine", "trained", "gd++"], above(0.99), printed("Fig. 3b centre right"), premises=TUNED,
                former=FAILED),
        _median("gd++-above-gd", "sensitivities are nearer to tuned GD++'s than to tuned gradient descent's",
                main["cosine", "trained", "gd++"] - main["cosine", "trained", "gd"], above(0.0, by="paper"),
                printed("Fig. 3b centre"), premises=(*TUNED, SUITED), former=HELD),
        Claim("gd-early", "at the training step where the cosine with gradient descent peaks, networks are nearer to "
              "gradient descent than to GD++",
              shared.peak_difference("separate"), above(0.0), printed("Fig. 3b centre left"),
              quantifier="median", premises=(*TUNED, SUITED)),
        _median("close-to-zero", "mean half squared error is below 0.02", main["mse", "trained"] / 2, below(0.02),
                printed("section 3: loss close to 0"), former="of each network, undecided"),
    ), away=(
        _median("input-scale", "loss stays within a quarter of that of GD++ with its own step sizes, for input scales "
                "up to 1.25 times those of training", near.ratio("trained", "own"), two_sided(0.25), OWN,
                former="printed, of each network, failed"),
        _median("input-scale-gd++", "loss stays within a quarter of that of tuned GD++, for inputs scaled by 0.5 to 2",
                scaled.ratio("trained", "gd++"), two_sided(0.25), printed("Figs. 3b right, 6c left"), premises=TUNED,
                former=FAILED),
    ),
)  # fmt: skip

CHANGED_TASKS = shared.changed_tasks(
    "separate-", "five separate layers", ("gd", "gd++"), "Paper: Fig. 6c", (
        Claim("far-from-training", "on normal, exponential and Laplace inputs, of norm 0.5 and 5 and with teachers "
              "scaled by 0.5 and 5, losses differ more from tuned GD++'s than on tasks of training",
              Reading("|log(loss / loss of tuned GD++)| in each case - that on tasks of training", _less_alike),
              above(0.0, by="paper"), printed("Fig. 6: less good match of deep networks far away from training"),
              quantifier="median", premises=TUNED, former="of inputs that are not divided by their norm, failed"),
        _median("teacher-scale", "loss stays within a quarter of that of GD++ with its own step sizes, for teachers "
                "scaled by 0.5 to 2", smaller.ratio("trained", "own"), two_sided(0.25), OWN,
                former="printed, of each network, undecided"),
        _median("teacher-scale-gd++", "loss stays within a quarter of that of tuned GD++, for teachers scaled by 0.5 "
                "to 5", teachers.ratio("trained", "gd++"), two_sided(0.25), printed("Fig. 6c centre left"),
                premises=TUNED, former=FAILED),
        _median("unseen-inputs", "loss is within a quarter of that of tuned GD++ on normal, exponential and Laplace "
                "inputs of norm 0.5 to 5", unseen.ratio("trained", "gd++"), two_sided(0.25),
                printed("Fig. 6c centre right"), premises=TUNED),
        _median("unseen-teacher-scale", "loss is within a quarter of that of tuned GD++ on normal, exponential and "
                "Laplace inputs, for teachers scaled by 0.5 to 5", unseen_teachers.ratio("trained", "gd++"),
                two_sided(0.25), printed("Fig. 6c right"), premises=TUNED),
    ),
)  # fmt: skip

TEN = shared.contrast_figures(
    "looped", "ten looped layers", ("gd++",), "Paper: Fig. 7", "y", claims=(
        Claim("looped-matches-gd++", "the loss of each network of ten looped layers is within 10 % (quick preset: 50 "
              "%) of that of ten tied steps of GD++", looped.ratio("trained", "gd++"),
              {"quick": two_sided(0.5), "paper": two_sided(0.1), "thesis": two_sided(0.1)}, printed("Fig. 7"),
              premises=TIED, unlike=SHORT),
        _median("looped-worse", "loss is smaller than that of each network of ten looped layers",
                Reading("loss of each looped network / of each separate one", _worse), above(1.0, by="paper"),
                printed("Fig. 7"), premises=("separate-converged", "looped-converged"), unlike=SHORT, former=HELD),
        Claim("looped-cosine", "each network of ten looped layers has a cosine above 0.99 with ten tied steps of GD++",
              looped["cosine", "trained", "gd++"], above(0.99), printed("Fig. 7 centre"), premises=TIED, unlike=SHORT),
        Claim("looped-interpolation", "halfway between ten looped layers and the construction the loss is at most 10 % "
              "above both ends'", midpoint_losses("looped-interpolation"), below(1.1),
              printed("Fig. 7: again interpolatable"), premises=(*TIED, "looped-midpoint"), unlike=SHORT),
    ), away=(
        Claim("looped-input-scale", "for inputs scaled by 0.5 to 2, losses of ten looped layers stay within a quarter "
              "of GD++'s", stage("looped-input-scale").ratio("trained", "gd++"), two_sided(0.25),
              printed("Fig. 7 right"), premises=TIED, unlike=SHORT, former="up to 1.25 times, undecided"),
    ),
)  # fmt: skip

SPREAD = Figure(
    "spread", "Quantiles over fresh tasks of the squared error. Paper: Fig. 3b.", (
        Lines("", "quantile", "half squared error", [
            Line(shares, quantiles["trained"] / 2, "trained", "five separate layers, each seed", True, ".-"),
            Line(shares, quantiles["gd"].at(0, "gd") / 2, "gd", "gradient descent", marks="o-"),
            Line(shares, quantiles["gd++"].at(0, "gd++") / 2, "gd++", "GD++", marks="o-"),
        ], "y"),
    ), claims=(
        _median("median-below-gd", "median loss over tasks is less than a fifth (quick preset: a third) of that of "
                "five gradient steps, each tuned", main.ratio("gd", "trained", "median"),
                {"quick": above(3.0), "paper": above(5.0), "thesis": above(5.0)}, ours("how much below"),
                premises=(*TRAINED, SUITED), former="printed, of each network, held"),
        _median("median-matches-own-gd++", "median loss over tasks is within 10 % of that of GD++ with step sizes read "
                "from its weights", main.ratio("trained", "own", "median"), two_sided(0.1),
                ours("means rest on the rare contexts where deep polynomials explode"), former=FAILED),
        _median("near-close", "median loss over tasks is within a quarter of that of GD++ that is tuned starting from "
                "the network's own step sizes", main.ratio("trained", "near", "median"), two_sided(0.25),
                ours("the reference in the network's own basin"), former=FAILED),
    ),
)  # fmt: skip

PATHS = Figure(
    "paths", "Loss on the straight line from each network's rescaled products to GD++'s. Paper: Fig. 3b.", (
        _each("share of GD++", shared.HALF_MSE, paths.case("t"), {
            paths["mse", "own"] / 2: ("interpolated", "to its own GD++"),
            paths["mse", "tuned"] / 2: ("gd++", "to tuned GD++"),
        }),
    ), claims=(
        Claim("interpolation", "for most networks of five layers, the loss halfway to GD++ with their own step sizes "
              "is at most 10 % above that of both ends", midpoint_losses("to-own").map(_smooth, "share of networks"),
              above(0.5), study.derived("Fig. 3b, which leaves it to future work"), quantifier="share",
              premises=(*TRAINED, "to-own-apart"), former="printed, undecided"),
        Claim("no-interpolation", "for most networks of five layers, the loss halfway to tuned GD++ is more than 10 % "
              "above that of both ends", midpoint_losses("to-tuned").map(_raised, "share of networks"), above(0.5),
              printed("appendix A.3: only for some seeds"), quantifier="share",
              premises=(*TUNED, "construction", "to-tuned-apart"), former="of each network, held"),
    ),
)  # fmt: skip

SEEDS = Figure(
    "seeds", "Each seed while training, and how large each of its layers' steps is in the end: half the loss; "
    "|eta| of each layer, near 0 for a dead layer; the loss without each layer, near that of the whole network "
    "for a dead layer; and the network with the authors' settings. Paper: Fig. 3b.", (
        study.curves(
            stage("separate"), {"mse": ("trained", "each seed")}, shared.HALF_MSE, factor=0.5, log="y", each=True
        ),
        _each("layer", "|eta| in the weights", LAYERS, {
            stage("read")["eta"].map(lambda eta: np.maximum(np.abs(eta), 1e-3), ""): ("trained", "each seed")
        }),
        _each("layer left out", "median loss / of the whole network", LAYERS, {
            _without_each("left-out"): ("trained", "from random weights"),
            _without_each("warm-left-out"): ("interpolated", "from gradient descent"),
        }),
        study.curves(
            stage("authors"), {"mse": ("other", "one seed")}, shared.HALF_MSE, factor=0.5, log="y", each=True,
            title="authors' settings",
        ),
    ), columns=2, claims=(
        Claim("few-lose-a-layer", "fewer than half of the networks of five layers have a layer without which the "
              "median loss does not double",
              _without_each("left-out").map(_loses, "share of networks"), below(0.5), ours("how many layers die"),
              quantifier="share", premises=("separate-converged", "layers-left-out")),
        Claim("warm-all-layers-used", "without any one of its layers, the median loss of each network that starts from "
              "gradient descent more than doubles", _without_each("warm-left-out"), above(2.0),
              ours("whether layers die in training"), premises=("warm-converged", "layers-left-out")),
        Claim("warm-same-optimum", "among networks from random weights that use all layers, the median one has a "
              "median loss within a quarter of that of each network that starts from gradient descent",
              Reading("median loss from random weights, all layers in use / from gradient descent",
                      _alive_over_warm), two_sided(0.25), ours("dead layers as the only cost of a random start"),
              quantifier="median", premises=(*TRAINED, "warm-converged"), former=HELD),
        Claim("warm-matches-own-gd++", "each network that starts from gradient descent has a cosine above 0.99 with "
              "GD++ with its own step sizes", warm["cosine", "warm", "own"], above(0.99),
              ours("the algorithm after a warm start"), premises=("warm-converged",)),
        Claim("authors-below-gd", "the network with the authors' settings (each, if several train) has a smaller loss "
              "than five tuned steps of gradient descent", authors.ratio("trained", "gd"), below(1.0, by="paper"),
              printed("Fig. 3b left; abstract: surpass plain gradient descent"), at_least=1, premises=(SUITED,),
              unlike={"quick": LONG}),
    ),
)  # fmt: skip

TUNED_BY = "GD++ is tuned by L-BFGS, from {} spectra or on {} tasks, in place of 30,000 steps of Adam."
WARM = "Claims whose names begin with warm- are about networks that start from gradient descent, for 3,000 steps."

STUDY = study.Study(
    name="deep",
    source=f"{regression.PAPER}: Figs. 3 right, 6c and 7",
    presets={
        "quick": Deep(
            plan(600, 8e-3, batch=256, clip=0.001), init_scale=3.0, seeds=8, tasks=3_000, sweep_tasks=500,
            tune_tasks=500, looped=SecondTraining(plan(120, 4e-3, batch=256, clip=0.001), init_scale=0.02),
            authors=SecondTraining(Training(100, 256, 5e-4, "constant", clip=10.0)),
            warm=SecondTraining(plan(100, 8e-3, batch=256, clip=0.001), init_scale=0.5),
            descents=plan(100, 0.02, batch=256),
        ),
        "paper": Deep(
            plan(12_000, 8e-3, batch=1024, clip=0.001, evaluate_every=120), init_scale=3.0, tasks=400_000,
            sweep_tasks=5000, tune_tasks=5000,
        ),
        "thesis": Deep(
            AUTHORS, seeds=8, looped=SecondTraining(authors_plan(5000, learning_rate=5e-4, clip=10.0)),
            authors=SecondTraining(AUTHORS), authors_seeds=8,
        ),
    },
    measure=measure,
    trainings=lambda settings: 3 + (settings.authors.training != settings.training),  # equal ones train once
    premises=TRAINED,
    claims=(
        converged("separate", id="separate-converged", most=0.1, log=True, start=regression.ZERO, each=False,
                  former=HELD),
        converged("looped", id="looped-converged"),
        converged("warm", id="warm-converged", most=0.1, log=True),
        shared.no_better_descent(main, "gd++", "GD++ of five separate steps", id="separate-gd++-at-its-optimum",
                                 tolerance=0.1, quantity="median"),
        shared.no_better_descent(looped, "gd++", "GD++ of ten tied steps", id="looped-gd++-at-its-optimum"),
        shared.suits_training(scaled, "gradient descent of five tuned steps"),
        midpoint("looped-interpolation", id="looped-midpoint"),
        Claim("construction", "layers built to run five tuned steps of GD++ make the predictions of GD++ with the same "
              "clipping of tokens",
              built["prediction-difference", "other", "gd++"].at(slice(None, 1), "first seed"), below(0.01),
              ours("premise"), over="algorithms"),
        Claim("layers-left-out", "without any one of its layers, each network that starts from gradient descent has "
              "another median loss", _without_each("warm-left-out").map(_changes, "|ratio - 1|"), above(1e-6),
              ours("premise"), quantifier="exact", exact_because="a layer that is left out changes each prediction",
              premises=()),
        _apart("to-own", "GD++ with its own step sizes"),
        _apart("to-tuned", "tuned GD++"),
    ),
    figures=(*FIVE, CHANGED_TASKS, *TEN, SPREAD, PATHS, SEEDS),
    unlike=dict.fromkeys(("quick", "paper"), LONG),
    deviations={
        "paper": (
            "Gradients are clipped at 0.001 in place of 10, the learning rate is 8e-3 and 4e-3 in place of 5e-4, it "
            "decays, and weights are averaged.",
            "Thirty networks of five separate layers train in place of five, for 12,000 steps of 1,024 tasks in place "
            "of 50,000 of 2,048. They start from a variance of 3 in place of 0.002: from small weights, more layers "
            "die.",
            WARM,
            "Ten looped layers train on 1,024 tasks a step in place of 2,048, from a variance of 0.02.",
            TUNED_BY.format("50,000", "5,000"), shared.INPUTS, shared.UNSEEN_INPUTS,
            "The network with the authors' settings has one seed in place of five; authors-below-gd alone is about it. "
            "Adam's second beta is 0.999, as in the text; the authors' code has 0.98.",
        ),
        "thesis": (
            "Eight networks of five layers train in place of five, as medians need eight.", WARM,
            TUNED_BY.format("100,000", "10,000"), shared.INPUTS, shared.UNSEEN_INPUTS, shared.INITIAL, shared.ADAM,
        ),
    },
    mutations=(
        bugs.HALF_TUNED, bugs.UNCLIPPED, bugs.REVERSED_SIZES, bugs.FIRST_END,
        study.Mutation("no layer is left out", "mesascope.studies.icl_gd.deep_networks:_without",
                       lambda without: lambda net, layer: net),
    ),
    mutated={
        "tasks": 1000, "sweep_tasks": 700, "tune_tasks": 100, "descents": plan(40, 0.02, batch=128),
        "looped": SecondTraining(plan(20, 4e-3, batch=16, clip=0.001), init_scale=0.02),
        "authors": SecondTraining(Training(4, 16, 5e-4, "constant", clip=10.0)),
    },
)  # fmt: skip
