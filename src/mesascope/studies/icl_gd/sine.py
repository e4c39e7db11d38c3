"""Does a transformer regress sine waves by gradient descent on learned features?

ICML paper: Figure 4. Tokens (x, y) pass through an embedding and a residual MLP, and then through one linear
self-attention layer. The control has the same embedding and MLP, from the same initial weights, and one step of
gradient descent in place of the attention layer; its step size is learned too.

In one family, amplitude and phase are independent, as in the paper's text. In the other, both come from one random
number, as in the authors' code. Two more kinds of transformer train on the first family: from the control's weights,
which tests whether a transformer can represent the control, and from larger attention weights.

The MLP has biases, as in the authors' code: without them, features vanish at x = 0 and so does every prediction.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope import constructions, learners, lenses, nets, study, tasks
from mesascope.studies.common import converged, drawn_with, plan, taking, watch_loss
from mesascope.studies.icl_gd import bugs, shared
from mesascope.studies.icl_gd.regression import PAPER, authors_plan
from mesascope.study import Claim, Figure, Line, Lines, Mutation, Positive, Training, above, below, ours, printed, stage

WIDTH, MLP, SHOWN = 40, 4, 3
# Mean squares of targets with independent amplitude and phase, and with both from one number.
SQUARES = 4.2517, 0.05189
PREMISES = ("converged", "control-learns")

GROUPS = {
    "trained": "transformers", "control": "controls", "other-control": "controls of another seed",
    "from-control": "transformers from controls", "large-attention": "transformers of larger attention weights",
    "zero": "predicting zero",
}  # fmt: skip

main, tied, initial = stage("comparison", **GROUPS), stage("tied-comparison", **GROUPS), stage("initial")


@study.frozen
class Sine:
    training: Training  # Training of the transformers.
    control: Training  # Training of the controls.
    restart: Training  # Training of transformers that start from the controls' weights.
    attention_scale: Positive = 0.2  # Variance of the larger initial weights of attention, times fan-in.
    init_scale: Positive = 0.002  # Variance of all other initial weights, times fan-in.
    seeds: study.Count = 5  # Transformers and controls trained, one of each per seed.
    tasks: study.Several = 100_000  # Fresh tasks for comparing transformers and controls.
    watch_tasks: study.Several = 5_000  # Tasks for evaluations during training.


def measure(lab: study.Lab, settings: Sine) -> None:
    family, tied = tasks.SineWaves(), tasks.SineWaves(amplitude=(0.1, 0.5), tied=True)
    trained, controls = _pair(lab, settings, family)
    config = _transformer(settings, settings.init_scale)
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, "watch"))
    started = "control", [as_transformer(one, config) for one in controls]
    restarted = lab.train("from-control", config, family, settings.restart, watch=watched, start=started)
    larger = _transformer(settings, settings.attention_scale)
    large = lab.train("large-attention", larger, family, settings.training, watch=watched)
    fresh, zero = lab.draw(family, settings.tasks, "eval"), [learners.Zero()]
    groups = {
        "trained": trained, "control": controls, "other-control": controls[1:] + controls[:1],
        "from-control": restarted, "large-attention": large, "zero": zero,
    }  # fmt: skip
    lab.stage("comparison", lenses.measure_learners, groups, ["control"], fresh)
    lab.stage("initial", _before, trained, controls, fresh)
    lab.stage("functions", _functions, trained[0], controls[0], fresh.part(0, SHOWN))

    trained, controls = _pair(lab, settings, tied, "tied-")
    groups, also = {"trained": trained, "control": controls, "zero": zero}, lab.draw(tied, settings.tasks, "tied-eval")
    lab.stage("tied-comparison", lenses.measure_learners, groups, ["control"], also)


def _transformer(settings: Sine, attention_scale: float) -> nets.InContextRegressorConfig:
    embedding = nets.EmbeddingConfig(2, WIDTH, MLP, settings.init_scale)
    return nets.InContextRegressorConfig(nets.TransformerConfig(WIDTH, init_scale=attention_scale), embedding=embedding)


def _pair(lab: study.Lab, settings: Sine, family: tasks.SineWaves, prefix: str = "") -> tuple[list[Any], list[Any]]:
    """Transformers and controls trained on a family."""
    watched = watch_loss(mse=lab.draw(family, settings.watch_tasks, f"{prefix}watch"))
    config = _transformer(settings, settings.init_scale)
    trained = lab.train(f"{prefix}transformer", config, family, settings.training, watch=watched)
    descent = nets.EmbeddedDescentConfig(config.embedding, steps=1, eta=0.1)  # type: ignore[arg-type]
    return trained, lab.train(f"{prefix}control", descent, family, settings.control, watch=watched)


def as_transformer(control: nets.EmbeddedDescent, config: nets.InContextRegressorConfig) -> nets.InContextRegressor:
    """Transformer that computes the control's function: the same embedding, and a layer built to run its step."""
    eta, n_context = control.descent.eta.item(), tasks.SineWaves().n_context
    layer = constructions.gradient_descent(WIDTH - 1, 1, eta, n_context).network
    like = next(control.parameters())
    products = [type(one)(*(part.to(like) for part in one)) for one in layer.products()]
    network = config.build().to(like).with_products(products)
    assert network.embedding is not None
    network.embedding.load_state_dict(control.embedding.state_dict())
    return network


