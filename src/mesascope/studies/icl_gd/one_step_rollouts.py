"""Part of the study of one step: repeated application of a trained layer and of a gradient step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mesascope import learners, lenses, nets, study, tasks
from mesascope.studies.icl_gd.regression import Regression
from mesascope.studies.icl_gd.shared import HALF_MSE
from mesascope.study import Claim, Estimates, Figure, Line, Lines, StageReading, above, below, derived, printed, stage

DAMPINGS = (1.0, 0.75, 0.5)
APPLICATIONS = 50


def measure(lab: study.Lab, settings: Regression, groups: Mapping[str, Sequence[Any]], fresh: tasks.Episode) -> None:
    """Compute the stages of repeated application.

    These are ``damping-D`` for each damping D in `DAMPINGS`, the losses of learners that are applied repeatedly, and
    ``unstable``, the share of contexts on which gradient descent diverges.
    """
    few = fresh.part(0, settings.sweep_tasks)
    for damping in DAMPINGS:
        lab.stage(f"damping-{damping}", _roll_out, groups, few, damping)
    lab.stage("unstable", _unstable, lab, settings, groups["gd"][0])


def _roll_out(groups: Mapping[str, Sequence[Any]], few: tasks.Episode, damping: float) -> Estimates:
    """Losses after each application of a rule, in float64, on all contexts and on those where descent is stable.

    Damped gradient descent is stable on a context if damping * eta * lambda_max < 2. On the few other contexts, any
    rule of this step size diverges; after tens of applications, they alone determine the mean over all contexts.
    """
    exact, (gd,) = few.to(few.xq.double().dtype), groups["gd"]
    x = exact.context.x.cpu().numpy()
    largest = np.linalg.eigvalsh(np.swapaxes(x, -1, -2) @ x / x.shape[-2])[:, -1]
    stable = damping * gd.eta.item() * largest < 2
    errors = {name: [_errors(one, exact, damping) for one in members] for name, members in groups.items()}
    # The mean of these over all tasks is the mean over stable ones; errors on others may have overflowed.
    kept = {name: [np.where(stable, one, 0.0) / stable.mean() for one in members] for name, members in errors.items()}
    zero = errors["gd"][0][0].mean()  # Loss of predicting zero.

    def after(step: int) -> Estimates:
        found: dict[tuple[str, ...], list[np.ndarray]] = {("share", "stable"): [stable]}
        for name, members in errors.items():
            found["all", name] = [error[step] for error in members]
            found["diverges", name] = [error[step] > 10 * zero for error in members]
            found["stable", name] = [error[step] for error in kept[name]]
            found["change", name] = [error[step] - error[max(step - 1, 0)] for error in kept[name]]
        return Estimates.of(found)

    steps = range(APPLICATIONS + 1)
    return Estimates.over({"application": steps}, [after(step) for step in steps])


def _errors(learner: Any, exact: tasks.Episode, damping: float) -> np.ndarray:
    """Squared errors before and after each application, ``(1 + applications, tasks)``."""
    own = copy.deepcopy(learner).double()
    if isinstance(own, nets.InContextRegressor):
        own = _of_targets(own)
    return lenses.trajectory_errors(lenses.rollout(own, APPLICATIONS, damping), exact).cpu().numpy()


def _of_targets(net: nets.InContextRegressor) -> nets.InContextRegressor:
    """The layer without the rows of W_PV that would change inputs: the paper updates targets and predictions alone."""
    products = [one._replace(w_pv=one.w_pv.clone()) for one in net.products()]
    for one in products:
        one.w_pv[..., : -net.d_out, :] = 0
    return net.with_products(products)


def _unstable(lab: study.Lab, settings: Regression, gd: Any) -> Estimates:
    """Share of contexts on which gradient descent diverges, for each damping, from many contexts, as few diverge."""
    spectra = learners.gram_spectra(settings.family(), 10 * settings.tasks, lab.stream("unstable"))
    largest = spectra[:, -1].cpu().numpy()
    points = [Estimates.of({("share",): [damping * gd.eta.item() * largest > 2]}) for damping in DAMPINGS]
    return Estimates.over({"damping": DAMPINGS}, points)


SMALL = dict.fromkeys(("quick", "paper"), "initial weights of ten times the size")
DIVERGED = "share of contexts with more than ten times the mean loss of predicting zero"


def _rolled(damping: float) -> StageReading:
    return stage(f"damping-{damping}", stable="loss on stable contexts")


def _later(damping: float) -> StageReading:
    return _rolled(damping).where(lambda cases: cases["application"] > 0, "after each application")


def _of_both(roll: StageReading, quantity: str, index: Any, words: str) -> study.Reading:
    """A quantity of each trained layer and of gradient descent, ``(learners, ...)``."""
    return roll.map(lambda found: np.concatenate([found[quantity, name][index] for name in ("trained", "gd")]), words)


def _lasts(found: Estimates) -> np.ndarray:
    """Applications until gradient descent's mean loss exceeds ten times that of predicting zero - of each layer's."""
    losses = (study.nominal(found["all", name]) for name in ("trained", "gd"))
    trained, gd = ((one > 10 * one[:, :1]).argmax(1) for one in losses)
    return gd - trained


def _panel(damping: float) -> Lines:
    roll = _rolled(damping)
    lines = [
        Line(
            roll.case("application"),
            (roll[part, name] / 2).map(lambda losses: np.minimum(study.nominal(losses), 1e3), ""),
            name, label if part == "stable" else None, marks=marks, width=width,
        )
        for part, width in (("stable", 1.6), ("all", 0.7))
        for name, label, marks in (("trained", "trained layers", "-"), ("gd", "gradient descent", "--"))
    ]  # fmt: skip
    return Lines(f"damping {damping:g}", "applications", HALF_MSE, lines, "y", {"ylim": (0.03, 30)})


FIGURE = Figure(
    "rollouts",
    "The layer and the gradient step applied again and again. Thick: contexts where damped gradient descent is stable; "
    "thin: all contexts. Paper: Figs. 1 right and 10.",
    tuple(map(_panel, DAMPINGS)), share_y=True, claims=(
        Claim("rollout-together", "over 50 applications at damping 0.75 the losses stay within 5 % of gradient "
              "descent's, on contexts where damped descent is stable",
              _later(0.75).ratio("trained", "gd", "stable"), study.two_sided(0.05), printed("Fig. 1 right")),
        Claim("rollout-lowers", "each of 50 applications at damping 0.75 lowers the loss of trained layers and of "
              "gradient descent, on the same contexts", _of_both(_later(0.75), "change", ..., "change of the loss"),
              below(0.0), printed("Fig. 1 right"), over="learners", at_least=6),
        Claim("rollout-never-steady", "at damping 0.75, gradient descent diverges on some contexts",
              stage("unstable", share="share of contexts with damping * eta * lambda_max > 2").where(
                      lambda cases: cases["damping"] == 0.75, "damping 0.75"
                  )["share"], above(0.0), derived("Fig. 1 right: both steadily decrease the loss"), over="algorithms"),
        Claim("other-dampings", "without damping and at 0.5, losses stay within 5 % of gradient descent's over 50 "
              "applications, on contexts where damped descent is stable",
              study.beside([_later(damping).ratio("trained", "gd", "stable") for damping in (1.0, 0.5)],
                           "loss of trained / of gradient descent on stable contexts, after each application"),
              study.two_sided(0.05), printed("Fig. 10")),
        Claim("gd-more-robust", "without damping, the mean loss over all contexts exceeds ten times that of predicting "
              "zero after fewer applications of trained layers than of gradient descent",
              _rolled(1.0).map(_lasts, "applications until then, of gradient descent - of trained layers"),
              above(0.0), printed("Fig. 10: slightly better robustness for GD"), quantifier="median", unlike=SMALL,
              former="the share of contexts with the larger error, undecided; at damping 0.75, undecided"),
        Claim("undamped-diverges", "without damping, 50 applications leave more than 1 % of contexts with more than "
              "ten times the mean loss of predicting zero, for trained layers and for gradient descent",
              _of_both(_rolled(1.0), "diverges", (..., -1), DIVERGED), above(0.01), printed("Fig. 10 left"),
              over="learners", at_least=6, former="with a larger error than predicting zero, which one query in seven "
              "has by chance, held"),
        Claim("damped-stays", "control: after 50 applications at damping 0.5, fewer than 0.1 % of contexts have more "
              "than ten times the mean loss of predicting zero, for trained layers and for gradient descent",
              _of_both(_rolled(0.5), "diverges", (..., -1), DIVERGED).map(study.nominal, DIVERGED), below(0.001),
              study.ours("control: damping 0.5 is stable on each context"), over="learners", at_least=6,
              quantifier="exact", exact_because="no context of the draw may have it", about="algorithms"),
    ),
)  # fmt: skip
