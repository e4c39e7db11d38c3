"""What do softmax, linear, delta and mesa layers find again of what they read, with states of the same size?

Multi-query recall, copying, the words of an unknown automaton, and linear regression with noise. Networks of two layers
of one kind each, with short convolutions and no positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, lenses, nets, tasks, training
from mesascope.errors import require_count, require_number
from mesascope.evidence import Arrays, Claim, above, below, ours
from mesascope.records import register
from mesascope.reports import Figure
from mesascope.studies.common import by_method, plan, values
from mesascope.studies.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

# Kinds of layers, with a name to show.
KINDS = {
    "softmax": "softmax", "window": "softmax, window", "linear": "linear", "delta": "delta", "mesa": "mesa",
}  # fmt: skip
# Entries of a key and of a value of a head, whose state holds 256 numbers: a matrix of them, for mesa one of keys and
# keys besides (253 in all), and of softmax as many keys and values as fit, or, without a window, all.
SIZES = {"mesa": (11, 12)}
OTHERS, WINDOW = (16, 16), 8
MATRICES = ("linear", "delta", "mesa")
# How the tasks are called, and what is told of each.
ASKED = {
    "recall": "recall: answered (%)",
    "copying": "copying: answered (%)",
    "languages": "languages: nats above log 2",
    "regression": "regression: error / least squares",
}
USUAL: dict[str, Any] = {"schedule": "cosine", "optimizer": "adamw", "weight_decay": 0.01, "clip": 1.0}


@dataclass(frozen=True)
class Recall:
    """Settings of the study."""

    training: Training = field(default_factory=lambda: plan(2000, 3e-3, batch=32, warmup_steps=200, **USUAL))
    """How the networks train."""
    seeds: int = 3
    """Networks trained of each kind, one a seed."""
    tasks: int = 500
    """Sequences that they are judged on."""
    watch_tasks: int = 64
    """Sequences of an evaluation while training."""
    width: int = 64
    """Of a token."""
    n_heads: int = 2
    """Of a layer."""
    pairs: int = 24
    """Of recall and of regression."""
    keys: int = 64
    """Different keys of recall."""
    text: int = 32
    """Tokens that are copied."""
    words: int = 8
    """Of a sequence in an unknown language."""
    d: int = 8
    """Width of an input of regression."""
    noise: float = 0.1
    """Standard deviation of what is added to its targets."""

    def __post_init__(self) -> None:
        for name in ("seeds", "tasks", "watch_tasks", "width", "n_heads", "pairs", "keys", "text", "words", "d"):
            require_count(name, getattr(self, name))
        require_number("noise", self.noise, above=0)

    def transformer(self, kind: str) -> Any:
        """Two layers of a kind."""
        softmax = kind in ("softmax", "window")
        key, value = SIZES.get(kind, OTHERS)
        heads = nets.AttentionConfig(
            self.width, self.n_heads, key_size=key, value_size=value, convolution=4, normalise=not softmax,
            window=WINDOW if kind == "window" else None, output_norm=not softmax,
        )  # fmt: skip
        return nets.CausalTransformerConfig(heads, 2, "softmax" if softmax else kind, mlp=2, layer_norm=True)

    def texts(self) -> dict[str, Any]:
        """The tasks that are made of tokens."""
        from mesascope.language import AssociativeRecall, Automata, Copying

        return {
            "recall": AssociativeRecall(self.pairs, self.keys),
            "copying": Copying(self.text, 32),
            "languages": Automata(words=self.words),
        }

    def sequences(self) -> tasks.FewShotSequence:
        """The task that is made of numbers."""
        return tasks.FewShotSequence(self.d, self.pairs, noise=self.noise)


def measure(lab: Lab, settings: Recall) -> None:
    """Train networks of each kind on each task, and judge them on the same fresh sequences."""
    for task, family in settings.texts().items():
        _judge_text(lab, settings, task, family)
    _judge_regression(lab, settings)


def _judge_text(lab: Lab, settings: Recall, task: str, family: Any) -> None:
    from mesascope.language import asked_accuracy, asked_loss

    shown, fresh = lab.draw(family, settings.watch_tasks, "watch"), lab.draw(family, settings.tasks, "eval")
    trained = {
        kind: lab.train(
            f"{task}-{kind}", _language_model(settings, kind, family), family, settings.training, loss=asked_loss,
            watch=lambda net: {"loss": float(asked_loss(net, shown).detach())},
        )
        for kind in KINDS
    }  # fmt: skip
    trained["untrained"] = [
        _language_model(settings, "softmax", family).build(lab.stream("untrained", index))
        for index in range(settings.seeds)
    ]

    def score(net: Any) -> float:
        if task == "languages":
            return float(asked_loss(net, fresh).detach()) - np.log(2)
        return 100 * asked_accuracy(net, fresh)

    lab.stage(task, lambda: {kind: [score(net) for net in members] for kind, members in trained.items()})


def _language_model(settings: Recall, kind: str, family: Any) -> Any:
    return nets.LanguageModelConfig(settings.transformer(kind), family.vocabulary, family.length, places="none")


def _judge_regression(lab: Lab, settings: Recall) -> None:
    """Squared errors of the last quarter of targets, over those of ridge regression on the pairs before each."""
    family = settings.sequences()
    shown, fresh = lab.draw(family, settings.watch_tasks, "watch"), lab.draw(family, settings.tasks, "eval")
    trained = {
        kind: lab.train(
            f"regression-{kind}", nets.SequencePredictorConfig(settings.transformer(kind), settings.d), family,
            settings.training, loss=training.pair_half_mse,
            watch=lambda net: {"mse": 2 * float(training.pair_half_mse(net, shown).detach())},
        )
        for kind in KINDS
    }  # fmt: skip
    last = range(3 * settings.pairs // 4, settings.pairs)

    def judged() -> Arrays:
        errors, best = lenses.errors_by_time(trained, fresh, [2 * n + 1 for n in last]), _least(settings, fresh, last)
        found = {kind: values(errors["mse", kind]).mean(-1) / best for kind in KINDS}
        found["nothing"] = np.array(float(fresh[:, 1::2][:, list(last)].square().mean()) / best)
        return Arrays(found, **dict.fromkeys(KINDS, "seed"), nothing="")

    lab.stage("regression", judged)


def _least(settings: Recall, fresh: Any, last: Any) -> float:
    """The error of ridge regression on the pairs before each of these targets."""
    known, inputs, targets = learners.LeastSquares(settings.d * settings.noise**2), fresh[:, 0::2], fresh[:, 1::2]
    errors = [
        known(tasks.Context(inputs[:, :n], targets[:, :n]), inputs[:, n : n + 1])[:, 0] - targets[:, n] for n in last
    ]
    return float(np.mean([float(error.square().mean()) for error in errors]))


def _better(task: str, kind: str, *others: str) -> Any:
    """By how much a kind answers more, or errs less, by seed and other."""
    sign = 1 if task in ("recall", "copying") else -1
    return lambda r: np.stack([sign * (r[task][kind] - r[task][other]) for other in others], axis=1)


def _answered(r: Any, kind: str) -> np.ndarray:
    return np.stack([r[task][kind] for task in ("recall", "copying")], axis=1)


SOLVED = ("solved",)
CLAIMS = (
    Claim(
        "solved", "softmax without a window recalls and copies", "percent answered: mean over seeds of each task",
        ours("premise: who sees all can answer"), lambda r: _answered(r, "softmax"), above(90.0), quantifier="mean",
        at_least=3,
    ),
    Claim(
        "chance", "untrained networks do not", "percent answered: mean over seeds of each task", ours("a null control"),
        lambda r: _answered(r, "untrained"), below(10.0), quantifier="mean", at_least=3, premises=SOLVED,
    ),
    Claim(
        "regressed", "layers with a matrix as their state regress better than who predicts nothing",
        "error / of predicting 0: mean over seeds of each", ours("premise"),
        lambda r: np.stack([r["regression"][kind] for kind in MATRICES], axis=1) / r["regression"]["nothing"],
        below(0.8), quantifier="mean", at_least=3,
    ),
    Claim(
        "spoken", "and come nearer to an unknown automaton than untrained networks",
        "nats above log 2 / those of untrained ones: mean over seeds of each", ours("premise"),
        lambda r: np.stack([r["languages"][kind] for kind in MATRICES], axis=1) / r["languages"]["untrained"].mean(),
        below(0.5), quantifier="mean", at_least=3,
    ),
    Claim(
        "out-of-sight", "softmax layers that see eight tokens recall little: most lies further back than they reach",
        "percent answered: mean over seeds", ours("a control: the task needs a memory"),
        lambda r: r["recall"]["window"], below(25.0), quantifier="mean", at_least=3, premises=SOLVED,
    ),
    Claim(
        "delta-recalls", "with states of the same size a delta layer recalls more than a linear one",
        "points of answers above linear: mean over seeds", ours("Yang et al. (2024)"),
        _better("recall", "delta", "linear"), above(0.0), quantifier="mean", at_least=3, premises=SOLVED,
    ),
    Claim(
        "mesa-recalls", "and so does a mesa layer", "points of answers above linear: mean over seeds",
        ours("von Oswald et al. (2025)"), _better("recall", "mesa", "linear"), above(0.0), quantifier="mean",
        at_least=3, premises=SOLVED,
    ),
    Claim(
        "mesa-regresses", "a mesa layer regresses better than a linear or a delta layer",
        "error over least squares' less that of mesa: mean over seeds of each", ours("what the layer computes"),
        _better("regression", "mesa", "linear", "delta"), above(0.0), quantifier="mean", at_least=3,
        premises=("regressed",),
    ),
    Claim(
        "mesa-languages", "and tells the words of an unknown automaton better",
        "nats less than linear and delta: mean over seeds of each", ours("Akyurek et al. (2024)"),
        _better("languages", "mesa", "linear", "delta"), above(0.0), quantifier="mean", at_least=3,
        premises=("spoken",),
    ),
)  # fmt: skip


FIGURES = (
    Figure(
        "yardstick", "What networks of each kind answer, each seed: percent of what is asked, nats above the least "
        "that a known automaton costs, and errors over those of ridge regression. All but the first have states of one "
        "size.",
        tuple(by_method(y, KINDS, lambda r, task=task: {"": r[task]}) for task, y in ASKED.items()),
        columns=2, size=(11, 6.4), claims=tuple(claim.id for claim in CLAIMS),
    ),
)  # fmt: skip

STUDY = register("study", "language-recall")(
    Study(
        name="language-recall",
        question="What do layers with states of the same size find again of what they read?",
        source="a yardstick of ours, of tasks by Arora et al. (2023) and Akyurek et al. (2024)",
        presets={
            "quick": Recall(
                plan(60, 5e-3, batch=8, **USUAL), tasks=50, watch_tasks=8, width=16, pairs=4, keys=8, text=6, words=3,
                d=3,
            ),
            "paper": Recall(),
        },
        measure=measure,
        claims=CLAIMS,
        figures=FIGURES,
    )
)  # fmt: skip