def _before(trained: list[Any], controls: list[Any], fresh: tasks.Episode) -> study.Estimates:
    """|Transformer - control| and |control| of predictions before the context is used."""

    def predictions(networks: list[Any]) -> list[np.ndarray]:
        before = [net.trajectory(fresh.context, fresh.xq)[0].detach().flatten() for net in networks]
        return [one.double().cpu().numpy() for one in before]

    ours, theirs = predictions(trained), predictions(controls)
    found = {("difference", "trained"): [np.abs(one - other) for one, other in zip(ours, theirs, strict=True)]}
    return study.Estimates.of(found | {("size", "control"): [np.abs(one) for one in theirs]})


def _functions(net: Any, control: Any, shown: tasks.Episode) -> study.Arrays:
    """Predictions on a grid before and after the context is used."""
    grid = np.linspace(-5, 5, 201)
    pairs = zip(*(part[..., 0].double().cpu().numpy() for part in shown.context), strict=True)
    waves = [np.linalg.lstsq(_basis(x), y, rcond=None)[0] for x, y in pairs]
    xq = shown.xq.new_tensor(grid)[None, :, None].expand(SHOWN, -1, 1)
    found = {"x": grid, "true": np.stack([_basis(grid) @ wave for wave in waves])} | {
        f"context {key}": getattr(shown.context, key)[..., 0].cpu().numpy() for key in ("x", "y")
    }
    for name, learner in (("trained", net), ("control", control)):
        before, after = learner.trajectory(shown.context, xq).detach()[..., 0].cpu().numpy()
        found |= {f"{name} before": before, f"{name} after": after}
    axes = {key: "task pair" if "context" in key else "task grid" for key in found}
    return study.Arrays(found, **(axes | {"x": "grid"}))


def _basis(x: np.ndarray) -> np.ndarray:
    """Columns sin x and cos x; their linear combinations are the waves of every amplitude and phase."""
    return np.stack([np.sin(x), np.cos(x)], axis=-1)


def _losses(title: str, shown: dict[str, tuple[str, str]]) -> Lines:
    """Losses of several trainings; ``shown`` has the role and the label of each."""
    runs = [(stage(name), *labels) for name, labels in shown.items()]
    lines = [Line(run["step"], run["mse"] / 2, role, label) for run, role, label in runs]
    return Lines(title, "training step", shared.HALF_MSE, lines, "y")


def _task(index: int) -> Lines:
    """Predictions in one task before and after the context is used."""
    shown = stage("functions")

    def of(name: str) -> study.Reading:
        return shown[name].at(index, f"task {index + 1}")

    found = [
        Line(shown["x"], of(f"{name} {when}"), role, f"{label}, {when}", marks=marks)
        for name, role, label in (("trained", "trained", "transformer"), ("control", "gd", "control"))
        for when, marks in (("before", ":"), ("after", "-"))
    ]
    true = Line(shown["x"], of("true"), "limit", "the wave itself", width=0.8)
    context = Line(of("context x"), of("context y"), "limit", "context", marks="o")
    return Lines(f"task {index + 1}", "x", "y", [*found, true, context])


