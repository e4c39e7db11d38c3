"""Does a transformer regress sine waves by gradient descent on learned features?

ICML paper: Figure 4. Tokens (x, y) pass through an embedding and a residual MLP, and then through one linear
self-attention layer. The control has the same embedding and MLP, from the same initial weights, and one step of
gradient descent in place of the attention layer; its step size is learned too.

Amplitude and phase are drawn apart, as the text has it, and from one number, as the authors' code draws them, which
makes a task a single number. Two more kinds of transformer train on the former: from the control's weights, which tells
whether they fail to learn or to represent, and from larger attention weights.

The MLP has biases, as in the authors' code: without them, features vanish at x = 0 and so does every prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import constructions, learners, lenses, nets, tasks
from mesascope.errors import require_count, require_number
from mesascope.evidence import Arrays, Claim, Estimates, above, below, ours, printed, stage, two_sided
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.common import converged, plan, watch_loss
from mesascope.studies.icl_gd.regression import PAPER
from mesascope.studies.icl_gd.shared_claims import derivatives
from mesascope.studies.icl_gd.shared_figures import HALF_MSE
from mesascope.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

WIDTH, MLP, SHOWN = 40, 4, 3
PREMISES = ("converged", "control-learns")


def _initial(r: Any) -> np.ndarray:
    main = r["initial"]
    return main["difference", "trained"] / main["size", "control"]


def _difference(r: Any) -> np.ndarray:
    main = r["comparison"]
    return main["prediction-difference", "trained", "control"] / main["mse", "zero"] ** 0.5


CLAIMS = (
    converged("transformer", "control"),
    derivatives("comparison"),
    Claim(
        "control-learns", "the control loses less than half of what predicting zero loses",
        stage("comparison").ratio("control", "zero"), below(0.5), printed("Fig. 4 centre"),
    ),
    Claim(
        "learns", "the transformer loses less than half of what predicting zero loses",
        stage("comparison").ratio("trained", "zero"), below(0.5), printed("Fig. 4 centre"), premises=("converged",),
    ),
    Claim(
        "loss-matches", "each transformer's loss is within 5 % of that of the control of the same initial weights",
        stage("comparison").ratio("trained", "control"), two_sided(0.05), printed("Fig. 4 centre"), premises=PREMISES,
    ),
    Claim(
        "prediction-difference", "its predictions are the control's to 5 % of the targets' root mean square on average",
        _difference, below(0.05), printed("Fig. 4 right"),
        measures="mean |trained - control| / root mean square of targets", premises=PREMISES,
    ),
    Claim(
        "no-nearer-control",
        "each transformer is as near to the control of its seed as controls of two seeds are to " "each other",
        stage("comparison")["prediction-difference", "trained", "control"] / stage("comparison")["prediction-difference", "other-control", "control"],
        below(1.0), ours("how much two seeds of one learner differ"), premises=PREMISES,
    ),
    Claim(
        "sensitivity-sign", "its predictions rise and fall with the query where the control's do: the mean cosine of "
        "their derivatives, numbers here, is above 0.95", stage("comparison")["cosine", "trained", "control"],
        above(0.95), printed("Fig. 4 right"), premises=(*PREMISES, "derivatives"),
    ),
    Claim(
        "initial-functions",
        "before the context is used, its predictions are the control's, to half of their size on " "average", _initial,
        below(0.5), printed("Fig. 4 left"),
        measures="mean |trained - control| / mean |control|, predictions before any step", premises=PREMISES,
    ),
    Claim(
        "stays-at-control", "a transformer that starts from the control's weights ends with at most its loss, and 1 %",
        stage("comparison").ratio("from-control", "control"), below(1.01),
        ours("whether a transformer can represent the control"), premises=PREMISES,
    ),
    converged("large-attention", id="large-attention-converged"),
    Claim(
        "larger-attention",
        "from attention weights of a larger variance, each transformer's loss is within " "5 % of the control's",
        stage("comparison").ratio("large-attention", "control"), two_sided(0.05),
        ours("whether small attention weights are what fails"),
        premises=("large-attention-converged", "control-learns"),
    ),
    converged("tied-transformer", "tied-control", id="tied-converged"),
    Claim(
        "tied-control-learns", "where amplitude and phase come from one number, the control loses less than half of "
        "what predicting zero loses", stage("tied-comparison").ratio("control", "zero"), below(0.5), ours("premise"),
    ),
    Claim(
        "tied-loss-matches", "where amplitude and phase come from one number, each transformer loses at most 5 % more "
        "than the control of the same initial weights", stage("tied-comparison").ratio("trained", "control"),
        below(1.05), printed("Fig. 4 centre, on the family of the authors' code"),
        premises=("tied-converged", "tied-control-learns"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Sine:
    """Settings of the study."""

    training: Training
    """How the transformers train."""
    control: Training
    """How the controls train."""
    restart: Training
    """How transformers go on from the controls' weights."""
    attention_scale: float = 0.2
    """Variance of the larger initial weights of attention, times fan-in."""
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
        for name in ("init_scale", "attention_scale"):
            require_number(name, getattr(self, name), above=0)


