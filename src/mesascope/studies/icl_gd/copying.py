"""Does a network whose tokens alternate between inputs and targets first learn to copy, and then to descend?

ICML paper: Figure 5. Tasks are noiseless linear regression with N = d = 10. Two layers, softmax and then linear, read
x_1, y_1, x_2, y_2, ..., each beside a sinusoidal position, and are compared with one and with two steps of gradient
descent. A control has a linear first layer, and one linear layer on ready tokens (x, y) shows how much longer the
others take.

Initial weights have the variance 1 / (depth fan-in); the authors' code has 0.02 of it. From the 0.002 of it that the
text gives, no seed had left the initial plateau after 2,500 steps at three times the authors' learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses, nets
from mesascope.evidence import Claim, above, ours, printed, stage, two_sided
from mesascope.reports import Figure, Level, Line, Lines
from mesascope.studies.common import converged, plan
from mesascope.studies.icl_gd.regression import PAPER, Recipe, Regression, network, predicted, watch
from mesascope.studies.icl_gd.shared_claims import as_predicted
from mesascope.studies.icl_gd.shared_figures import HALF_MSE
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab
    from mesascope.tasks import Episode

FIRST_LAYERS = ("softmax", "linear")
PROBED = 16
PREMISES = ("softmax-converged", "references-as-predicted")


@dataclass(frozen=True)
class Copying(Regression):
    """Settings of the study."""

    ready: Recipe = field(default_factory=lambda: Recipe(plan(1500, 1e-3, clip=10.0, evaluate_every=20)))
    """How the layers on ready tokens train."""


def fall_made(run: Any) -> np.ndarray:
    """Of the fall from the zero prediction's loss to gradient descent's, the share made at each look, by seed."""
    return (run["zero mse"] - run["mse"]) / (run["zero mse"] - run["gd mse"])


def copying_before(run: Any, share: float = 0.05) -> np.ndarray:
    """Each seed's largest ratio of the first layer's sensitivities to the next token and to others, before the jump.

    Before: while at most ``share`` of the fall has been made.
    """
    before = np.logical_and.accumulate(fall_made(run) < share, axis=1)
    return np.where(before, run["next"] / run["others"], 0.0).max(axis=1)


def _gain(run: Any) -> np.ndarray:
    """Doublings of that ratio from before the jump to where nine tenths of the fall have been made."""
    late = np.where(fall_made(run) > 0.9, run["next"] / run["others"], 0.0)
    return np.log2(np.maximum(late.max(axis=1), 1e-9) / copying_before(run))  # 0 where nothing falls so far


def _arrivals(r: Any) -> tuple[np.ndarray, np.ndarray]:
    """Each seed's first step with half the fall made, with alternating and with ready tokens; NaN where it never is."""
    runs = (r["softmax"], fall_made(r["softmax"]) > 0.5), (r["ready"], fall_made(r["ready"]) > 0.5)
    return tuple(np.where(done.any(1), run["step"][done.argmax(1)], np.nan) for run, done in runs)  # type: ignore[return-value]


def _longer(alternating: np.ndarray, ready: np.ndarray) -> float:
    return float(alternating.mean() / ready.mean())


def _variation(alternating: np.ndarray, ready: np.ndarray) -> float:
    return float(alternating.std(ddof=1) / alternating.mean())


