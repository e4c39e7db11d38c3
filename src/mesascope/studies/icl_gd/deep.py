"""Do five separate linear self-attention layers, and ten looped ones, run GD++?

ICML paper: Figures 3 (right), 6c and 7. Tasks are noiseless linear regression with N = d = 10. Tokens are clipped at
10 throughout. Five layers with weights of their own are compared with five gradient steps (a tuned step size each),
with five steps of GD++ (an eta and a gamma each, tuned), with the GD++ whose step sizes their own weights spell, and
with GD++ tuned from there: step sizes of deep GD++ have many good values, and each network finds its own. Ten looped
layers are compared with ten tied steps of GD++.

From small random weights some layers die: their steps shrink to nothing. Networks that start from five steps of
gradient descent, plus such weights, train beside them, and each layer of both is left out in turn.

Means rest on the rare contexts where these polynomials explode, so medians stand beside them. One network trains with
the authors' settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import constructions, learners, lenses, training
from mesascope.errors import require_number
from mesascope.evidence import Arrays, Estimates
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.common import plan, values, watch_loss
from mesascope.studies.icl_gd.deep_claims import CLAIMS, without_each
from mesascope.studies.icl_gd.regression import (
    PAPER,
    SWEEPS,
    Recipe,
    Regression,
    contrast,
    halfway,
    middles,
    network,
    own_descent,
    untied_descents,
)
from mesascope.studies.icl_gd.shared_figures import HALF_MSE, NAMES, contrast_figures
from mesascope.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

D, CLIP = 10, 10.0
SEPARATE, LOOPED = 5, 10
PATH = (0.0, 0.25, 0.5, 0.75, 1.0)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Deep(Regression):
    """Settings of the study."""

    seeds: int = 10
    """Networks of five separate layers, one a seed."""
    looped: Recipe = field(default_factory=lambda: Recipe(plan(5000, 4e-3, batch=1024, clip=0.001), init_scale=0.02))
    """How the ten looped layers train, five seeds of them."""
    warm: Recipe = field(default_factory=lambda: Recipe(plan(3000, 8e-3, batch=1024, clip=0.001), init_scale=0.5))
    """How networks train, five seeds of them, that start from gradient descent plus random weights."""
    warm_eta: float = 2.0
    """Step size of the gradient descent that they start from."""
    authors: Recipe = field(default_factory=lambda: Recipe(Training(50_000, 2048, 5e-4, "constant", clip=10.0)))
    """How the network with the authors' settings trains."""
    descents: Training = field(default_factory=lambda: plan(1000, 0.02))
    """How step sizes of GD++ go on from those that a network's weights spell."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("warm_eta", self.warm_eta, above=0)


def measure(lab: Lab, settings: Deep) -> None:
    """Train both kinds of network, and compare."""
    fresh = lab.draw(settings.family(), settings.tasks, "eval")
    references = untied_descents(lab, settings, SEPARATE, CLIP)
    config = network(settings, n_layers=SEPARATE, token_clip=CLIP)
    trained = contrast(
        lab, settings, "separate", config, references, own=SEPARATE, sweeps=tuple(SWEEPS),
        more=lambda networks: {"near": _tuned_from(lab, settings, networks)},
    )  # fmt: skip
    lab.stage("read", lambda: _read(trained))
    goals = {
        "own": [_as_network(net, own_descent(net, SEPARATE)) for net in trained],
        "tuned": [_as_network(net, references["gd++"]) for net in trained],
    }
    lab.stage("to-own", lambda: halfway(trained, goals["own"], fresh))
    lab.stage("to-tuned", lambda: halfway(trained, goals["tuned"], fresh, {"gd++": [references["gd++"]]}))
    lab.stage("paths", lambda: _paths(trained, goals, fresh))
    lab.stage(
        "quantiles", lambda: _quantiles({"trained": trained, **{k: [one] for k, one in references.items()}}, fresh)
    )

    warm = _warm(lab, settings)
    few = fresh.part(0, settings.sweep_tasks)
    lab.stage("left-out", lambda: _left_out(trained, few))
    lab.stage("warm-left-out", lambda: _left_out(warm, few))
    groups = {"warm": warm, "own": [own_descent(net, SEPARATE) for net in warm]}
    lab.stage("warm-comparison", lambda: lenses.measure_together(groups, ["own"], fresh))

    recipe, tied = settings.looped, _tied(lab, settings)
    config = network(settings, n_layers=LOOPED, shared=True, token_clip=CLIP, init_scale=recipe.init_scale)
    looped = contrast(
        lab, settings, "looped", config, {"gd++": tied}, recipe.training, own=LOOPED, seeds=5,
        more=lambda networks: {"middle": middles(networks, [_as_network(net, tied) for net in networks])},
    )  # fmt: skip
    goal = [_as_network(net, tied) for net in looped]
    lab.stage("looped-interpolation", lambda: halfway(looped, goal, fresh, {"gd++": [tied]}))
    _authors(lab, settings, references)


def _tuned_from(lab: Lab, settings: Deep, nets: Sequence[Any]) -> list[Any]:
    """GD++ of each network, its step sizes trained on from those that the weights spell: stage ``near``."""

    def tuned() -> Arrays:
        owns = iter([own_descent(net, SEPARATE) for net in nets])
        found = training.train(lambda _: next(owns), settings.family(), settings.descents, lab.seeds, device=lab.device)
        sizes = {name: [getattr(one, name).tolist() for one in found.members()] for name in ("eta", "gamma")}
        return Arrays(sizes, **dict.fromkeys(sizes, "seed step"))

    sizes: Any = lab.stage("near", tuned)
    pairs = zip(sizes["eta"].tolist(), sizes["gamma"].tolist(), strict=True)
    return [learners.GradientDescentPlusPlus(SEPARATE, *pair, token_clip=CLIP) for pair in pairs]


def _authors(lab: Lab, settings: Deep, references: Mapping[str, Any]) -> None:
    """One network with the authors' settings, beside the same references."""
    recipe, family = settings.authors, settings.family()
    config = network(settings, n_layers=SEPARATE, token_clip=CLIP, init_scale=recipe.init_scale)
    watched = watch_loss(mse=lab.draw(family, settings.sweep_tasks, "watch"))
    trained = lab.train("authors", config, family, recipe.training, seeds=lab.seeds[:1], watch=watched)
    fresh = lab.draw(family, settings.tasks, "eval")
    groups = {"trained": trained, **{name: [one] for name, one in references.items()}}
    lab.stage("authors-comparison", lambda: lenses.measure_together(groups, list(references), fresh))


