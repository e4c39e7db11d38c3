"""Does GD++ flatten the curvature of the tasks it is trained on?

ICML paper: Figure 13 and appendix A.10. Tasks are noiseless linear regression with d = 10. Each GD++ step maps an
eigenvalue of X X^T to f(l) = l (1 - gamma l)^2. Looped two-layer networks are trained with N = 10, 25, 50 and 100
pairs. The gamma in their weights is compared with tuned GD++'s, and with the gamma that minimises a bound on the
condition number of these spectra. With init_scale = 0.02, one network in five converges at N = 100 to the mirrored
optimum, where eta is negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mesascope import learners, lenses, study
from mesascope.studies.common import converged, plan, watch_loss
from mesascope.studies.icl_gd import bugs, regression, shared
from mesascope.study import Arrays, Bound, Claim, Estimates, Line, Lines, Reported, above, below, derived, ours, printed

SIZES = (10, 25, 50, 100)
# Quantile of condition numbers that describes rare tasks.
TAIL = 0.999
GAMMAS = (0.0, 0.03, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)
SHADES = np.linspace(0, 1, len(SIZES))
CONTEXTS, SHOWN = 10_000, 2_000
PAPER_SMALLEST = np.array([1e-10, 0.097, 0.666, 2.870])
PAPER_LARGEST = np.array([4.6, 7.712, 10.845, 17.196])
PAPER_GAMMA = np.array([0.179, 0.099, 0.056, 0.029])

spectra = study.stage("spectra", smallest="smallest eigenvalue of each draw", largest="largest eigenvalue of each draw")
gamma = study.stage("gamma", **{"gamma": "gamma read", "gd++ gamma": "gamma of tuned GD++"})
descents, conditioning = study.stage("descents", expected="theory"), study.stage("conditioning")
medians, tails = (study.stage("condition-numbers")[name] for name in ("median", "tail"))


@study.frozen
class Curvature(regression.Regression):
    draws: study.Several = 40  # Draws of 10,000 contexts; each gives extreme eigenvalues.


def transformed(eigenvalue: np.ndarray, gamma: np.ndarray | float) -> np.ndarray:
    """Eigenvalue after one step of GD++: eq. 25."""
    return eigenvalue * (1 - gamma * eigenvalue) ** 2


def condition_number(spectra: np.ndarray) -> np.ndarray:
    """Largest over smallest eigenvalue of each task; the smallest is at least 1e-10, as in the paper."""
    return spectra.max(-1) / np.maximum(spectra.min(-1), 1e-10)


def condition_numbers(smallest: float, largest: float, gamma: np.ndarray) -> np.ndarray:
    """Upper bound on the condition number after one step, from the extreme eigenvalues before it: appendix A.10."""
    ends = transformed(np.array(largest), gamma), transformed(np.array(smallest), gamma)
    top = np.where(3 * gamma * largest > 1, 4 / (27 * gamma), ends[0])
    return top / np.minimum(*ends)


def flattest(smallest: float, largest: float) -> float:
    """Gamma below 1 / largest with the smallest bound on the condition number."""
    gammas = np.geomspace(0.02, 0.999, 2000) / largest
    return float(gammas[condition_numbers(max(smallest, 1e-10), largest, gammas).argmin()])


def measure(lab: study.Lab, settings: Curvature) -> None:
    sizes = {size: _train(lab, settings, size) for size in SIZES}
    drawn = lab.stage("spectra", _spectra, lab, settings)
    lab.stage("condition-numbers", _condition_numbers, lab, settings)
    read = lab.stage("gamma", _gammas, list(sizes.values()))
    lab.stage("conditioning", _conditioning, drawn, read)
    lab.stage("descents", _descents, lab, settings, sizes)


def _train(lab: study.Lab, settings: Curvature, size: int) -> dict[str, Sequence[Any]]:
    """Networks for contexts of ``size`` pairs, the descent with the step sizes in their weights, and tuned GD++."""
    family = settings.family(n_context=size)
    watched = watch_loss(mse=lab.draw(family, settings.sweep_tasks, "watch"))
    config = regression.network(settings, n_layers=2, shared=True)
    trained = lab.train(f"pairs-{size}", config, family, settings.training, watch=watched)
    start = learners.GradientDescentPlusPlus(2, 3.0, 0.03)
    plus = regression.tuned(lab, settings, start, n_context=size).learner
    return {"trained": trained, "own": [regression.own_descent(net, 2, size) for net in trained], "gd++": [plus]}


def _draws(lab: study.Lab, settings: Curvature, size: int, name: str) -> list[Any]:
    """Eigenvalues of X X^T (not divided by N) of contexts of ``size`` pairs, each draw ``(contexts, 10)``."""
    family = settings.family(n_context=size)
    streams = [lab.stream(name, index) for index in range(settings.draws)]
    return [size * learners.gram_spectra(family, CONTEXTS, stream) for stream in streams]


def _spectra(lab: study.Lab, settings: Curvature) -> Arrays:
    """Extreme eigenvalues of each draw of contexts, and some spectra of the first draw."""
    draws = [_draws(lab, settings, size, "spectra") for size in SIZES]
    found = {
        "smallest": [[float(draw[:, 0].min()) for draw in drawn] for drawn in zip(*draws, strict=True)],
        "largest": [[float(draw[:, -1].max()) for draw in drawn] for drawn in zip(*draws, strict=True)],
        "size": SIZES,
        "spectra": [drawn[0][:SHOWN].float().cpu().numpy() for drawn in draws],
    }
    return Arrays(found, smallest="draw size", largest="draw size", size="size", spectra="size task eigenvalue")


def _condition_numbers(lab: study.Lab, settings: Curvature) -> Arrays:
    """Quantiles over contexts with N = 25 of the condition number after one step, for each draw and each gamma."""
    draws = [draw.cpu().numpy() for draw in _draws(lab, settings, 25, "medians")]
    found = np.array([[condition_number(transformed(draw, gamma)) for gamma in GAMMAS] for draw in draws])
    quantiles = {"median": np.median(found, axis=-1), "tail": np.quantile(found, TAIL, axis=-1)}
    return Arrays(quantiles, median="draw gamma", tail="draw gamma")


def _gammas(sizes: Sequence[Mapping[str, Sequence[Any]]]) -> Arrays:
    """Gamma in the weights of each seed's network, and gamma of tuned GD++, for each size."""
    read = [[own.gamma[0].item() for own in groups["own"]] for groups in sizes]
    found = {"gamma": np.transpose(read), "gd++ gamma": [groups["gd++"][0].gamma.item() for groups in sizes]}
    return Arrays(found, **{"gamma": "seed size", "gd++ gamma": "size"})