CLAIMS = (
    # Initial losses of thousands, uncapped, would make any fall look done.
    *(converged(first, quantity="capped mse", id=f"{first}-converged") for first in FIRST_LAYERS),
    as_predicted(("gd", "two-steps")),
    Claim(
        "one-step", "each loss is within 10 % of that of one step of gradient descent",
        stage("softmax-comparison").ratio("trained", "gd"), two_sided(0.1), printed("Fig. 5 left"), premises=PREMISES,
    ),
    Claim(
        "not-two-steps", "each loss is more than 10 % above that of two tuned steps of gradient descent",
        stage("softmax-comparison").ratio("trained", "two-steps"), above(1.1), printed("Fig. 5 left"),
        premises=(*PREMISES, "one-step"),
    ),
    Claim(
        "copies-first", "before 5 % of the loss's fall is made, the first layer is more than 5 times as sensitive to "
        "the next token as to others", lambda r: copying_before(r["softmax"]), above(5.0), printed("Fig. 5 right"),
        measures="largest ratio of the two sensitivities until then, mean over seeds", quantifier="mean",
        premises=(*PREMISES, "one-step"),
    ),
    Claim(
        "copies-while-falling", "the first layer goes on turning to the next token while the loss falls: near the end "
        "of the fall it is more than twice as sensitive to it, against others, as it ever was before the fall",
        lambda r: _gain(r["softmax"]), above(1.0), ours("copying and descent rise together"),
        measures="log2 of the ratio of the two sensitivities after nine tenths of the fall / largest before a twentieth of it, " "mean over seeds",
        quantifier="mean", premises=(*PREMISES, "one-step"),
    ),
    Claim(
        "order-of-magnitude", "these networks take ten times as long to half their fall as one layer on ready tokens",
        _arrivals, above(10.0, by="paper"), printed("Fig. 5 left: an order of magnitude longer"),
        measures="mean step of alternating / of ready tokens", quantifier="bootstrap", premises=(*PREMISES, "one-step"),
        statistic=_longer,
    ),
    Claim(
        "seeds-vary", "how long they take varies much from seed to seed: by more than a tenth of its mean", _arrivals,
        above(0.1), printed("section 4: highly variant training speeds"),
        measures="standard deviation over seeds of the step of half the fall / its mean", quantifier="bootstrap",
        premises=(*PREMISES, "one-step"), statistic=_variation,
    ),
    Claim(
        "linear-fails", "with a linear first layer each loss stays more than 10 % above one gradient step's",
        stage("linear-comparison").ratio("trained", "gd"), above(1.1), printed("section 4"),
        premises=("linear-converged", "references-as-predicted", "one-step"),
    ),
)  # fmt: skip


def measure(lab: Lab, settings: Copying) -> None:
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
    one = network(settings, init_scale=settings.ready.init_scale)
    lab.train("ready", one, family, settings.ready.training, watch=aligned)
    lab.stage("predicted", lambda: predicted(lab, settings, {"gd": gd, "two-steps": two}))


def _reads(net: Any, episodes: Episode) -> dict[str, float]:
    """How the first layer's tokens of inputs depend on themselves, on the next token, and on all others."""
    norms = lenses.token_sensitivity(net, episodes)
    rows = range(0, norms.shape[0], 2)
    own, following = (float(np.mean([float(norms[row, row + shift]) for row in rows])) for shift in (0, 1))
    total = float(norms[list(rows)].sum()) / len(rows)
    return {"own": own, "next": following, "others": (total - own - following) / (norms.shape[0] - 2)}


def _figure(first: str, *claims: str) -> Figure:
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

    def together(r: Any) -> list[Line | Level]:
        run = r[first]
        made = np.clip(fall_made(run), -0.2, 1.1)
        pairs = zip(made, run["next"] / run["others"], strict=True)
        return [Line(share, ratio, "trained", marks=".-") for share, ratio in pairs]

    return Figure(
        first,
        f"Alternating tokens, {first} first layer. Left: each seed, cut at 1.2 times the zero prediction's loss; "
        "centre: mean and range over seeds; right: each seed, looks in order. Paper: Fig. 5.",
        (
            Lines("", "training step", HALF_MSE, loss),
            Lines("", "training step", "norm of the first layer's derivatives by", reads, "y"),
            Lines("", "share of the fall made", "next token / each other", together, "y"),
        ),
        claims=claims,
    )


STUDY = Study(
    name="copying",
    source=f"{PAPER}: Fig. 5",
    presets={
        "quick": Copying(
            plan(1400, 6e-3, batch=512, decay_from=0.5, clip=1.0, evaluate_every=20), init_scale=1.0,
            sweep_tasks=500, tune_tasks=2000,
            ready=Recipe(plan(600, 6e-3, batch=512, clip=1.0, evaluate_every=20)),
        ),
        "paper": Copying(
            plan(15_000, 1e-3, clip=10.0, evaluate_every=150), init_scale=1.0
        ),
    },
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=(
        _figure(
            "softmax", "one-step", "not-two-steps", "copies-first", "copies-while-falling", "order-of-magnitude",
            "seeds-vary",
        ),
        _figure("linear", "linear-fails"),
    ),
    deviations=(
        "Initial weights have 50 times the variance of the authors' code, and 500 times that of the text, from "
        "which no seed left the plateau in time.",
        "The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",
    ),
)  # fmt: skip
