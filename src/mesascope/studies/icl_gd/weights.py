"""What do the weights of trained layers look like beside those constructed to run gradient descent?

ICML paper: Figures 9 and 11. Tasks are noiseless linear regression with N = d = 10. Products W_KQ and W_PV of one
linear layer, of three looped linear layers, and of one softmax layer with two heads, rescaled as in appendix A.3.

The row and column of W_KQ that meet targets carry no gradient where the query's target is zero: one layer keeps there
what it began with. Its structure is therefore read on the inputs' block, and the figure shows the whole matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import constructions, learners, lenses
from mesascope.evidence import Claim, Estimates, Reported, below, printed, two_sided
from mesascope.reports import Figure, Matrices
from mesascope.studies.common import converged, plan
from mesascope.studies.icl_gd.regression import PAPER, Recipe, network, own_descent, predicted, watch
from mesascope.studies.icl_gd.shared_claims import as_predicted, no_better_descent
from mesascope.studies.icl_gd.shared_figures import products
from mesascope.studies.icl_gd.softmax import Softmax
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

D = 10
LOOPED = ("three-looped-converged",)

CLAIMS = (
    converged("one-layer", id="one-layer-converged"),
    converged("three-looped", id="three-looped-converged"),
    converged("two-heads", id="two-heads-converged"),
    as_predicted(("gd++",)),
    no_better_descent("three-looped-comparison", "gd++", "GD++", id="gd++-at-its-optimum"),
    Claim(
        "one-layer-structure", "W_KQ of one layer is diagonal on the inputs to 3 %",
        lambda r: _largest(_off(r["one-layer-weights"]["w_kq"][:, :D, :D])), below(0.03), printed("Fig. 9 left"),
        measures="largest |entry| off the diagonal / mean diagonal, mean over seeds", quantifier="mean",
        premises=("one-layer-converged",), reported=Reported((0.03, 0.048), "authors' code, ends of 3 runs"),
    ),
    Claim(
        "looped-structure", "W_KQ of three looped layers is diagonal to 3 %",
        lambda r: _largest(_off(r["three-looped-weights"]["w_kq"])), below(0.03), printed("Fig. 9 right"),
        measures="largest |entry| off the diagonal / mean diagonal, mean over seeds", quantifier="mean",
        premises=LOOPED,
    ),
    Claim(
        "looped-values", "W_PV of three looped layers is diagonal to 3 %",
        lambda r: _largest(_off(_values(r))) / np.abs(_values(r)[:, -1, -1]), below(0.03), printed("Fig. 9 right"),
        measures="largest |entry| off the diagonal / |target's entry|, mean over seeds", quantifier="mean",
        premises=LOOPED,
    ),
    Claim(
        "curvature-constant", "W_PV of three looped layers has one value on the inputs' diagonal, to 3 %",
        lambda r: _spread(r), below(0.03), printed("Fig. 9 right"),
        measures="largest distance from the mean / |mean|, mean over seeds", quantifier="mean", premises=LOOPED,
    ),
    Claim(
        "looped-step-sizes",
        "eta and gamma in the weights of three looped layers are those of three tied steps of " "GD++, tuned, to 5 %",
        lambda r: np.stack([r["step-sizes"][name] / r["step-sizes"][f"gd++ {name}"] for name in ("eta", "gamma")], 1),
        two_sided(0.05), printed("Fig. 9 right"), measures="size read / size tuned, mean over seeds", quantifier="mean",
        premises=(*LOOPED, "references-as-predicted", "gd++-at-its-optimum"),
    ),
    Claim(
        "heads-cancel", "off the diagonal, two softmax heads cancel to a tenth",
        lambda r: _left_of_heads(r["two-heads-weights"]["scaled_kq"]), below(0.1), printed("Fig. 11"),
        measures="|sum of both heads' products off the diagonal| / |the smaller head's|, mean over seeds",
        quantifier="mean", premises=("two-heads-converged",),
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Softmax) -> None:
    """Train the three kinds of network and read their products."""
    family, contexts = settings.family(), settings.tune_tasks
    gd = learners.GradientDescent(1, learners.one_step_optimum(family).eta)
    start = learners.GradientDescentPlusPlus(3, 3.0, 0.03)
    tuned = learners.tune_spectral(start, family, contexts=contexts, seed=lab.seed)
    plus, (eta, gamma) = tuned.learner, (tuned.step_sizes[name][0].value for name in ("eta", "gamma"))
    heads = network(settings, n_heads=2, key_size=D + 1, attention="softmax", init_scale=settings.two_heads.init_scale)
    kinds = {
        "one-layer": (network(settings), settings.training, {"gd": gd}),
        "three-looped": (network(settings, n_layers=3, shared=True), settings.training, {"gd++": plus}),
        "two-heads": (heads, settings.two_heads.training, {"gd": gd}),
    }
    watched = lab.draw(family, settings.sweep_tasks, "watch")
    nets = {
        name: lab.train(name, config, family, training, watch=watch(references, watched))
        for name, (config, training, references) in kinds.items()
    }
    built = {
        "one-layer": constructions.gradient_descent(D, 1, gd.eta.item(), D).network,
        "three-looped": constructions.gradient_descent_plus_plus(D, 1, eta, gamma, D, steps=3).network,
    }
    for name, one in built.items():
        lab.stage(f"{name}-weights", lambda name=name: _products(nets[name]))
        lab.stage(f"{name}-construction", lambda one=one: _products([one]))
    lab.stage("two-heads-weights", lambda: _heads(nets["two-heads"]))
    looped = nets["three-looped"]
    lab.stage("step-sizes", lambda: _step_sizes(looped, eta, gamma))
    lab.stage("three-looped-comparison", lambda: _comparison(lab, settings, looped, plus))
    lab.stage("predicted", lambda: predicted(lab, settings, {"gd++": plus}))


def _products(nets: Sequence[Any]) -> dict[str, np.ndarray]:
    """The rescaled products of each network's first layer, ``(nets, width, width)``."""
    first = [lenses.rescaled_products(net)[0] for net in nets]
    return {name: np.stack([getattr(one, name)[0].cpu().numpy() for one in first]) for name in ("w_kq", "w_pv")}


