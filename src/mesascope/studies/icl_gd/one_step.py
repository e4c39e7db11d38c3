"""Does one trained linear self-attention layer run one step of gradient descent?

ICML paper: Figures 1 (right), 2, 6a, 9 (left) and 10. Tasks are noiseless linear regression with N = d inputs from
a uniform law around 0, as in the authors' code. The trained layer is compared with gradient descent at the closed-form
best step size, on the same fresh tasks. In other layers, keys and values also come from the query's token, which the
paper leaves out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mesascope import constructions, learners, lenses, nets, study, tasks
from mesascope.studies.common import converged, midpoint, midpoint_losses, plan, watch_loss
from mesascope.studies.icl_gd import bugs, one_step_rollouts, regression, shared
from mesascope.study import Claim, Figure, Level, Line, Reading, above, below, derived, printed, stage, two_sided

SIZES = (5, 10, 15, 20)
AUTHORS = "authors' code, 3 runs"
PREMISES = ("converged", "limit")
HALFWAY = (*PREMISES, "midpoint")
NARROW = {"quick": two_sided(0.005), "paper": two_sided(0.001)}

run, main = stage("size-10"), stage("size-10-comparison")
optima = stage("optima", optimum="closed form", limit="closed form")
limits = stage("limits")
weights = stage(
    "weights", off_diagonal="largest |entry| off the diagonal / mean diagonal",
    distance_kq="|W_KQ - construction| / |construction|",
)  # fmt: skip


@study.frozen
class OneStep(regression.Regression):
    n_context: study.Count = 10  # Pairs of a context, except for the sizes N = d of 5, 15 and 20.
    noise: study.NonNegative = 0.0  # Standard deviation of the label noise.
    sizes: study.Training = plan(600, 2e-3, decay_from=0.5)  # Training for other sizes N = d, and for with-query.

    def family(self, **changes: Any) -> tasks.LinearRegression:
        return super().family(**{"n_context": self.n_context, "noise": self.noise} | changes)

    def family_of(self, size: int, **changes: Any) -> tasks.LinearRegression:
        """Tasks with N = d = ``size``; for size 10, the tasks of all other figures."""
        return self.family(**{} if size == 10 else {"n_context": size, "d_in": size}, **changes)


def measure(lab: study.Lab, settings: OneStep) -> None:
    trained, gd, built = {size: _size(lab, settings, size) for size in SIZES}[10]
    groups = {"trained": trained, "gd": [gd]}
    fresh = lab.draw(settings.family(), settings.tasks, "eval")
    around = groups | {"middle": regression.midpoints(trained, [built] * len(trained))}
    for kind in regression.SWEEPS:
        lab.stage(kind, regression.sweep, lab, settings, around, kind)
    one_step_rollouts.measure(lab, settings, groups, fresh)
    lab.stage("weights", _read, trained, built)
    lab.stage("construction", _read, [built], built)
    lab.stage(
        "step-sizes", lambda: {"eta": [lenses.step_sizes(net, settings.n_context).eta[0].item() for net in trained]}
    )
    lab.stage("optima", _optima, lab, settings)
    lab.stage("limits", _limits, lab, settings)
    _with_query(lab, settings, gd, fresh)


def _with_query(lab: study.Lab, settings: OneStep, gd: Any, fresh: tasks.Episode) -> None:
    """Train layers whose keys and values also come from the query's token."""
    config = dataclasses.replace(regression.network(settings), layout=nets.WithQuery())
    watched = watch_loss(mse=lab.draw(settings.family(), settings.sweep_tasks, "watch"))
    trained = lab.train("with-query", config, settings.family(), settings.sizes, watch=watched)
    lab.stage("with-query-comparison", lenses.measure_learners, {"trained": trained, "gd": [gd]}, ["gd"], fresh)


def _size(lab: study.Lab, settings: OneStep, size: int) -> tuple[list[Any], Any, Any]:
    """Trained layers, gradient descent with its best step size, and its construction, for N = d = ``size``."""
    family = settings.family_of(size)
    gd, eta = regression.best_step(family), learners.one_step_optimum(family).eta
    built = constructions.gradient_descent(size, 1, eta, family.n_context).network.float().to(lab.device)
    watched = regression.watch_alignment({"gd": gd}, lab.draw(family, settings.sweep_tasks, "watch"))
    training = settings.training if size == 10 else settings.sizes
    trained = lab.train(f"size-{size}", regression.network(settings, size + 1), family, training, watch=watched)
    fresh = lab.draw(family, settings.tasks, "eval")
    lab.stage(
        f"size-{size}-comparison", regression.compare_midpoints, trained, [built] * len(trained), fresh, {"gd": [gd]}
    )
    return trained, gd, built