def _warm(lab: Lab, settings: Deep) -> list[Any]:
    """Networks trained from five equal steps of gradient descent, plus the products of random weights."""
    recipe, seeds, family = settings.warm, lab.seeds[:5], settings.family()
    config = network(settings, n_layers=SEPARATE, token_clip=CLIP, init_scale=recipe.init_scale)
    descent = learners.GradientDescentPlusPlus(SEPARATE, settings.warm_eta, 0.0, token_clip=CLIP)
    start = f"gradient descent with eta = {settings.warm_eta:g}, plus random weights"
    random = [config.build(lab.stream(f"warm {seed}")) for seed in seeds]
    nets = [_added(_as_network(net, descent), net) for net in random]
    watched = watch_loss(mse=lab.draw(family, settings.sweep_tasks, "watch"))
    return lab.train("warm", config, family, recipe.training, seeds=seeds, watch=watched, start=(start, nets))


def _added(net: Any, other: Any) -> Any:
    """The network whose products are sums of both's."""
    both = zip(net.products(), other.products(), strict=True)
    return net.with_products([type(a)(a.w_kq + b.w_kq, a.w_pv + b.w_pv) for a, b in both])


def _left_out(nets: Sequence[Any], episodes: Any) -> Estimates:
    """Networks, and the same without one layer: ``without 1`` and so on."""
    groups = {f"without {k + 1}": [_without(net, k) for net in nets] for k in range(SEPARATE)}
    return lenses.measure_together({"trained": nets} | groups, [], episodes)