def _from_waves(r: Any) -> np.ndarray:
    """Largest distance of each shown task's labels from its wave, interpolated linearly on the grid."""
    shown = r["functions"]
    pairs = zip(shown["context x"], shown["context y"], shown["true"], strict=True)
    return np.array([np.abs(np.interp(x, shown["x"], wave) - y).max() for x, y, wave in pairs])


TRAINING = Figure(
    "training", "Losses on held-out tasks while training; line and band: mean and range over seeds. Paper: "
    "Fig. 4.", (
        _losses("amplitude and phase apart", {
            "transformer": ("trained", "transformer"),
            "control": ("gd", "MLP and one gradient step"),
            "from-control": ("interpolated", "transformer, from the control's weights"),
            "large-attention": ("other", "transformer, larger attention weights"),
        }),
        _losses("both from one number", {
            "tied-transformer": ("trained", "transformer"), "tied-control": ("gd", "MLP and one gradient step"),
        }),
    ), claims=(
        Claim("control-learns", "the control's loss is less than half of that of predicting zero",
              main.ratio("control", "zero"), below(0.5), ours("premise"), former="printed, held"),
        Claim("targets", "control: the loss of predicting zero is within 10 % of the mean square of targets, of both "
              "families",
              study.beside([main["mse", "zero"] / SQUARES[0], tied["mse", "zero"] / SQUARES[1]],
                           "loss of predicting zero / mean square of targets, each family"), study.two_sided(0.1),
              study.derived("control: moments of amplitudes and phases"), over="algorithms"),
        Claim("starts-at-control", "control: a transformer that starts from the weights of its control (the MLP and "
              "one gradient step) has the control's final loss within 0.1 %",
              stage("from-control")["mse"].at((..., 0), "of transformers at the first step")
              / stage("control")["mse"].at((..., -1), "of controls at the last"), study.two_sided(0.001),
              ours("control: a transformer can represent the control"), quantifier="exact",
              exact_because="the same function has the same loss", about="algorithms"),
        Claim("networks-of-curves", "control: the loss of transformers over that of controls is within 10 % of that at "
              "the end of their curves",
              main.ratio("trained", "control")
              / (stage("transformer")["mse"] / stage("control")["mse"]).at((..., -1), "at the end"),
              study.two_sided(0.1), ours("control: each curve is that of its network"), about="algorithms"),
        Claim("learns", "the transformer's loss is less than half of that of predicting zero",
              main.ratio("trained", "zero"), below(0.5), ours("whether it learns at all"), premises=("converged",),
              former="printed, held"),
        Claim("loss-matches", "each transformer's loss is within 5 % of that of the control of the same initial "
              "weights", main.ratio("trained", "control"), study.two_sided(0.05), printed("Fig. 4 centre")),
        Claim("stays-at-control", "a transformer that starts from the control's weights ends at most 1 % above the "
              "control's loss", main.ratio("from-control", "control"), below(1.01),
              ours("whether a transformer can represent the control")),
        Claim("larger-attention", "from attention weights of a larger variance, each transformer's loss is within 5 % "
              "of the control's", main.ratio("large-attention", "control"), study.two_sided(0.05),
              ours("whether small attention weights are what fails"),
              premises=("large-attention-converged", "control-learns")),
        Claim("tied-loss-matches", "where amplitude and phase come from one number, each transformer's loss is at most "
              "5 % above that of the control of the same initial weights", tied.ratio("trained", "control"),
              below(1.05), printed("Fig. 4 centre, on the family of the authors' code"),
              premises=("tied-converged", "tied-control-learns")),
    ),
)  # fmt: skip

