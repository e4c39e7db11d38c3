"""What do the weights of trained layers look like beside those constructed to run gradient descent?

ICML paper: Figures 9 and 11. Tasks are noiseless linear regression with N = d = 10. Products W_KQ and W_PV of one
linear layer, of three looped linear layers, and of one softmax layer with two heads, rescaled as in appendix A.3.

The column of W_KQ that multiplies the query's target has no gradient in one layer, as that target is zero, and keeps
its initial values. The claim about one layer is therefore about the inputs' block; the figure shows the whole matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mesascope import constructions, learners, lenses, study
from mesascope.studies.common import converged, plan
from mesascope.studies.icl_gd import bugs, regression, shared
from mesascope.studies.icl_gd.regression import SecondTraining
from mesascope.studies.icl_gd.softmax import Softmax
from mesascope.study import Claim, Figure, Matrices, Study, below, beside, ours, printed, stage, two_sided

D = 10
LOOPED = ("three-looped-converged", "networks-as-trained")

one_layer, looped, heads = (stage(f"{name}-weights") for name in ("one-layer", "three-looped", "two-heads"))
sizes, compared = stage("step-sizes"), stage("three-looped-comparison", own="GD++ with the step sizes read")


def measure(lab: study.Lab, settings: Softmax) -> None:
    family = settings.family()
    gd = regression.best_step(family)
    tuned = regression.tuned(lab, settings, learners.GradientDescentPlusPlus(3, 3.0, 0.03))
    plus, (eta, gamma) = tuned.learner, (tuned.step_sizes[name][0].value for name in ("eta", "gamma"))
    two_heads = regression.network(
        settings, n_heads=2, key_size=D + 1, attention="softmax", init_scale=settings.two_heads.init_scale
    )
    kinds = {
        "one-layer": (regression.network(settings), settings.training, {"gd": gd}),
        "three-looped": (regression.network(settings, n_layers=3, shared=True), settings.training, {"gd++": plus}),
        "two-heads": (two_heads, settings.two_heads.training, {"gd": gd}),
    }
    watched = lab.draw(family, settings.sweep_tasks, "watch")
    nets = {
        name: lab.train(name, config, family, training, watch=regression.watch_alignment(references, watched))
        for name, (config, training, references) in kinds.items()
    }
    built = {
        "one-layer": constructions.gradient_descent(D, 1, gd.eta.item(), D).network,
        "three-looped": constructions.gradient_descent_plus_plus(D, 1, eta, gamma, D, steps=3).network,
    }
    for name, one in built.items():
        lab.stage(f"{name}-weights", regression.first_products, nets[name])
        lab.stage(f"{name}-construction", regression.first_products, [one])
    lab.stage("two-heads-weights", _heads, nets["two-heads"])
    trained, fresh = nets["three-looped"], lab.draw(family, settings.tasks, "eval")
    lab.stage("step-sizes", regression.read_step_sizes, trained, eta, gamma)
    groups = {"trained": trained, "own": [regression.own_descent(net, 3) for net in trained], "gd++": [plus]}
    lab.stage("three-looped-comparison", lenses.measure_learners, groups, [], fresh)
    lab.stage("predicted", regression.predicted, lab, settings, {"gd++": plus})


def _heads(nets: Sequence[Any]) -> dict[str, np.ndarray]:
    """W_KQ of each head times the target entry of its W_PV: the terms in appendix A.9, ``(nets, 2, d, d)``."""
    scaled = [(w_kq * w_pv[:, -1:, -1:])[:, :D, :D] for w_kq, w_pv in (net.products()[0] for net in nets)]
    return {"scaled_kq": np.stack([one.detach().cpu().numpy() for one in scaled])}


def _off(matrices: np.ndarray) -> np.ndarray:
    return matrices * (1 - np.eye(matrices.shape[-1]))


def _largest_off(matrices: np.ndarray) -> np.ndarray:
    return np.abs(_off(matrices)).max(axis=(1, 2))


def _left_of_heads(heads: np.ndarray) -> np.ndarray:
    one_by_one = np.linalg.norm(_off(heads), axis=(-2, -1))
    return np.linalg.norm(_off(heads.sum(axis=1)), axis=(-2, -1)) / one_by_one.min(axis=1)


def _heads_shown(r: Any) -> dict[str, np.ndarray]:
    one, two = heads["scaled_kq"](r)[0]
    return {"head 1 (first seed)": one, "head 2 (first seed)": two, "sum of both": one + two}


def _beside_construction(name: str, words: str, *claims: Claim) -> Figure:
    return Figure(
        name, f"{words}: products rescaled as in appendix A.3, beside the construction's. Paper: Fig. 9.",
        Matrices(shared.products(f"{name}-weights", f"{name}-construction"), 1.0), claims=claims,
    )  # fmt: skip


ONE_LAYER = _beside_construction(
    "one-layer", "One layer",
    Claim("one-layer-structure", "W_KQ of one layer is diagonal on the inputs, within 3 %",
          one_layer["w_kq"].map(lambda w_kq: _largest_off(w_kq[:, :D, :D]), "largest |entry| off the diagonal / mean "
                                "diagonal"), below(0.03), printed("Fig. 9 outer left"), **study.READ_OFF,
          premises=("one-layer-converged",)),
)  # fmt: skip

THREE_LOOPED = _beside_construction(
    "three-looped", "Three looped layers",
    Claim("looped-structure", "W_KQ of three looped layers is diagonal, within 3 %",
          looped["w_kq"].map(_largest_off, "largest |entry| off the diagonal / mean diagonal"), below(0.03),
          printed("Fig. 9 right"), **study.READ_OFF),
    Claim("looped-values", "off its diagonal, W_PV of three looped layers is at most 3 % of the target's entry",
          looped["w_pv"].map(_largest_off, "largest |entry| off the diagonal")
              / abs(looped["w_pv"].map(lambda w_pv: w_pv[:, -1, -1], "target's entry")), below(0.03),
          printed("Fig. 9 right"), **study.READ_OFF),
    Claim("curvature-constant", "W_PV of three looped layers has one value on the inputs' diagonal, to 3 %",
          looped["w_pv"].map(shared.diagonal_spread, "largest distance from the mean / |mean|"), below(0.03),
          printed("Fig. 9 right"), **study.READ_OFF),
    Claim("looped-step-sizes", "eta and gamma in the weights of three looped layers are within 5 % of three tuned, "
          "tied steps of GD++",
          beside([sizes[one] / sizes[f"gd++ {one}"] for one in ("eta", "gamma")], "size read / size tuned"),
          two_sided(0.05), study.derived("Fig. 9 right"), former="printed, held", **study.READ_OFF,
          premises=(*LOOPED, "references-as-predicted", "gd++-at-its-optimum", "sizes-as-read")),
)  # fmt: skip

TWO_HEADS = Figure(
    "two-heads", "Softmax layer with two heads: W_KQ of each head times the target entry of its W_PV, and "
    "their sum, on the inputs. Paper: Fig. 11.", Matrices(_heads_shown), claims=(
        Claim("heads-cancel", "off the diagonal, the sum of two softmax heads is at most a tenth of either",
              heads["scaled_kq"].map(
                  _left_of_heads, "|sum of both heads' products off the diagonal| / |the smaller head's|"
              ), below(0.1), printed("Fig. 11"), **study.READ_OFF, premises=("two-heads-converged", "heads-descend")),
    ),
)  # fmt: skip


STUDY = Study(
    name="weights",
    source=f"{regression.PAPER}: Figs. 9 and 11",
    presets={
        "quick": Softmax(
            plan(1000, 4e-3, clip=0.001), init_scale=0.02, tasks=20_000, sweep_tasks=2_000,
            two_heads=SecondTraining(plan(1000, 1e-2, clip=0.001), init_scale=0.2),
        ),
        "paper": Softmax(plan(5000, 1e-3, clip=0.001), two_heads=SecondTraining(plan(5000, 1e-3, clip=0.001), 0.002)),
    },
    measure=measure,
    trainings=3,
    premises=LOOPED,
    claims=(
        *(converged(name, id=f"{name}-converged") for name in ("one-layer", "three-looped", "two-heads")),
        shared.as_predicted(("gd++",)),
        shared.no_better_descent(compared, "gd++", "GD++", id="gd++-at-its-optimum"),
        shared.as_trained("three-looped"),
        Claim("sizes-as-read", "GD++ with the step sizes read from each network's weights has the network's loss, "
              "within 25 %", compared.ratio("own", "trained"), two_sided(0.25), ours("premise"), premises=()),
        Claim("heads-descend", "each softmax head has the sign of a gradient step: the mean diagonal of its W_KQ times "
              "the target entry of its W_PV is negative",
              heads["scaled_kq"].map(lambda kq: np.diagonal(kq, 0, -2, -1).mean(-1), "mean diagonal of each head"),
              below(0.0), ours("premise"), **study.READ_OFF, premises=()),
    ),
    figures=(ONE_LAYER, THREE_LOOPED, TWO_HEADS),
    deviations=(
        shared.AVERAGED, shared.CLIPPED, shared.INPUTS, shared.INITIAL,
        "Three looped layers train with gradients clipped at 0.001 in place of 10.",
    ),
    mutations=(
        bugs.RAW_PRODUCTS, bugs.OTHER_LENGTH, bugs.FLIPPED_GAMMA, bugs.POOR_OPTIMUM,
        study.Mutation("products of heads leave out W_PV", f"{__name__}:_heads", lambda heads: lambda nets: {
                       "scaled_kq": np.stack([net.products()[0].w_kq.detach().numpy()[:, :D, :D] for net in nets])}),
    ),
    mutated={
        "training": plan(600, 3e-2, batch=256, clip=0.001), "init_scale": 0.01, "tasks": 6000, "sweep_tasks": 2000,
        "two_heads": SecondTraining(plan(500, 3e-2, batch=256, clip=0.001), init_scale=0.2), "tune_tasks": 5000,
    },
)  # fmt: skip