def measure(lab: Lab, settings: Sine) -> None:
    """Train transformers and controls on both families, and compare."""
    family, tied = tasks.SineWaves(), tasks.SineWaves(amplitude=(0.1, 0.5), tied=True)
    trained, controls = _pair(lab, settings, family)
    config = _transformer(settings, settings.init_scale)
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    started = "control", [as_transformer(one, config) for one in controls]
    restarted = lab.train("from-control", config, family, settings.restart, watch=watched, start=started)
    large = lab.train(
        "large-attention", _transformer(settings, settings.attention_scale), family, settings.training, watch=watched
    )
    fresh = lab.draw(family, settings.tasks, "eval")
    groups = {
        "trained": trained,
        "control": controls,
        "other-control": controls[1:] + controls[:1],
        "from-control": restarted,
        "large-attention": large,
        "zero": [learners.Zero()],
    }
    lab.stage("comparison", lambda: lenses.measure_together(groups, ["control"], fresh))
    lab.stage("initial", lambda: _before(trained, controls, fresh))
    lab.stage("functions", lambda: _functions(trained[0], controls[0], fresh.part(0, SHOWN)))

    apart = dict(zip(("trained", "control"), _pair(lab, settings, tied, "tied-"), strict=True)) | {
        "zero": [learners.Zero()]
    }
    also = lab.draw(tied, settings.tasks, "tied-eval")
    lab.stage("tied-comparison", lambda: lenses.measure_together(apart, ["control"], also))


def _transformer(settings: Sine, attention_scale: float) -> nets.InContextRegressorConfig:
    embedding = nets.EmbeddingConfig(2, WIDTH, MLP, settings.init_scale)
    return nets.InContextRegressorConfig(nets.TransformerConfig(WIDTH, init_scale=attention_scale), embedding=embedding)


def _pair(lab: Lab, settings: Sine, family: tasks.SineWaves, prefix: str = "") -> tuple[list[Any], list[Any]]:
    """Transformers and controls trained on a family."""
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, f"{prefix}watch"))
    config = _transformer(settings, settings.init_scale)
    trained = lab.train(f"{prefix}transformer", config, family, settings.training, watch=watched)
    descent = nets.EmbeddedDescentConfig(config.embedding, steps=1, eta=0.1)  # type: ignore[arg-type]
    return trained, lab.train(f"{prefix}control", descent, family, settings.control, watch=watched)


def as_transformer(control: nets.EmbeddedDescent, config: nets.InContextRegressorConfig) -> nets.InContextRegressor:
    """The transformer that computes what the control does: the same embedding, and the layer built to descend."""
    eta, n_context = control.descent.eta.item(), tasks.SineWaves().n_context
    layer = constructions.gradient_descent(WIDTH - 1, 1, eta, n_context).network
    like = next(control.parameters())
    products = [type(one)(*(part.to(like) for part in one)) for one in layer.products()]
    network = config.build().to(like).with_products(products)
    assert network.embedding is not None
    network.embedding.load_state_dict(control.embedding.state_dict())
    return network


def _before(trained: list[Any], controls: list[Any], fresh: tasks.Episode) -> Estimates:
    """Predictions before the context is used: how far transformers' are from controls', and how large these are."""
    read = [
        [net.trajectory(fresh.context, fresh.xq)[0].detach().flatten() for net in own] for own in (trained, controls)
    ]
    first, second = ([one.double().cpu().numpy() for one in own] for own in read)
    differences = [np.abs(one - other) for one, other in zip(first, second, strict=True)]
    return Estimates.of({("difference", "trained"): differences, ("size", "control"): [np.abs(one) for one in second]})


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
    shown = {
        "transformer": ("trained", "transformer"),
        "control": ("gd", "MLP and one gradient step"),
        "from-control": ("interpolated", "transformer, from the control's weights"),
        "large-attention": ("other", "transformer, larger attention weights"),
    }
    return [Line(r[name]["step"], r[name]["mse"] / 2, *labels) for name, labels in shown.items()]


def _tied_loss(r: Any) -> list[Line]:
    shown = {"tied-transformer": ("trained", "transformer"), "tied-control": ("gd", "MLP and one gradient step")}
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
        (
            Lines("amplitude and phase apart", "training step", HALF_MSE, _loss, "y"),
            Lines("both from one number", "training step", HALF_MSE, _tied_loss, "y"),
        ),
        columns=2,
        claims=(
            "control-learns", "learns", "loss-matches", "stays-at-control", "larger-attention", "tied-loss-matches",
        ),
    ),
    Figure(
        "functions", "Predictions before and after the context is used, first seed. Paper: Fig. 4.",
        tuple(_task(index) for index in range(SHOWN)), share_y=True, shared_legend=True, size=(9.5, 3.6),
        claims=("prediction-difference", "no-nearer-control", "sensitivity-sign", "initial-functions"),
    ),
)  # fmt: skip

STUDY = Study(
    name="sine",
    source=f"{PAPER}: Fig. 4",
    presets={
        "quick": Sine(
            plan(500, 4e-3, batch=128, clip=100.0),
            plan(500, 4e-3, batch=128, clip=100.0),
            plan(100, 1e-3, batch=128, clip=100.0),
            attention_scale=1.0,
            init_scale=0.2,
            tasks=20_000,
        ),
        "paper": Sine(
            plan(20_000, 1e-3, batch=512, clip=100.0),
            plan(20_000, 1e-3, batch=512, clip=100.0),
            plan(4000, 3e-4, batch=512, clip=100.0),
        ),
    },
    measure=measure,
    trainings=6,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "A batch has 512 tasks, a quarter of the authors', which makes the study a quarter as long.",
        "Claims whose names do not begin with tied- are about amplitude and phase drawn apart, as the text has it; "
        "the authors' code draws both from one key, with amplitudes up to 0.5.",
        "The control trains at a learning rate of 1e-3, where the authors' code has 3e-4.",
        "The learning rate decays and weights are averaged, which removes the noise that Adam leaves.",
    ),
)  # fmt: skip
