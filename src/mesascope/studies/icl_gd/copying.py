"""Does a network whose tokens alternate between inputs and targets first learn to copy, and then to descend?

ICML paper: Figure 5. Two layers, softmax and then linear, read x_1, y_1, x_2, y_2, ..., each beside a sinusoidal
position, and are compared with one and with two steps of gradient descent. A control has a linear first layer.

Initial weights have the variance 1 / (depth fan-in), not the authors' 0.002 of it, from which no seed had left the
initial plateau after 2,500 steps at three times their learning rate. With a look every 25th of the training, the
slowest seed's drop fell between two looks: there are a hundred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses, nets
from mesascope.evidence import Claim, above, printed, two_sided
from mesascope.records import register
from mesascope.reports import Figure, Level, Line, Lines
from mesascope.studies.icl_gd.regression import PAPER, Regression, plan, predicted, watch
from mesascope.studies.icl_gd.shared_claims import as_predicted, converged
from mesascope.studies.icl_gd.shared_figures import HALF_MSE
from mesascope.studies.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab
    from mesascope.tasks import Episode

FIRST_LAYERS = ("softmax", "linear")
PROBED = 16
PREMISES = ("converged", "references-as-predicted")


def copying_before(run: Any, share: float = 0.05) -> np.ndarray:
    """Each seed's largest ratio of the first layer's sensitivities to the next token and to others, before the jump.

    Before: while at most ``share`` of the fall from the zero prediction's loss to gradient descent's has been made.
    """
    level = run["zero mse"] - share * (run["zero mse"] - run["gd mse"])
    before = np.logical_and.accumulate(run["mse"] > level, axis=1)
    return np.where(before, run["next"] / run["others"], 0.0).max(axis=1)


CLAIMS = (
    converged(*FIRST_LAYERS, quantity="capped mse"),  # initial losses of thousands would make any fall look done
    as_predicted(("gd", "two-steps")),
    Claim(
        "one-step", "each loss is within 10 % of that of one step of gradient descent",
        "loss of trained / of gradient descent", printed("Fig. 5 left"),
        lambda r: r["softmax-comparison"].ratio("trained", "gd"), two_sided(0.1), premises=PREMISES,
    ),
    Claim(
        "not-two-steps", "each loss is more than 10 % above that of two tuned steps of gradient descent",
        "loss of trained / of two steps", printed("Fig. 5 left"),
        lambda r: r["softmax-comparison"].ratio("trained", "two-steps"), above(1.1), premises=(*PREMISES, "one-step"),
    ),
    Claim(
        "copies-first", "before 5 % of the loss's fall is made, the first layer is more than 5 times as sensitive to "
        "the next token as to others", "largest ratio of the two sensitivities until then, mean over seeds",
        printed("Fig. 5 right"), lambda r: copying_before(r["softmax"]), above(5.0), quantifier="mean",
        premises=(*PREMISES, "one-step"),
    ),
    Claim(
        "linear-fails", "with a linear first layer each loss stays more than 10 % above one gradient step's",
        "loss of trained / of gradient descent", printed("section 4"),
        lambda r: r["linear-comparison"].ratio("trained", "gd"), above(1.1), premises=(*PREMISES, "one-step"),
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Regression) -> None:
    """Train with either first layer, and watch what the first layer reads."""
    family, layout = settings.family(), nets.Alternating("sinusoidal", size=10)
    gd = learners.GradientDescent(1, learners.one_step_optimum(family).eta)
    start = learners.GradientDescent(2, 1.0)
    two = learners.tune_spectral(start, family, contexts=settings.tune_tasks, seed=lab.seed).learner
    fresh = lab.draw(family, settings.tasks, "eval")
    watched = lab.draw(family, settings.sweep_tasks, "watch")
    aligned, probed = watch({"gd": gd, "zero": learners.Zero()}, watched), watched.part(0, PROBED)

    def look(net: Any) -> dict[str, float]:
        row = aligned(net)
        return row | {"capped mse": min(row["mse"], row["zero mse"])} | _reads(net, probed)

    for first in FIRST_LAYERS:
        layers = nets.TransformerConfig(
            layout.width(10, 1), n_layers=2, attention=(first, "linear"), init_scale=settings.init_scale
        )
        config = nets.InContextRegressorConfig(layers, layout)
        trained = lab.train(first, config, family, settings.training, watch=look)
        groups = {"trained": trained, "gd": [gd], "two-steps": [two]}
        lab.stage(
            f"{first}-comparison",
            lambda groups=groups: lenses.measure_together(groups, ["gd", "two-steps"], fresh),
        )
    lab.stage("predicted", lambda: predicted(lab, settings, {"gd": gd, "two-steps": two}))


def _reads(net: Any, episodes: Episode) -> dict[str, float]:
    """How the first layer's tokens of inputs depend on themselves, on the next token, and on all others."""
    norms = lenses.token_sensitivity(net, episodes)
    rows = range(0, norms.shape[0], 2)
    own, following = (float(np.mean([float(norms[row, row + shift]) for row in rows])) for shift in (0, 1))
    total = float(norms[list(rows)].sum()) / len(rows)
    return {"own": own, "next": following, "others": (total - own - following) / (norms.shape[0] - 2)}


def _figure(first: str) -> Figure:
    def loss(r: Any) -> list[Line | Level]:
        run = r[first]
        zero = float(run["zero mse"].mean()) / 2
        return [
            Line(run["step"], np.minimum(run["mse"] / 2, 1.2 * zero), "trained", f"{first}, then linear", each=True),
            Level(float(run["gd mse"].mean()) / 2, "gd", "one step of gradient descent"),
            Level(zero, "limit", "zero prediction", dotted=True),
        ]

    def reads(r: Any) -> list[Line | Level]:
        shown = {"own": ("limit", "itself"), "next": ("trained", "the next token"), "others": ("gd", "each other")}
        return [Line(r[first]["step"], r[first][key], *names) for key, names in shown.items()]

    return Figure(
        first,
        f"Alternating tokens, {first} first layer. Left: each seed, cut at 1.2 times the zero prediction's loss; "
        "right: mean and range over seeds. Paper: Fig. 5.",
        (
            Lines("Loss", "training step", HALF_MSE, loss),
            Lines("What the first layer reads", "training step", "norm of derivatives by", reads, "y"),
        ),
        columns=2,
    )


STUDY = register("study", "copying")(
    Study(
        name="copying",
        question="Does a network with alternating tokens first learn to copy, and then to descend?",
        source=f"{PAPER}: Fig. 5",
        presets={
            "quick": Regression(
                plan(1600, 6e-3, batch=512, decay_from=0.5, clip=1.0, evaluate_every=20), init_scale=1.0,
                sweep_tasks=500, tune_tasks=2000,
            ),
            "paper": Regression(
                plan(10_000, 1e-3, decay_from=0.5, clip=10.0, evaluate_every=100), init_scale=1.0
            ),
        },
        measure=measure,
        claims=CLAIMS,
        figures=tuple(_figure(first) for first in FIRST_LAYERS),
        deviations=(
            "Initial weights have 500 times the variance of the authors', from which no seed left the plateau in time.",
            "The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",
        ),
    )
)  # fmt: skip