def _without(net: Any, layer: int) -> Any:
    """The network with a layer that leaves tokens as they are."""
    products = list(net.products())
    products[layer] = type(products[layer])(products[layer].w_kq, 0 * products[layer].w_pv)
    return net.with_products(products)


def _read(nets: Sequence[Any]) -> Arrays:
    """The step sizes that each network's weights spell."""
    owns = [own_descent(net, SEPARATE) for net in nets]
    found = {name: [getattr(one, name).tolist() for one in owns] for name in ("eta", "gamma")}
    return Arrays(found, **dict.fromkeys(found, "seed step"))


def _tied(lab: Lab, settings: Deep) -> learners.GradientDescentPlusPlus:
    """Ten tied steps of GD++, tuned with clipped tokens, and stage ``tied`` with their sizes."""

    def tuned() -> Arrays:
        start = learners.GradientDescentPlusPlus(LOOPED, 3.0, 0.03, token_clip=CLIP)
        found = learners.tune(start, settings.family(), tasks=settings.tune_tasks, seed=lab.seed).step_sizes
        return Arrays({name: found[name][0].value for name in ("eta", "gamma")})

    sizes: Any = lab.stage("tied", tuned)
    return learners.GradientDescentPlusPlus(LOOPED, float(sizes["eta"]), float(sizes["gamma"]), token_clip=CLIP)


def _as_network(net: Any, algorithm: Any) -> Any:
    """The construction of ``algorithm`` in an architecture like ``net``'s, clip included."""
    eta, gamma = algorithm.eta.tolist(), algorithm.gamma.tolist()
    built = constructions.gradient_descent_plus_plus(D, 1, eta, gamma, D, algorithm.steps).network
    like = net.products()[0].w_kq
    return net.with_products([type(layer)(*(part.to(like) for part in layer)) for layer in built.products()])


def _paths(nets: Sequence[Any], goals: Mapping[str, Sequence[Any]], fresh: Any) -> Estimates:
    """Losses on the straight way from each network to each goal."""

    def errors(net: Any, other: Any, t: float) -> np.ndarray:
        return lenses.per_task_errors(lenses.interpolate(net, other, t), fresh).double().cpu().numpy()

    points = [
        Estimates.of(
            {
                ("mse", name): [errors(net, other, t) for net, other in zip(nets, others, strict=True)]
                for name, others in goals.items()
            }
        )
        for t in PATH
    ]
    return Estimates.over({"t": PATH}, points)


def _quantiles(groups: Mapping[str, Sequence[Any]], fresh: Any) -> Arrays:
    """Quantiles of the squared error over tasks, for each learner of a group."""
    found = {
        name: [np.quantile(lenses.per_task_errors(one, fresh).double().cpu().numpy(), QUANTILES) for one in members]
        for name, members in groups.items()
    }
    axes = {name: f"{'seed' if name == 'trained' else 'reference'} quantile" for name in found}
    return Arrays({"quantile": QUANTILES, **found}, quantile="quantile", **axes)


def _spread(r: Any) -> list[Line]:
    found = r["quantiles"]
    q = found["quantile"]
    lines = [Line(q, found["trained"] / 2, "trained", "five separate layers, each seed", each=True, marks=".-")]
    return lines + [Line(q, found[name][0] / 2, name, NAMES[name], marks="o-") for name in ("gd", "gd++")]


def _ways(r: Any) -> list[Line]:
    shown = {"own": ("interpolated", "to its own GD++"), "tuned": ("gd++", "to tuned GD++")}
    return [
        Line(PATH, values(r["paths"]["mse", name]) / 2, role, label, each=True, marks=".-")
        for name, (role, label) in shown.items()
    ]


def _each_seed(r: Any) -> list[Line]:
    return [Line(r["separate"]["step"], r["separate"]["mse"] / 2, "trained", "each seed", each=True)]


def _sizes(r: Any) -> list[Line]:
    read = np.maximum(np.abs(r["read"]["eta"]), 1e-3)
    return [Line(np.arange(1, SEPARATE + 1), read, "trained", "each seed", each=True, marks=".-")]


