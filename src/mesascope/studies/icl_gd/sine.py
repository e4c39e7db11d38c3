"""Does a transformer regress sine waves by gradient descent on learned features?

ICML paper: Figure 4. Tokens (x, y) pass through an embedding and a residual MLP, and then through one linear
self-attention layer. The control has the same embedding and MLP, from the same initial weights, and one step of
gradient descent in place of the attention layer; its step size is learned too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from mesascope.errors import require_count, require_number
from mesascope.lenses import agreement, alignment
from mesascope.lenses.access import per_task_errors
from mesascope.measurement import Measurement
from mesascope.nets import (
    EmbeddedDescent,
    EmbeddedDescentConfig,
    EmbeddingConfig,
    InContextRegressor,
    InContextRegressorConfig,
    TransformerConfig,
)
from mesascope.records import to_record
from mesascope.reports import COLOURS, STYLE
from mesascope.runs import Bound, Claim
from mesascope.streams import stream
from mesascope.studies.evidence import arrays_of, both, excess_percent, largest
from mesascope.studies.icl_gd.panels import band, captioned
from mesascope.studies.lab import Lab
from mesascope.studies.study import Results, Study
from mesascope.tasks import Episode, SineWaves
from mesascope.training import Ensemble, Training

__all__ = ["STUDY", "Sine"]

WIDTH, MLP = 40, 4
SHOWN = 3
GRID = torch.linspace(-5, 5, 201)

CLAIMS = (
    Claim(
        "loss-matches",
        "distance of the transformer's loss from the control's, % (worst seed, paired)",
        "ICML paper, Fig. 4 centre",
        both(Bound(high=5.0)),
    ),
    Claim(
        "prediction-difference",
        "mean |transformer - control|, % of the targets' standard deviation (worst seed)",
        "ICML paper, Fig. 4 right",
        both(Bound(high=5.0)),
    ),
    Claim(
        "learns",
        "transformer's loss, % of the targets' variance (worst seed)",
        "ICML paper, Fig. 4 centre",
        both(Bound(high=50.0)),
    ),
)


@dataclass(frozen=True)
class Sine:
    """Settings of the study."""

    steps: int = 20_000
    """Training steps of both."""
    batch: int = 2048
    """Tasks a training step and seed."""
    learning_rate: float = 1e-3
    """Largest learning rate of the transformer."""
    control_learning_rate: float = 1e-3
    """Largest learning rate of the control."""
    clip: float = 100.0
    """Bound on the norm of each seed's gradient."""
    init_scale: float = 0.002
    """Variance of all initial weights, times fan-in."""
    tasks: int = 100_000
    """Fresh tasks that both are compared on."""
    watch_tasks: int = 5_000
    """Tasks of an evaluation while training."""

    def __post_init__(self) -> None:
        _ = self.training(self.learning_rate), self.training(self.control_learning_rate)
        for name in ("tasks", "watch_tasks"):
            require_count(name, getattr(self, name), least=2)
        require_number("init_scale", self.init_scale, above=0)

    def training(self, learning_rate: float) -> Training:
        return Training(
            steps=self.steps,
            batch=self.batch,
            learning_rate=learning_rate,
            clip=self.clip,
            average=4.0,
            decay_from=0.3,
            evaluate_every=max(self.steps // 50, 20),
        )


def measure(lab: Lab, settings: Sine) -> Results:
    """Train both and compare."""
    family = SineWaves()
    watched = family.sample(settings.watch_tasks, stream(lab.seed, "watch", 0, lab.device))

    def evaluate(ensemble: Ensemble) -> list[dict[str, float]]:
        return [{"mse": float(per_task_errors(member, watched).mean())} for member in ensemble.members()]

    embedding = EmbeddingConfig(2, WIDTH, MLP, settings.init_scale)
    transformer = TransformerConfig(WIDTH, init_scale=settings.init_scale)
    trained = {}
    for name, config, rate in (
        ("transformer", InContextRegressorConfig(transformer, embedding=embedding), settings.learning_rate),
        ("control", EmbeddedDescentConfig(embedding, steps=1, eta=0.1), settings.control_learning_rate),
    ):
        training, record = settings.training(rate), to_record(config)
        ensemble = lab.train(name, config.build, family, training, learner=record, evaluate=evaluate)
        trained[name] = ensemble.members()
    nets, controls = trained["transformer"], trained["control"]
    fresh = family.sample(settings.tasks, stream(lab.seed, "eval", 0, lab.device))
    return {
        "training": lab.stage("training", lambda: _curves(lab)),
        "comparison": lab.stage("comparison", lambda: _comparison(nets, controls, fresh)),
        "functions": lab.stage("functions", lambda: _functions(nets[0], controls[0], fresh.part(0, SHOWN))),
    }


def _curves(lab: Lab) -> dict[str, np.ndarray]:
    runs = {name: lab.curves(name) for name in ("transformer", "control")}
    return {"step": runs["control"]["step"], **{name: run["mse"] for name, run in runs.items()}}


def _comparison(nets: list, controls: list, fresh: Episode) -> dict[str, np.ndarray]:
    """Each network beside the control of its seed, and controls of different seeds, on the same fresh tasks."""
    seen = [alignment(net, control, fresh) for net, control in zip(nets, controls, strict=True)]
    fields = ("mse_a", "mse_b", "mse_ratio", "prediction_difference", "sensitivity_cosine", "sensitivity_difference")
    arrays = {
        f"{field}_{key}": array
        for field in fields
        for key, array in arrays_of([getattr(one, field) for one in seen]).items()
    }
    pairs = [agreement(one, other, fresh).prediction_difference for one, other in combinations(controls, 2)]
    arrays |= {f"between_controls_{key}": array for key, array in arrays_of(pairs).items()}
    return arrays | {"deviation": np.array(float(fresh.yq.double().std()))}


def _functions(net: InContextRegressor, control: EmbeddedDescent, shown: Episode) -> dict[str, np.ndarray]:
    """Predictions on a grid before and after the context is used, ``(tasks, grid)``."""
    grid = GRID.to(shown.xq)[:, None].expand(SHOWN, -1, 1)
    arrays = {"x": GRID.numpy(), "context_x": shown.context.x.squeeze(-1), "context_y": shown.context.y.squeeze(-1)}
    with torch.no_grad():
        for name, learner in (("transformer", net), ("control", control)):
            before, after = learner.trajectory(shown.context, grid).squeeze(-1)
            arrays |= {f"{name}_before": before, f"{name}_after": after}
    return {key: np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value) for key, value in arrays.items()}