def _many(settings: OneStep) -> list[tasks.LinearRegression]:
    """Families for each N = d; ten teachers and ten queries give a third of the standard error of one."""
    return [settings.family_of(size, d_out=10, n_query=10) for size in SIZES]


def _optima(lab: study.Lab, settings: OneStep) -> study.Arrays:
    """Closed-form step size and loss for each size, and the step size that tuning finds on separate tasks."""
    families, start, count = _many(settings), learners.GradientDescent(1, 1.0), max(settings.tasks // 5, 2)
    closed = [learners.one_step_optimum(family) for family in families]
    found = [learners.tune(start, one, tasks=count, seed=lab.seed).step_sizes["eta"][0] for one in families]
    columns = {
        "size": SIZES, "limit": [one.mse for one in closed], "optimum": [one.eta for one in closed],
        "tuned": [one.value for one in found], "stderr": [one.stderr for one in found],
    }  # fmt: skip
    return study.Arrays(columns, **dict.fromkeys(columns, "size"))


def _limits(lab: study.Lab, settings: OneStep) -> study.Estimates:
    """Loss of gradient descent at the closed-form step size, for each size."""
    points = []
    for family in _many(settings):
        found = lenses.per_task_errors(regression.best_step(family), lab.draw(family, settings.tasks, "limit"))
        points.append(study.Estimates.of({("mse", "gd"): [found]}))
    return study.Estimates.over({"size": SIZES}, points)


def _read(networks: Sequence[Any], built: Any) -> dict[str, Any]:
    """Rescaled W_KQ and W_PV by seed, largest off-diagonal entry of W_KQ, and its distance from the construction."""
    read = [lenses.weights(net, built)[0][0] for net in networks]
    distances = {name: [getattr(one, name) for one in read] for name in ("off_diagonal", "distance_kq")}
    return {**regression.first_products(networks), **distances}


def _tuned(found: Any) -> np.ndarray:
    from uncertainties import unumpy

    return unumpy.uarray(found["tuned"], found["stderr"]) / found["optimum"]


def _at_sizes(read: Callable[[study.StageReading], Reading], words: str) -> Reading:
    return study.beside([read(stage(f"size-{size}-comparison")) for size in SIZES], f"{words}, for each size")


def _loss(name: str, role: str, label: str, marks: str) -> Line:
    return Line(SIZES, _at_sizes(lambda one: one["mse", name] / 2, name), role, label, each=True, marks=marks)


AT_SIZES = _at_sizes(lambda one: one.ratio("trained", "gd"), "loss of trained / of gradient descent")


def _offsets(r: Any) -> list[Line | Level]:
    found = r["optima"]
    offset, bars = 100 * (found["tuned"] / found["optimum"] - 1), 100 * found["stderr"] / found["optimum"]
    return [Level(0.0, "limit"), Line(SIZES, offset, "gd", marks="o", error=bars)]


_of_median = partial(Claim, quantifier="median", former="each of eight layers, held")
_of_weights = partial(Claim, premises=("converged",), **study.READ_OFF)

TRAINING = Figure(
    "training", "The trained layers on held-out tasks while training; line and band: mean and range over "
    "seeds. Paper: Fig. 2, first two columns.", shared.training_panels(run, "trained layer", ["gd"], [
        Level(run["gd mse"] / 2, "gd", "one step of gradient descent"),
        Level(optima["limit"].at(1, "N = d = 10") / 2, "limit", "limit of linear attention"),
    ]), columns=2, claims=(
        Claim("loss-matches-gd", "each trained layer's loss is within 0.1 % of gradient descent's",
              main.ratio("trained", "gd"), two_sided(0.001), printed("Fig. 2 left"),
              reported=study.Reported((1.0026, 1.0006, 1.0029), AUTHORS)),
        Claim("prediction-difference", "each trained layer's predictions are those of gradient descent to 0.009 on "
              "average (paper preset: 0.006)",
              main["prediction-difference", "trained", "gd"], {"quick": below(0.009), "paper": below(0.006)},
              printed("Fig. 2 centre left"), reported=study.Reported((0.0225, 0.0184, 0.0246), AUTHORS)),
        Claim("sensitivity-cosine", "each trained layer's sensitivities have a cosine above 0.9998 with gradient "
              "descent's", main["cosine", "trained", "gd"], above(0.9998), printed("Fig. 2 centre left"),
              reported=study.Reported((0.9993, 0.9995, 0.9992), AUTHORS)),
        Claim("model-difference", "the linear model that each trained layer applies to a context is within 0.03 (paper "
              "preset: 0.02) of gradient descent's on average, where teachers have norm 3",
              main["sensitivity-difference", "trained", "gd"], {"quick": below(0.03), "paper": below(0.02)},
              printed("Fig. 2 centre left"), reported=study.Reported((0.097, 0.078, 0.105), AUTHORS)),
        Claim("with-query", "if keys and values also come from the query's token, each layer's loss is within 1 % of "
              "gradient descent's", stage("with-query-comparison").ratio("trained", "gd"), two_sided(0.01),
              printed("section 2, full self-attention"), premises=("with-query-converged", "limit")),
    ),
)  # fmt: skip

DIMENSIONS = Figure(
    "dimensions", "Left: trained, interpolated and constructed layers for each size. Right: step sizes tuned "
    "on their own tasks minus the closed form; bars show one standard error. Paper: Fig. 2 centre right.", (
        study.Lines("", "N = d", shared.HALF_MSE, [
            Line(SIZES, optima["limit"] / 2, "limit", "limit", marks=":"),
            _loss("gd", "gd", "gradient descent", "o"),
            _loss("trained", "trained", "trained layers", "x"),
            _loss("middle", "interpolated", "interpolated", "+"),
        ], limits={"xticks": SIZES, "ylim": (0, 1)}),
        study.Lines("", "N = d", "tuned step size / closed form - 1, %", _offsets, limits={"xticks": SIZES}),
    ), claims=(
        Claim("limit", "one step of gradient descent at the closed-form step size has a loss within 2 % of the closed "
              "form, for each N = d", limits["mse", "gd"].at(0, "for each size") / optima["limit"], two_sided(0.02),
              derived("one-step optimum"), over="sizes", at_least=4, about="algorithms"),
        Claim("eta-optimum", "the tuned step size is within 2 % of the closed form, for each N = d",
              optima.map(_tuned, "tuned eta / closed form"), two_sided(0.02), derived("one-step optimum"), over="sizes",
              at_least=4, about="algorithms"),
        _of_median("dimensions", "for N = d in 5, 10, 15 and 20 the median trained loss is within 0.5 % (paper preset: "
                   "0.1 %) of gradient descent's",
                   AT_SIZES, NARROW, printed("Fig. 2 centre right"), premises=(*PREMISES, "sizes-converged")),
        _of_median("interpolated-dimensions", "for N = d in 5, 10, 15 and 20 the median loss halfway between trained "
                   "weights and construction is within 0.5 % (paper preset: 0.1 %) of gradient descent's",
                   _at_sizes(lambda one: one.ratio("middle", "gd"), "loss at the midpoint / of gradient descent"),
                   NARROW, printed("Fig. 2 centre right"), premises=(*HALFWAY, "sizes-converged")),
        Claim("all-sizes-learn", "for N = d in 5, 10, 15 and 20 each trained loss is within 10 % of gradient descent's",
              AT_SIZES, two_sided(0.1), study.ours("do some layers stay on the plateau?")),
        Claim("interpolation", "halfway between trained weights and construction the loss is within 0.2 % of either "
              "end's", midpoint_losses("size-10-comparison"), two_sided(0.002), printed("Fig. 2 and appendix A.3"),
              premises=HALFWAY),
    ),
)  # fmt: skip

scaled = stage("input-scale")
INPUT_SCALE = Figure(
    "input-scale", "Inputs scaled away from those of training. Paper: Fig. 6a left.",
    shared.panels_over(scaled, "x_scale", "trained layers", ["gd"], middle=True, log=""), claims=(
        *shared.matched("input-scale", scaled, "gd", "for inputs scaled by 0.5 to 2", 0.05, printed("Fig. 6a left"),
                        HALFWAY),
        Claim("worse-than-nothing", "at twice the training scale of inputs, gradient descent with the step size tuned "
              "for training has a larger loss than predicting zero",
              scaled["mse", "gd"].at((..., -1), "at twice the scale")
              / (4 * stage("damping-1.0", all="loss")["all", "gd"].at((0, 0), "before the first step")), above(1.0),
              printed("section 3, on out-of-distribution tasks"), over="algorithms"),
    ),
)  # fmt: skip

CHANGED_TASKS = shared.changed_tasks(
    "", "trained layers", ["gd"], "Paper: Fig. 6a",
    shared.matched_elsewhere("", "gd", "6a", HALFWAY, inputs=0.1), middle=True, log="",
)  # fmt: skip

WEIGHTS = Figure(
    "weights", "Weight products of one trained layer, rescaled as in appendix A.3, beside the construction. "
    "Paper: Fig. 9.", study.Matrices(shared.products("weights", "construction"), 1.0), claims=(
        Claim("eta-read", "the step size in the weights is within 1 % of the optimal one",
              stage("step-sizes", eta="eta read")["eta"] / optima["optimum"].at(1, "N = d = 10"), two_sided(0.01),
              printed("section 2, meta-learned learning rates"), premises=("converged", "eta-optimum"),
              **study.READ_OFF),
        _of_weights("weights-diagonal", "W_KQ has one value on the inputs' diagonal, within 2 %",
                    weights["w_kq"].map(shared.diagonal_spread, "largest distance from the mean / |mean|"),
                    below(0.02), printed("Fig. 9 outer left")),
        _of_weights("values-row", "the row of W_PV that makes predictions reads targets alone, within 2 %",
                    weights["w_pv"].map(lambda w_pv: np.abs(w_pv[:, -1, :-1]).max(axis=1) / np.abs(w_pv[:, -1, -1]),
                                        "largest |entry at an input| / |entry at the target|"),
                    below(0.02), printed("Fig. 9 left")),
        _of_weights("weights-off-diagonal", "off its diagonal, W_KQ is at most 1.5 % of the mean diagonal",
                    weights["off_diagonal"], below(0.015), printed("Fig. 9 outer left"),
                    reported=study.Reported((0.03, 0.048), "authors' code, ends of 3 runs")),
        _of_weights("weights-distance", "the rescaled W_KQ is the construction's, within 3 % of its norm",
                    weights["distance_kq"], below(0.03), printed("appendix A.3")),
    ),
)  # fmt: skip

STUDY = study.Study(
    name="one-step",
    source=f"{regression.PAPER}: Figs. 1, 2, 6a, 9 and 10",
    presets={
        "quick": OneStep(plan(1500, 2e-3, decay_from=0.5), init_scale=2e-5, sweep_tasks=4000),
        "paper": OneStep(
            plan(5000, 1e-3, decay_from=0.5, clip=0.001), init_scale=2e-5, seeds=16, sweep_tasks=100_000,
            sizes=plan(5000, 1e-3, decay_from=0.5, clip=0.001),
        ),
    },
    measure=measure,
    trainings=5,
    premises=PREMISES,
    claims=(
        converged("size-10"), converged("with-query", id="with-query-converged"),
        converged(*(f"size-{size}" for size in SIZES if size != 10), id="sizes-converged"),
        midpoint("size-10-comparison"),
    ),
    figures=(TRAINING, DIMENSIONS, INPUT_SCALE, CHANGED_TASKS, one_step_rollouts.FIGURE, WEIGHTS),
    deviations=(
        "Sixteen layers train in place of five; claims about other sizes are about their median.",
        shared.AVERAGED, shared.CLIPPED, shared.INPUTS, shared.UNSEEN_INPUTS,
        "Initial weights are ten times smaller: the column of W_KQ that multiplies the query's zero target has no "
        "gradient and keeps its initial size.",
    ),
    mutations=(bugs.HALF_STEP, bugs.TWICE_STEP, bugs.FIRST_END, bugs.RAW_PRODUCTS, bugs.SHIFTED_TARGETS),
    mutated={"sizes": plan(50, 1e-2, batch=64), "tasks": 8000, "sweep_tasks": 300},
)  # fmt: skip