def _needed(r: Any) -> list[Line]:
    shown = {"left-out": ("trained", "from random weights"), "warm-left-out": ("interpolated", "from gradient descent")}
    layers = np.arange(1, SEPARATE + 1)
    return [
        Line(layers, values(without_each(r[name], SEPARATE)), role, label, each=True, marks=".-")
        for name, (role, label) in shown.items()
    ]


def _authors_loss(r: Any) -> list[Line]:
    return [Line(r["authors"]["step"], r["authors"]["mse"] / 2, "other", "one seed", each=True)]


FIGURES = (
    *contrast_figures(
        "separate",
        "five separate layers",
        ("gd", "gd++"),
        "Paper: Figs. 3b and 6c",
        "y",
        claims=(
            "loss-matches-own-gd++",
            "cosine-own-gd++",
            "cosine-tuned-gd++",
            "gd++-above-gd",
            "gd-early",
            "close-to-zero",
        ),
        away=("input-scale", "far-from-training", "teacher-scale"),
    ),
    *contrast_figures(
        "looped",
        "ten looped layers",
        ("gd++",),
        "Paper: Fig. 7",
        "y",
        claims=("looped-matches-gd++", "looped-worse", "looped-cosine", "looped-interpolation"),
        away=("looped-input-scale",),
    ),
    Figure(
        "spread",
        "Quantiles over fresh tasks of the squared error. Paper: Fig. 3b.",
        (Lines("", "quantile", "half squared error", _spread, "y"),),
        claims=("median-below-gd", "median-matches-own-gd++", "near-close"),
    ),
    Figure(
        "paths",
        "Loss on the straight way from each network's rescaled products to GD++'s. Paper: Fig. 3b.",
        (Lines("", "share of GD++", HALF_MSE, _ways, "y"),),
        claims=("interpolation", "no-interpolation"),
    ),
    Figure(
        "seeds",
        "Each seed while training, and how large each of its layers' steps is in the end: half the loss; |eta| of "
        "each layer, near 0 where one is dead; the loss without each layer, near the whole network's where it is; "
        "and the network with the authors' settings. Paper: Fig. 3b.",
        (
            Lines("", "training step", HALF_MSE, _each_seed, "y"),
            Lines("", "layer", "|eta| in the weights", _sizes, "y"),
            Lines("", "layer left out", "median loss / of the whole network", _needed, "y"),
            Lines("authors' settings", "training step", HALF_MSE, _authors_loss, "y"),
        ),
        columns=2,
        claims=("all-layers-used", "warm-all-layers-used", "warm-same-optimum", "warm-matches-own-gd++"),
    ),
)

STUDY = Study(
    name="deep",
    source=f"{PAPER}: Figs. 3 right, 6c and 7",
    presets={
        "quick": Deep(
            plan(450, 8e-3, batch=256, clip=0.001),
            init_scale=3.0,
            seeds=5,
            tasks=3_000,
            sweep_tasks=500,
            tune_tasks=500,
            looped=Recipe(plan(120, 4e-3, batch=256, clip=0.001), init_scale=0.02),
            authors=Recipe(Training(100, 256, 5e-4, "constant", clip=10.0)),
            warm=Recipe(plan(100, 8e-3, batch=256, clip=0.001), init_scale=0.5),
            descents=plan(100, 0.02, batch=256),
        ),
        "paper": Deep(plan(6000, 8e-3, batch=1024, clip=0.001), init_scale=3.0, sweep_tasks=5000, tune_tasks=5000),
    },
    measure=measure,
    trainings=4,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Gradients are clipped at 0.001 in place of 10, the learning rate is 8e-3 and 4e-3 in place of 5e-4, it "
        "decays, and weights are averaged.",
        "Five separate layers train for 6,000 steps of 1,024 tasks in place of 50,000 of 2,048, and start from a "
        "variance of 3 in place of 0.002: from small weights, more layers die.",
        "Claims whose names begin with warm- are about networks that start from gradient descent, for 3,000 steps.",
        "Ten looped layers start from a variance of 0.02.",
        "GD++ is tuned by L-BFGS, from 50,000 spectra or on 5,000 tasks, in place of 30,000 steps of Adam.",
        "The network with the authors' settings has one seed, and no claim rests on it.",
    ),
)