def _conditioning(drawn: Any, read: Any) -> Estimates:
    """Change of each task's log condition number by one step with each network's gamma."""
    points = []
    for spectra, gammas in zip(drawn["spectra"].astype(float), read["gamma"].T, strict=True):
        before = condition_number(spectra)
        change = [np.log(condition_number(transformed(spectra, gamma)) / before) for gamma in gammas]
        points.append(Estimates.of({("log-condition-change", "trained"): change}))
    return Estimates.over({"size": SIZES}, points)


def _descents(lab: study.Lab, settings: Curvature, sizes: Mapping[int, Mapping[str, Sequence[Any]]]) -> Estimates:
    """Losses of GD++ on contexts with ten teachers and ten queries each, and losses predicted from their spectra."""
    points = []
    for size, groups in sizes.items():
        family = settings.family(n_context=size, d_out=10, n_query=10)
        fresh = lab.draw(family, settings.tasks, "eval")
        spectra = learners.gram_spectra(family, settings.tasks, lab.stream("eval"))
        found = {("mse", "gd++"): [lenses.per_task_errors(one, fresh) for one in groups["gd++"]]}
        for key, name in (("gd++", "expected"), ("own", "own")):
            found["mse", name] = [learners.spectral_mse(spectra, one, family) for one in groups[key]]
        points.append(Estimates.of(found))
    return Estimates.over({"size": SIZES}, points)