def judge(results: Results) -> dict[str, Measurement]:
    """One Measurement a claim."""
    main = results["comparison"]
    difference, stderr, n = (main[f"prediction_difference_{key}"] for key in ("value", "stderr", "n"))
    scale = 100 / float(main["deviation"])
    share = 100 / float(main["deviation"]) ** 2
    return {
        "loss-matches": excess_percent(main, "mse_ratio", sign=0),
        "prediction-difference": largest(scale * difference, scale * stderr, n),
        "learns": largest(share * main["mse_a_value"], share * main["mse_a_stderr"], n),
    }


def draw(results: Results) -> dict[str, Figure]:
    """The paper's panels."""
    run, shown = results["training"], results["functions"]
    with matplotlib.rc_context(STYLE):
        training = Figure(figsize=(5, 3))
        axes = training.subplots()
        band(axes, run["step"], run["transformer"] / 2, "trained", "transformer")
        band(axes, run["step"], run["control"] / 2, "gd", "MLP and one gradient step")
        axes.set(title="Loss", xlabel="training step", ylabel="half mean squared error", yscale="log")
        axes.legend()
        functions = Figure(figsize=(9, 3))
        for task, axes in enumerate(functions.subplots(1, SHOWN, sharey=True)):
            for name, role, label in (("transformer", "trained", "transformer"), ("control", "gd", "control")):
                axes.plot(shown["x"], shown[f"{name}_before"][task], ":", color=COLOURS[role], label=f"{label}, before")
                axes.plot(shown["x"], shown[f"{name}_after"][task], color=COLOURS[role], label=f"{label}, after")
            axes.plot(shown["context_x"][task], shown["context_y"][task], "o", color="black", ms=4, label="context")
            axes.set(title=f"Task {task + 1}", xlabel="x")
        axes.legend(fontsize=6)
    source = "Paper: Fig. 4."
    return captioned(
        {
            "training": (training, f"Losses on held-out tasks while training; band: range over seeds. {source}"),
            "functions": (functions, f"Predictions before and after the context is used (seed 0). {source}"),
        }
    )


STUDY = Study(
    name="sine",
    question="Does a transformer regress sine waves by gradient descent on learned features?",
    source="von Oswald et al., Transformers learn in-context by gradient descent (ICML 2023): Fig. 4",
    presets={
        "quick": Sine(steps=1000, batch=256, learning_rate=4e-3, control_learning_rate=4e-3, init_scale=0.2),
        "paper": Sine(),
    },
    claims=CLAIMS,
    measure=measure,
    judge=judge,
    draw=draw,
)