FUNCTIONS = Figure(
    "functions", "Predictions before and after the context is used, first seed. Paper: Fig. 4.",
    tuple(map(_task, range(SHOWN))), share_y=True, shared_legend=True, size=(9.5, 3.6), claims=(
        Claim("prediction-difference", "the transformer's predictions differ from the control's by at most 5 % of the "
              "targets' root mean square on average",
              main["prediction-difference", "trained", "control"]
                  / main["mse", "zero"].map(lambda mse: mse**0.5, "root mean square of targets"), below(0.05),
              printed("Fig. 4 right")),
        Claim("no-nearer-control", "each transformer is as near to the control of its seed as controls of two seeds "
              "are to each other",
              main["prediction-difference", "trained", "control"]
                  / main["prediction-difference", "other-control", "control"], below(1.0),
              ours("how much two seeds of one learner differ")),
        Claim("sensitivity-sign", "the derivatives of the transformer's and the control's predictions by the query "
              "have a mean cosine above 0.95", main["cosine", "trained", "control"], above(0.95),
              printed("Fig. 4 right"), premises=(*PREMISES, "derivatives")),
        Claim("waves", "control: labels of the tasks shown lie within 0.01 of their waves",
              study.Reading("largest distance of labels from the wave", _from_waves), below(0.01),
              ours("control: inputs have their own targets"), quantifier="exact", at_least=SHOWN,
              exact_because="labels have no noise", over="contexts", about="algorithms"),
        Claim("initial-functions", "before the context is used, the transformer's predictions differ from the "
              "control's by less than half of their size on average",
              initial["difference", "trained"] / initial["size", "control"], below(0.5), printed("Fig. 4 left"),
              measures="mean |trained - control| / mean |control|, predictions before any step"),
    ),
)  # fmt: skip


APART = (
    "Claims whose names do not begin with tied- are about amplitude and phase drawn apart, as the text has it; the "
    "authors' code draws both from one key, with amplitudes up to 0.5."
)
STUDY = study.Study(
    name="sine",
    source=f"{PAPER}: Fig. 4",
    presets={
        "quick": Sine(
            plan(500, 4e-3, batch=128, clip=100.0), plan(500, 4e-3, batch=128, clip=100.0),
            plan(100, 1e-3, batch=128, clip=100.0), attention_scale=1.0, init_scale=0.2, tasks=20_000,
        ),
        "paper": Sine(
            plan(20_000, 1e-3, batch=512, clip=100.0), plan(20_000, 1e-3, batch=512, clip=100.0),
            plan(4000, 3e-4, batch=512, clip=100.0),
        ),
        "thesis": Sine(
            authors_plan(20_000, learning_rate=1e-3, clip=100.0), authors_plan(20_000, learning_rate=3e-4, clip=100.0),
            authors_plan(4000, learning_rate=3e-4, clip=100.0),
        ),
    },
    measure=measure,
    trainings=6,
    premises=PREMISES,
    claims=(
        converged("transformer", "control"),
        shared.derivatives(main),
        converged("large-attention", id="large-attention-converged"),
        converged("tied-transformer", "tied-control", id="tied-converged"),
        Claim("tied-control-learns", "where amplitude and phase come from one number, the control's loss is less than "
              "half of that of predicting zero",
              tied.ratio("control", "zero"), below(0.5), ours("premise"), premises=()),
    ),
    figures=(TRAINING, FUNCTIONS),
    unlike=dict.fromkeys(("quick", "paper"), "batches of 2,048 tasks"),
    deviations={
        "paper": (
            "A batch has 512 tasks, a quarter of the authors', which makes the study a quarter as long.",
            APART,
            "The control trains at a learning rate of 1e-3, where the authors' code has 3e-4.",
            shared.AVERAGED, shared.INITIAL, "Gradients are clipped at 100, as in the authors' code; the text has 10.",
        ),
        "thesis": (
            "Gradients are clipped at 100, as in the authors' code; the text has 10.",
            APART, "Transformers that start from the control's weights, ours, train for 4,000 steps at 3e-4.",
            shared.INITIAL, shared.ADAM,
        ),
    },
    mutations=(
        bugs.OTHER_QUERIES,
        Mutation("amplitudes are those of the authors' code in both families", "mesascope.tasks:SineWaves.sample",
                 drawn_with(amplitude=(0.1, 0.5))),
        Mutation("targets are shifted against inputs", "mesascope.tasks:SineWaves.sample", bugs.SHIFTED_TARGETS.wrong),
        Mutation("transformers start from the control of the next seed", "mesascope.studies.lab:Lab.train",
                 taking("start", lambda start: (start[0], [*start[1][1:], start[1][0]])), anew=True),
        Mutation("transformers start with half the control's step", "mesascope.constructions:gradient_descent",
                 lambda build: lambda d_in, d_out, eta, *rest: build(d_in, d_out, eta / 2, *rest), anew=True),
    ),
    mutated={
        **dict.fromkeys(("training", "control"), plan(40, 1e-2, batch=32, clip=100.0)),
        "restart": plan(20, 1e-3, batch=32, clip=100.0), "tasks": 4000, "watch_tasks": 2000,
    },
)  # fmt: skip