def _from_paper(draws: np.ndarray) -> np.ndarray:
    """Smallest eigenvalues minus the paper's, in standard deviations over draws, for N from 25 on."""
    return (draws[:, 1:] - PAPER_SMALLEST[1:]) / draws[:, 1:].std(axis=0, ddof=1)


def _measured(draws: np.ndarray) -> np.ndarray:
    """Mean over draws with its standard error, for each size."""
    from uncertainties import unumpy

    return unumpy.uarray(draws.mean(axis=0), draws.std(axis=0, ddof=1) / np.sqrt(len(draws)))


def _flattest(found: Any) -> np.ndarray:
    pairs = zip(found["smallest"], found["largest"], strict=True)
    return _measured(np.array([[flattest(*ends) for ends in zip(*draw, strict=True)] for draw in pairs]))


def _beyond(found: np.ndarray) -> np.ndarray:
    """Quantiles for each gamma above 0.1 / at 0.1."""
    start = GAMMAS.index(0.1)
    return found[:, start + 1 :] / found[:, start, None]


LARGER = [gamma for gamma in GAMMAS if gamma > 0.1]
BEYOND = tails.map(_beyond, "quantile of condition numbers / at gamma 0.1, for each gamma")


def _at_least_median(found: np.ndarray) -> np.ndarray:
    """Median at gamma 0.14 over the median at every other gamma."""
    place = GAMMAS.index(0.14)
    return np.delete(found[:, place, None] / found, place, axis=1)


def _change(r: Any) -> list[Line]:
    lines = [Line([0, 6], [0, 6], "limit", "unchanged", width=0.8)]
    for size, shade, middle in zip(SIZES, SHADES, np.median(r["gamma"]["gamma"], 0), strict=True):
        eigenvalues = np.linspace(0, 1 / middle, 200)
        lines.append(Line(eigenvalues, transformed(eigenvalues, middle), shade, f"N = {size}"))
    return lines


def _bounds(shown: Sequence[int], r: Any) -> list[Line]:
    """Bounds on the condition number by gamma for some sizes; marks at the networks' gamma, the best gamma, and 0."""
    lines = []
    ends = r["spectra"]["smallest"].mean(0), r["spectra"]["largest"].mean(0), np.median(r["gamma"]["gamma"], 0)
    for size, shade, low, high, middle in zip(SIZES, SHADES, *ends, strict=True):
        if size not in shown:
            continue
        gammas = np.geomspace(0.02, 0.999, 500) / high
        marked = ((middle, "o"), (flattest(low, high), "v"))
        lines += [
            Line(gammas, condition_numbers(low, high, gammas), shade, f"N = {size}"),
            *(Line([at], condition_numbers(low, high, np.array([at])), shade, marks=marks) for at, marks in marked),
            Line([0.0], [high / low], shade, marks="*"),
        ]
    return lines


def _spread(r: Any) -> dict[str, np.ndarray]:
    index = SIZES.index(25)
    before, middle = r["spectra"]["spectra"][index], np.median(r["gamma"]["gamma"][:, index])
    after = {factor * middle: transformed(before, factor * middle) for factor in (0.0, 0.5, 1.0, 1.5, 1.8)}
    return {f"gamma = {value:.3f}": condition_number(one) for value, one in after.items()}


# Claim about the median network: one in thirty stays at another optimum, and some are late.
_of_gamma = partial(Claim, quantifier="median", former="of each network: held for five, undecided for eight")
# Claim about the median over draws of contexts; no network is involved.
_of_draws = partial(Claim, over="draws", quantifier="median", at_least=10, about="algorithms")