def _heads(nets: Sequence[Any]) -> dict[str, np.ndarray]:
    """W_KQ of each head times its W_PV's target entry: what the paper's appendix A.9 adds up, ``(nets, 2, d, d)``."""
    scaled = [(w_kq * w_pv[:, -1:, -1:])[:, :D, :D] for w_kq, w_pv in (net.products()[0] for net in nets)]
    return {"scaled_kq": np.stack([one.detach().cpu().numpy() for one in scaled])}


def _step_sizes(nets: Sequence[Any], eta: float, gamma: float) -> dict[str, list[float]]:
    read = [lenses.step_sizes(net, D) for net in nets]
    sizes = {"eta": [one.eta[0].item() for one in read], "gamma": [one.gamma[0].item() for one in read]}
    return sizes | {"gd++ eta": [eta] * len(nets), "gd++ gamma": [gamma] * len(nets)}


def _comparison(lab: Lab, settings: Softmax, nets: Sequence[Any], plus: Any) -> Estimates:
    groups = {"trained": nets, "own": [own_descent(net, 3) for net in nets], "gd++": [plus]}
    return lenses.measure_together(groups, [], lab.draw(settings.family(), settings.tasks, "eval"))


def _off(matrices: np.ndarray) -> np.ndarray:
    return matrices * (1 - np.eye(matrices.shape[-1]))


def _largest(matrices: np.ndarray) -> np.ndarray:
    return np.abs(matrices).max(axis=(1, 2))


def _values(r: Any) -> np.ndarray:
    return r["three-looped-weights"]["w_pv"]


def _spread(r: Any) -> np.ndarray:
    curvature = np.diagonal(_values(r), axis1=1, axis2=2)[:, :D]
    return np.abs(curvature / curvature.mean(axis=1, keepdims=True) - 1).max(axis=1)


def _left_of_heads(heads: np.ndarray) -> np.ndarray:
    one_by_one = np.linalg.norm(_off(heads), axis=(-2, -1))
    return np.linalg.norm(_off(heads.sum(axis=1)), axis=(-2, -1)) / one_by_one.min(axis=1)


def _heads_shown(r: Any) -> dict[str, np.ndarray]:
    one, two = r["two-heads-weights"]["scaled_kq"][0]
    return {"head 1 (first seed)": one, "head 2 (first seed)": two, "sum of both": one + two}


FIGURES = (
    *(
        Figure(
            name, f"{words}: products rescaled as in appendix A.3, beside the construction's. Paper: Fig. 9.",
            Matrices(lambda r, name=name: products(r, f"{name}-weights", f"{name}-construction"), 1.0), claims=claims,
        )
        for name, words, claims in (
            ("one-layer", "One layer", ("one-layer-structure",)),
            ("three-looped", "Three looped layers", (
                "looped-structure", "looped-values", "curvature-constant", "looped-step-sizes",
            )),
        )
    ),
    Figure(
        "two-heads",
        "Softmax layer with two heads: W_KQ of each head times the target entry of its W_PV, and their sum, on the "
        "inputs. Paper: Fig. 11.", Matrices(_heads_shown), claims=("heads-cancel",),
    ),
)  # fmt: skip

STUDY = Study(
    name="weights",
    source=f"{PAPER}: Figs. 9 and 11",
    presets={
        "quick": Softmax(
            plan(1000, 4e-3, clip=0.001),
            init_scale=0.02,
            tasks=20_000,
            sweep_tasks=2_000,
            two_heads=Recipe(plan(1000, 1e-2, clip=0.001), init_scale=0.2),
        ),
        "paper": Softmax(plan(5000, 1e-3, clip=0.001), two_heads=Recipe(plan(5000, 1e-3, clip=0.001), 0.002)),
    },
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",
        "Three looped layers train with gradients clipped at 0.001 in place of 10.",
    ),
)
