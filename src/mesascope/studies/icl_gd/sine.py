"""Does a transformer regress sine waves by gradient descent on learned features?

ICML paper: Figure 4. Tokens (x, y) pass through an embedding and a residual MLP, and then through one linear
self-attention layer. The control has the same embedding and MLP, from the same initial weights, and one step of
gradient descent in place of the attention layer; its step size is learned too.

The MLP has biases, as in the authors' code: without them, features vanish at x = 0 and so does every prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses, nets, tasks
from mesascope.errors import require_count, require_number
from mesascope.evidence import Arrays, Claim, above, below, ours, printed, two_sided
from mesascope.records import register
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.icl_gd.regression import PAPER, plan, watch_loss
from mesascope.studies.icl_gd.shared_claims import converged, derivatives
from mesascope.studies.icl_gd.shared_figures import HALF_MSE
from mesascope.studies.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

WIDTH, MLP, SHOWN = 40, 4, 3
PREMISES = ("converged", "control-learns")


def _difference(r: Any) -> np.ndarray:
    main = r["comparison"]
    return main["prediction-difference", "trained", "control"] / main["mse", "zero"] ** 0.5


CLAIMS = (
    converged("transformer", "control"),
    derivatives("comparison"),
    Claim(
        "control-learns", "the control loses less than half of what predicting zero loses", "loss of control / of zero",
        printed("Fig. 4 centre"), lambda r: r["comparison"].ratio("control", "zero"), below(0.5),
    ),
    Claim(
        "learns", "the transformer loses less than half of what predicting zero loses", "loss of trained / of zero",
        printed("Fig. 4 centre"), lambda r: r["comparison"].ratio("trained", "zero"), below(0.5),
        premises=("converged",),
    ),
    Claim(
        "loss-matches", "each transformer's loss is within 5 % of that of the control of the same initial weights",
        "loss of trained / of control", printed("Fig. 4 centre"),
        lambda r: r["comparison"].ratio("trained", "control"), two_sided(0.05), premises=PREMISES,
    ),
    Claim(
        "prediction-difference", "its predictions are the control's to 5 % of the targets' root mean square on average",
        "mean |trained - control| / root mean square of targets", printed("Fig. 4 right"), _difference, below(0.05),
        premises=PREMISES,
    ),
    Claim(
        "no-nearer-control", "each transformer is as near to the control of its seed as controls of two seeds are to "
        "each other", "mean |trained - control| / mean |another seed's control - control|",
        ours("how much two seeds of one learner differ"),
        lambda r: r["comparison"]["prediction-difference", "trained", "control"]
        / r["comparison"]["prediction-difference", "other-control", "control"],
        below(1.0), premises=PREMISES,
    ),
    Claim(
        "sensitivity-sign", "its predictions rise and fall with the query where the control's do: the mean cosine of "
        "their derivatives, numbers here, is above 0.95", "mean cosine of dy/dx_q", printed("Fig. 4 right"),
        lambda r: r["comparison"]["cosine", "trained", "control"], above(0.95), premises=(*PREMISES, "derivatives"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Sine:
    """Settings of the study."""

    training: Training
    """How the transformers train."""
    control: Training
    """How the controls train."""
    init_scale: float = 0.002
    """Variance of all initial weights, times fan-in."""
    seeds: int = 5
    """Transformers and controls trained, one of each a seed."""
    tasks: int = 100_000
    """Fresh tasks that both are compared on."""
    watch_tasks: int = 5_000
    """Tasks of an evaluation while training."""

    def __post_init__(self) -> None:
        require_count("seeds", self.seeds)
        for name in ("tasks", "watch_tasks"):
            require_count(name, getattr(self, name), least=2)
        require_number("init_scale", self.init_scale, above=0)


def measure(lab: Lab, settings: Sine) -> None:
    """Train both and compare."""
    family = tasks.SineWaves()
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    embedding = nets.EmbeddingConfig(2, WIDTH, MLP, settings.init_scale)
    transformer = nets.TransformerConfig(WIDTH, init_scale=settings.init_scale)
    config = nets.InContextRegressorConfig(transformer, embedding=embedding)
    trained = lab.train("transformer", config, family, settings.training, watch=watched)
    descent = nets.EmbeddedDescentConfig(embedding, steps=1, eta=0.1)
    controls = lab.train("control", descent, family, settings.control, watch=watched)
    fresh = lab.draw(family, settings.tasks, "eval")
    groups = {
        "trained": trained,
        "control": controls,
        "other-control": controls[1:] + controls[:1],
        "zero": [learners.Zero()],
    }
    lab.stage("comparison", lambda: lenses.measure_together(groups, ["control"], fresh))
    lab.stage("functions", lambda: _functions(trained[0], controls[0], fresh.part(0, SHOWN)))


def _functions(net: Any, control: Any, shown: tasks.Episode) -> Arrays:
    """Predictions on a grid before and after the context is used."""
    grid = np.linspace(-5, 5, 201)
    waves = [np.linalg.lstsq(_basis(x), y, rcond=None)[0] for x, y in zip(*_numbers(shown.context), strict=True)]
    xq = shown.xq.new_tensor(grid)[None, :, None].expand(SHOWN, -1, 1)
    found = {"x": grid, "true": np.stack([_basis(grid) @ wave for wave in waves])} | {
        f"context {key}": getattr(shown.context, key)[..., 0].cpu().numpy() for key in ("x", "y")
    }
    for name, learner in (("trained", net), ("control", control)):
        before, after = learner.trajectory(shown.context, xq).detach()[..., 0].cpu().numpy()
        found |= {f"{name} before": before, f"{name} after": after}
    axes = {key: "task pair" if "context" in key else "task grid" for key in found}
    return Arrays(found, **(axes | {"x": "grid"}))


def _numbers(context: tasks.Context) -> list[np.ndarray]:
    return [part[..., 0].double().cpu().numpy() for part in context]


def _basis(x: np.ndarray) -> np.ndarray:
    """Waves of every amplitude and phase are sums of these two columns."""
    return np.stack([np.sin(x), np.cos(x)], axis=-1)


def _loss(r: Any) -> list[Line]:
    shown = {"transformer": ("trained", "transformer"), "control": ("gd", "MLP and one gradient step")}
    return [Line(r[name]["step"], r[name]["mse"] / 2, *labels) for name, labels in shown.items()]


def _task(index: int) -> Lines:
    """The functions found in one task."""

    def read(r: Any) -> list[Line]:
        shown = r["functions"]
        found = [
            Line(shown["x"], shown[f"{name} {when}"][index], role, f"{label}, {when}", marks=marks)
            for name, role, label in (("trained", "trained", "transformer"), ("control", "gd", "control"))
            for when, marks in (("before", ":"), ("after", "-"))
        ]
        true = Line(shown["x"], shown["true"][index], "limit", "the wave itself", width=0.8)
        return [*found, true, Line(shown["context x"][index], shown["context y"][index], "limit", "context", marks="o")]

    return Lines(f"task {index + 1}", "x", "y", read)


FIGURES = (
    Figure(
        "training", "Losses on held-out tasks while training; line and band: mean and range over seeds. Paper: Fig. 4.",
        (Lines("", "training step", HALF_MSE, _loss, "y"),), claims=("control-learns", "learns", "loss-matches"),
    ),
    Figure(
        "functions", "Predictions before and after the context is used, first seed. Paper: Fig. 4.",
        tuple(_task(index) for index in range(SHOWN)), share_y=True, shared_legend=True, size=(9.5, 3.6),
        claims=("prediction-difference", "no-nearer-control", "sensitivity-sign"),
    ),
)  # fmt: skip

STUDY = register("study", "sine")(
    Study(
        name="sine",
        question="Does a transformer regress sine waves by gradient descent on learned features?",
        source=f"{PAPER}: Fig. 4",
        presets={
            "quick": Sine(
                plan(1000, 4e-3, batch=256, clip=100.0),
                plan(1000, 4e-3, batch=256, clip=100.0),
                init_scale=0.2,
                tasks=20_000,
            ),
            "paper": Sine(plan(20_000, 1e-3, clip=100.0), plan(20_000, 1e-3, clip=100.0)),
        },
        measure=measure,
        claims=CLAIMS,
        figures=FIGURES,
        deviations=(
            "Amplitude and phase are drawn apart, as the text has it; the authors' code draws both from one key.",
            "The control trains at a learning rate of 1e-3, where the authors' code has 3e-4.",
            "The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",
        ),
    )
)  # fmt: skip
