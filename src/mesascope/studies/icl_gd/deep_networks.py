"""Part of the study of deep networks: its settings, networks made of weight products, and references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mesascope import constructions, learners, lenses, study, training
from mesascope.studies.common import plan, watch_loss
from mesascope.studies.icl_gd import regression
from mesascope.studies.icl_gd.regression import CLIP, SecondTraining, own_descent
from mesascope.study import Arrays, Estimates, Training

D = 10
SEPARATE, LOOPED = 5, 10
PATH = (0.0, 0.25, 0.5, 0.75, 1.0)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@study.frozen
class Deep(regression.Regression):
    seeds: study.Count = 30  # Networks of five separate layers, one per seed.
    looped: SecondTraining = SecondTraining(plan(5000, 4e-3, batch=1024, clip=0.001), init_scale=0.02)
    """Training of the networks of ten looped layers (five seeds)."""
    warm: SecondTraining = SecondTraining(plan(3000, 8e-3, batch=1024, clip=0.001), init_scale=0.5)
    """Training of the networks that start from gradient descent plus random weights (five seeds)."""
    warm_eta: study.Positive = 2.0  # Step size of the gradient descent that networks of `warm` start from.
    authors: SecondTraining = SecondTraining(Training(50_000, 2048, 5e-4, "constant", clip=10.0))
    """Training of the networks with the authors' settings."""
    authors_seeds: study.Count = 1  # Networks with the authors' settings, at most `seeds`.
    descents: Training = plan(1000, 0.02)
    """Training of GD++'s step sizes, starting from those in a network's weights."""


def separate(settings: Deep, init_scale: float) -> Any:
    return regression.network(settings, n_layers=SEPARATE, token_clip=CLIP, init_scale=init_scale)


def watch(lab: study.Lab, settings: Deep) -> Any:
    return watch_loss(mse=lab.draw(settings.family(), settings.sweep_tasks, "watch"))


def step_sizes(descents: Sequence[Any]) -> Arrays:
    """Step sizes of each seed's descent."""
    found = {name: [getattr(one, name).tolist() for one in descents] for name in ("eta", "gamma")}
    return Arrays(found, **dict.fromkeys(found, "seed step"))


def near(lab: study.Lab, settings: Deep, nets: Sequence[Any]) -> list[Any]:
    """GD++ for each network, with step sizes trained from those in its weights: stage ``near``."""

    def tuned() -> Arrays:
        owns = iter([own_descent(net, SEPARATE) for net in nets])
        found = training.train(lambda _: next(owns), settings.family(), settings.descents, lab.seeds, device=lab.device)
        return step_sizes(found.members())

    sizes: Any = lab.stage("near", tuned)
    pairs = zip(sizes["eta"].tolist(), sizes["gamma"].tolist(), strict=True)
    return [learners.GradientDescentPlusPlus(SEPARATE, *pair, token_clip=CLIP) for pair in pairs]


def warm(lab: study.Lab, settings: Deep) -> list[Any]:
    """Networks trained from the weight products of five equal gradient steps, with random products added."""
    recipe, seeds = settings.warm, lab.seeds[:5]
    config = separate(settings, recipe.init_scale)
    descent = learners.GradientDescentPlusPlus(SEPARATE, settings.warm_eta, 0.0, token_clip=CLIP)
    start = f"gradient descent with eta = {settings.warm_eta:g}, plus random weights"
    random = [config.build(lab.stream(f"warm {seed}")).to(lab.device) for seed in seeds]
    nets = [_added(as_network(net, descent), net) for net in random]
    watched = watch(lab, settings)
    return lab.train(
        "warm", config, settings.family(), recipe.training, seeds=seeds, watch=watched, start=(start, nets)
    )


def tied(lab: study.Lab, settings: Deep) -> learners.GradientDescentPlusPlus:
    """Ten tied steps of GD++, tuned with clipped tokens; stage ``tied`` has their sizes."""

    def tuned() -> Arrays:
        start = learners.GradientDescentPlusPlus(LOOPED, 3.0, 0.03, token_clip=CLIP)
        found = learners.tune(start, settings.family(), tasks=settings.tune_tasks, seed=lab.seed).step_sizes
        return Arrays({name: found[name][0].value for name in ("eta", "gamma")})

    sizes: Any = lab.stage("tied", tuned)
    return learners.GradientDescentPlusPlus(LOOPED, float(sizes["eta"]), float(sizes["gamma"]), token_clip=CLIP)


def _added(net: Any, other: Any) -> Any:
    """Network whose weight products are sums of both networks' products."""
    both = zip(net.products(), other.products(), strict=True)
    return net.with_products([type(a)(a.w_kq + b.w_kq, a.w_pv + b.w_pv) for a, b in both])


def left_out(nets: Sequence[Any], episodes: Any) -> Estimates:
    """Losses of networks, and of the same networks without one layer: ``without 1`` and so on."""
    groups = {f"without {k + 1}": [_without(net, k) for net in nets] for k in range(SEPARATE)}
    return lenses.measure_learners({"trained": nets} | groups, [], episodes)


def _without(net: Any, layer: int) -> Any:
    """The network with W_PV of one layer set to 0, so that this layer does not change tokens."""
    products = list(net.products())
    products[layer] = type(products[layer])(products[layer].w_kq, 0 * products[layer].w_pv)
    return net.with_products(products)


def as_network(net: Any, algorithm: Any) -> Any:
    """The construction of ``algorithm`` with the architecture and the token clip of ``net``."""
    eta, gamma = algorithm.eta.tolist(), algorithm.gamma.tolist()
    built = constructions.gradient_descent_plus_plus(D, 1, eta, gamma, D, algorithm.steps).network
    like = net.products()[0].w_kq
    return net.with_products([type(layer)(*(part.to(like) for part in layer)) for layer in built.products()])


def paths(nets: Sequence[Any], goals: Mapping[str, Sequence[Any]], fresh: Any) -> Estimates:
    """Losses on the straight line between the weight products of each network and of its goals."""

    def losses(others: Sequence[Any], t: float) -> list[Any]:
        between = (lenses.interpolate(*both, t) for both in zip(nets, others, strict=True))
        return [lenses.per_task_errors(one, fresh) for one in between]

    points = [Estimates.of({("mse", name): losses(others, t) for name, others in goals.items()}) for t in PATH]
    return Estimates.over({"t": PATH}, points)


def quantiles(groups: Mapping[str, Sequence[Any]], fresh: Any) -> Arrays:
    """Quantiles of the squared error over tasks, for each learner of a group."""
    errors = {name: [lenses.per_task_errors(one, fresh).double().cpu() for one in own] for name, own in groups.items()}
    found = {name: [np.quantile(one, QUANTILES) for one in own] for name, own in errors.items()}
    axes = {name: f"{'seed' if name == 'trained' else 'reference'} quantile" for name in found}
    return Arrays({"quantile": QUANTILES, **found}, quantile="quantile", **axes)