CLAIMS = (
    _of_draws("largest-eigenvalues", "the median over draws of the largest eigenvalue of X X^T in 10,000 tasks is "
              "within 10 % of that of von Oswald et al. (2023), for each N",
              spectra["largest"].map(lambda found: found / PAPER_LARGEST, "largest of each draw / the paper's"),
              study.two_sided(0.1), printed("appendix A.10"), reported=Reported(tuple(PAPER_LARGEST))),
    _of_draws("smallest-eigenvalues", "for N from 25 on, the paper's smallest eigenvalue of 10,000 tasks lies within "
              "five standard deviations of repeated draws",
              spectra["smallest"].map(_from_paper, "(smallest of each draw - the paper's) / standard deviation"),
              study.two_sided(5.0, around=0.0), printed("appendix A.10"), reported=Reported(tuple(PAPER_SMALLEST[1:]))),
    _of_draws("singular-at-ten", "with N = 10, the smallest eigenvalue of X X^T in 10,000 tasks is below 1e-6, in the "
              "median over draws",
              spectra["smallest"].at((slice(None), 0), "N = 10"), below(1e-6), printed("appendix A.10"),
              reported=Reported(PAPER_SMALLEST[0], "printed, where it is cut")),
    _of_draws("text-inputs", "with inputs from U(-1, 1), as in the paper's text, largest eigenvalues are within 10 % "
              "of the paper's, for each N",
              spectra["largest"].map(
                  lambda found: 4 * found / PAPER_LARGEST, "4 * largest of each draw / the paper's"
              ), study.two_sided(0.1), derived("section 3, whose text has these inputs, and appendix A.10"),
              former="printed, failed"),
    _of_gamma("gamma-observed", "the gamma in the median network's weights is within 10 % of the paper's, for each N",
              gamma["gamma"].map(lambda found: found / PAPER_GAMMA, "gamma read / the paper's"), study.two_sided(0.1),
              printed("Fig. 13 centre"), reported=Reported(tuple(PAPER_GAMMA))),
    _of_gamma("gamma-optimal", "the gamma in the median network's weights is within 10 % of tuned GD++'s, for each N",
              gamma["gamma"] / gamma["gd++ gamma"], study.two_sided(0.1), derived("spectral loss"),
              premises=("converged", "gamma-positive", "gd++-at-its-optimum", "gd++-as-predicted")),
    _of_gamma("gamma-condition-number", "the gamma that minimises the upper bound on the condition number is 0.5 to 2 "
              "times the gamma in the median network's weights, for each N",
              spectra.map(_flattest, "gamma with the least bound") / gamma["gamma"], Bound(0.5, 2.0),
              printed("Fig. 13 centre")),
    _of_gamma("gamma-derived-larger", "the gamma that minimises the upper bound on the condition number is larger "
              "than that in the median network's weights, for each N",
              spectra.map(_flattest, "gamma with the least bound") / gamma["gamma"], above(1.0, by="paper"),
              printed("appendix A.10: a slightly larger gamma")),
    _of_gamma("inside-roots", "the largest eigenvalue of 10,000 tasks is below 1 / gamma, the second root of the map "
              "of eigenvalues, in the mean over draws, for the median network and each N",
              spectra["largest"].map(_measured, "largest eigenvalue of 10,000 tasks") * gamma["gamma"], below(1.0),
              printed("appendix A.10")),
    _of_gamma("better-conditioned", "one step with the gamma in the median network's weights lowers the "
              "logarithm of condition numbers in the mean over tasks, for each N",
              conditioning["log-condition-change", "trained"], below(0.0),
              printed("appendix A.10, Fig. 13 centre and right")),
    _of_draws("explodes", "for N = 25, the 99.9 % quantile over tasks of condition numbers at gamma of 0.12 and more "
              "is larger than at 0.1",
              BEYOND, above(1.0, by="paper"), printed("Fig. 13 right: quickly explode for gamma > 0.1"),
              former="of the median over tasks, failed"),
    _of_draws("explodes-later", "for N = 25, the 99.9 % quantile over tasks of condition numbers at gamma of 0.16 is "
              "more than a hundred times that at 0.1",
              BEYOND.at((slice(None), LARGER.index(0.16)), "gamma 0.16"), above(100.0),
              ours("where condition numbers of rare tasks do explode")),
    _of_draws("least-beyond", "of gammas from 0 to 0.2 the median condition number is least at 0.14",
              medians.map(_at_least_median, "median condition number at gamma 0.14 / at each other gamma"), below(1.0),
              ours("where median condition numbers grow again")),
)  # fmt: skip

