"""Does GD++ flatten the curvature of the tasks it is trained on?

ICML paper: Figure 13 and appendix A.10. Tasks are noiseless linear regression with d = 10. Each GD++ step maps an
eigenvalue of X X^T to f(l) = l (1 - gamma l)^2. The spectra of tasks of N = 10, 25, 50 and 100 pairs are compared
with the gamma that looped two-layer networks find on them. From an init_scale of 0.02 a network in five finds the
mirrored optimum with negative eta at N = 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses
from mesascope.errors import require_count
from mesascope.evidence import Arrays, Estimates
from mesascope.studies.common import plan, watch_loss
from mesascope.studies.icl_gd.curvature_claims import CLAIMS, GAMMAS, SIZES, condition_number, transformed
from mesascope.studies.icl_gd.curvature_figures import FIGURES
from mesascope.studies.icl_gd.regression import PAPER, Regression, network, own_descent
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

CONTEXTS, SHOWN = 10_000, 2_000


@dataclass(frozen=True)
class Curvature(Regression):
    """Settings of the study."""

    draws: int = 40
    """Draws of 10,000 contexts whose extreme eigenvalues are found."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("draws", self.draws, least=2)


def measure(lab: Lab, settings: Curvature) -> None:
    """Draw spectra, and read gamma from networks trained on the same tasks."""
    sizes = {size: _train(lab, settings, size) for size in SIZES}
    lab.stage("spectra", lambda: _spectra(lab, settings))
    lab.stage("condition-numbers", lambda: _medians(lab, settings))
    lab.stage("gamma", lambda: _gammas(list(sizes.values())))
    lab.stage("conditioning", lambda: _conditioning(lab.run.results["spectra"], lab.run.results["gamma"]))
    lab.stage("descents", lambda: _over_sizes(_descents(lab, settings, *pair) for pair in sizes.items()))


def _train(lab: Lab, settings: Curvature, size: int) -> dict[str, Sequence[Any]]:
    """Networks for contexts of ``size`` pairs, the descent that their weights spell, and tuned GD++."""
    family = settings.family(n_context=size)
    watched = watch_loss(mse=lab.draw(family, settings.sweep_tasks, "watch"))
    config = network(settings, n_layers=2, shared=True)
    trained = lab.train(f"pairs-{size}", config, family, settings.training, watch=watched)
    start = learners.GradientDescentPlusPlus(2, 3.0, 0.03)
    plus = learners.tune_spectral(start, family, contexts=settings.tune_tasks, seed=lab.seed).learner
    return {"trained": trained, "own": [own_descent(net, 2, size) for net in trained], "gd++": [plus]}


def _spectra(lab: Lab, settings: Curvature) -> Arrays:
    """Eigenvalues of X X^T (not divided by N): extremes of each draw of contexts, and some of the first."""
    families = [settings.family(n_context=size) for size in SIZES]
    streams = range(settings.draws)
    draws = [
        [family.n_context * learners.gram_spectra(family, CONTEXTS, lab.stream("spectra", index)) for index in streams]
        for family in families
    ]
    found = {
        "smallest": [[float(draw[:, 0].min()) for draw in drawn] for drawn in zip(*draws, strict=True)],
        "largest": [[float(draw[:, -1].max()) for draw in drawn] for drawn in zip(*draws, strict=True)],
        "size": SIZES,
        "spectra": [drawn[0][:SHOWN].float().cpu().numpy() for drawn in draws],
    }
    return Arrays(found, smallest="draw size", largest="draw size", size="size", spectra="size task eigenvalue")


def _medians(lab: Lab, settings: Curvature) -> Arrays:
    """For N = 25, the median over contexts of the condition number after one step, for each draw and each gamma."""
    family = settings.family(n_context=25)
    draws = [
        25 * learners.gram_spectra(family, CONTEXTS, lab.stream("medians", index)) for index in range(settings.draws)
    ]
    medians = [
        [np.median(condition_number(transformed(draw.cpu().numpy(), gamma))) for gamma in GAMMAS] for draw in draws
    ]
    return Arrays({"median": medians}, median="draw gamma")


def _gammas(sizes: Sequence[Mapping[str, Sequence[Any]]]) -> Arrays:
    """Read from the weights of each seed's network, and tuned."""
    read = [[own.gamma[0].item() for own in groups["own"]] for groups in sizes]
    found = {"gamma": np.transpose(read), "gd++ gamma": [groups["gd++"][0].gamma.item() for groups in sizes]}
    return Arrays(found, **{"gamma": "seed size", "gd++ gamma": "size"})


def _conditioning(drawn: Any, read: Any) -> Estimates:
    """How one step with each network's gamma changes the logarithms of tasks' condition numbers."""
    points = []
    for spectra, gammas in zip(drawn["spectra"].astype(float), read["gamma"].T, strict=True):
        before = condition_number(spectra)
        change = [np.log(condition_number(transformed(spectra, gamma)) / before) for gamma in gammas]
        points.append(Estimates.of({("log-condition-change", "trained"): change}))
    return _over_sizes(points)


def _descents(lab: Lab, settings: Curvature, size: int, groups: Mapping[str, Sequence[Any]]) -> Estimates:
    """Losses of GD++, and what spectra say they must be, on the same contexts; many teachers and queries of each."""
    family = settings.family(n_context=size, d_out=10, n_query=10)
    fresh = lab.draw(family, settings.tasks, "eval")
    spectra = learners.gram_spectra(family, settings.tasks, lab.stream("eval"))
    found = {("mse", "gd++"): [lenses.per_task_errors(one, fresh) for one in groups["gd++"]]}
    for key, name in (("gd++", "expected"), ("own", "own")):
        found["mse", name] = [learners.spectral_mse(spectra, one, family).detach() for one in groups[key]]
    return Estimates.of({name: [one.double().cpu().numpy() for one in losses] for name, losses in found.items()})


def _over_sizes(points: Iterable[Estimates]) -> Estimates:
    return Estimates.over({"size": SIZES}, list(points))


STUDY = Study(
    name="curvature",
    source=f"{PAPER}: Fig. 13",
    presets={
        "quick": Curvature(
            plan(1200, 8e-3, batch=256, clip=0.001),
            init_scale=0.005,
            tasks=20_000,
            sweep_tasks=2000,
            tune_tasks=2000,
            draws=20,
        ),
        "paper": Curvature(plan(5000, 1e-3, clip=0.001), tasks=20_000, sweep_tasks=2000),
    },
    measure=measure,
    trainings=4,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=("The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",),
)