SPECTRA = study.Figure(
    "spectra", "Curvature before and after one step of GD++ at the gamma of the median trained network. In the "
    "bounds on the condition number, stars: without a step; circles: at the gamma of the median network, "
    "triangles: at the least bound. N = 10 has an axis of its own, as its smallest eigenvalue is a rounding "
    "error. Last row: tasks of N = 25. Paper: Fig. 13.", (
        Lines("", "eigenvalue before a step", "eigenvalue after it", _change, limits={"ylim": (0, 6)}),
        Lines("", "gamma", "bound on the condition number", partial(_bounds, SIZES[1:]), "y"),
        Lines("", "gamma", "bound on the condition number", partial(_bounds, SIZES[:1]), "y"),
        study.Histogram("", "condition number, N = 25", "tasks", _spread, np.geomspace(1, 1000, 90)),
        Lines("", "gamma", "condition number, N = 25", [
            Line(GAMMAS, medians, "trained", "median over tasks"),
            Line(GAMMAS, tails, "gd", "99.9 % quantile over tasks"),
        ], "y"),
    ), claims=CLAIMS,
)  # fmt: skip

MUTATIONS = (
    study.Mutation("eigenvalues are those of X X^T / N", f"{__name__}:_draws",
                   lambda draws: lambda lab, settings, size, name: [
                       one / size for one in draws(lab, settings, size, name)]),
    study.Mutation("condition numbers are the smallest eigenvalue over the largest", f"{__name__}:condition_number",
                   lambda condition: lambda spectra: 1 / condition(spectra)),
    bugs.POOR_OPTIMUM, bugs.FLIPPED_GAMMA, bugs.SHIFTED_TARGETS,
)  # fmt: skip

STUDY = study.Study(
    name="curvature",
    source=f"{regression.PAPER}: Fig. 13",
    presets={
        "quick": Curvature(
            plan(1200, 8e-3, batch=256, clip=0.001), init_scale=0.005, tasks=20_000, sweep_tasks=2000, tune_tasks=2000,
            draws=20, seeds=8,
        ),
        "paper": Curvature(plan(5000, 1e-3, clip=0.001), seeds=16, tasks=20_000, sweep_tasks=2000, draws=100),
    },
    measure=measure,
    trainings=4,
    premises=("converged", "gamma-positive"),
    claims=(
        converged(*(f"pairs-{size}" for size in SIZES), each=False,
                  former="of each network: held for five, failed for eight"),
        shared.no_better_descent(descents, "expected", "GD++", id="gd++-at-its-optimum"),
        Claim("gd++-as-predicted", "tuned GD++'s loss on fresh tasks is the one that theory gives for its step sizes, "
              "for each N", descents.ratio("gd++", "expected"), study.two_sided(0.03), ours("premise"),
              over="algorithms"),
        Claim("gamma-positive", "the gamma in trained weights is positive, for each N", gamma["gamma"], above(0.0),
              ours("premise"), **study.READ_OFF),
    ),
    figures=(SPECTRA,),
    deviations=(
        "Sixteen networks train for each number of pairs, in place of five.",
        shared.AVERAGED, shared.CLIPPED, shared.INPUTS, shared.INITIAL,
    ),
    mutations=MUTATIONS,
    mutated={
        "training": plan(400, 2e-2, batch=256, clip=0.001), "init_scale": 0.01, "tasks": 8000, "sweep_tasks": 300,
        "draws": 10, "seeds": 5,
    },
)  # fmt: skip
