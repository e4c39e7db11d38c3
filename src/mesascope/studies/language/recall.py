"""What do softmax, linear, delta and mesa layers find again of what they read, with states of the same size?

Multi-query recall, copying, the words of an unknown automaton, and linear regression with noise. Networks of two layers
of one kind each, with short convolutions and no positions; for regression keys of the first layer are shifted by hand
in their place, elements say which are inputs, and nothing is divided by its norm after it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import learners, nets, tasks, training
from mesascope.errors import require_count, require_instance, require_number
from mesascope.evidence import Claim, Estimates, above, below, ours, stage
from mesascope.reports import Figure
from mesascope.studies.common import plan, values
from mesascope.study import Study, strip
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

# Kinds of layers, and that which has to recall what it does not see, with a name to show.
KINDS = {"softmax": "softmax", "linear": "linear", "delta": "delta", "mesa": "mesa"}
RECALLING = {**KINDS, "window": "softmax, window"}
# Entries of a key and of a value of a head, whose state holds 256 numbers: a matrix of them, for mesa one of keys and
# keys besides (253 in all), and of softmax as many keys and values as fit, or, without a window, all.
SIZES = {"mesa": (11, 12)}
OTHERS, WINDOW = (16, 16), 8
MATRICES = ("linear", "delta", "mesa")
# Learning rates of the preset `paper`, each kind's own: the best of those tried on sequences of another seed.
RATES: dict[str, dict[str, float]] = {
    "recall": dict.fromkeys(RECALLING, 0.01),
    "copying": dict.fromkeys(KINDS, 0.01) | {"linear": 0.03},
    "languages": dict.fromkeys(KINDS, 0.01) | {"linear": 0.03, "mesa": 0.03},
    "regression": dict.fromkeys(KINDS, 0.03) | {"mesa": 0.01},
}
USUAL: dict[str, Any] = {"schedule": "cosine", "optimizer": "adamw", "weight_decay": 0.01, "clip": 1.0}


@dataclass(frozen=True)
class Recall:
    """Settings of the study."""

    training: Training = field(default_factory=lambda: plan(1000, 3e-3, batch=32, warmup_steps=100, **USUAL))
    """How the networks train."""
    tuned: bool = False
    """Whether each kind trains at a rate of its own, found on other sequences, in place of training's."""
    seeds: int = 8
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
        require_instance("tuned", self.tuned, bool)

    def plan(self, task: str, kind: str) -> Training:
        """How networks of a kind train on a task."""
        return replace(self.training, learning_rate=RATES[task][kind]) if self.tuned else self.training

    def transformer(self, kind: str, regresses: bool = False) -> Any:
        """Two layers of a kind."""
        softmax = kind in ("softmax", "window")
        key, value = SIZES.get(kind, OTHERS)
        heads = nets.AttentionConfig(
            self.width, self.n_heads, key_size=key, value_size=value, convolution=0 if regresses else 4,
            normalise=not softmax, window=WINDOW if kind == "window" else None,
            output_norm=not softmax and not regresses, beta=not softmax,
        )  # fmt: skip
        layers = (replace(heads, key_shift=regresses), heads)
        return nets.CausalTransformerConfig(layers, 2, "softmax" if softmax else kind, mlp=2, layer_norm=True)

    def texts(self) -> dict[str, Any]:
        """The tasks that are made of tokens."""
        from mesascope.language import AssociativeRecall, Automata, Copying

        return {
            "recall": AssociativeRecall(self.pairs, self.keys),
            "copying": Copying(self.text, 32),
            "languages": Automata(words=self.words),
        }

    def sequences(self) -> tasks.FewShotSequence:
        """The task that is made of numbers, with a mark of which are inputs."""
        return tasks.FewShotSequence(self.d, self.pairs, noise=self.noise, marked=True)

    def kinds(self, task: str) -> Sequence[str]:
        """Those that train on a task."""
        return [*(RECALLING if task == "recall" else KINDS)]


def measure(lab: Lab, settings: Recall) -> None:
    """Train networks of each kind on each task, and judge them on the same fresh sequences."""
    for task, family in settings.texts().items():
        _judge_text(lab, settings, task, family)
    _judge_regression(lab, settings)


def _judge_text(lab: Lab, settings: Recall, task: str, family: Any) -> None:
    from mesascope.language import asked_each, asked_loss

    shown, fresh = lab.draw(family, settings.watch_tasks, "watch"), lab.draw(family, settings.tasks, "eval")
    trained = {
        kind: lab.train(
            f"{task}-{kind}", _language_model(settings, kind, family), family, settings.plan(task, kind),
            loss=asked_loss, watch=lambda net: {"loss": float(asked_loss(net, shown).detach())},
        )
        for kind in settings.kinds(task)
    }  # fmt: skip
    trained["untrained"] = [
        _language_model(settings, "softmax", family).build(lab.stream("untrained", index))
        for index in range(settings.seeds)
    ]

    def judged() -> Estimates:
        found = {kind: [asked_each(net, fresh) for net in members] for kind, members in trained.items()}
        nats = {("nats", kind): [_numbers(loss) for loss, _ in each] for kind, each in found.items()}
        answered = {("answered", kind): [100 * _numbers(right) for _, right in each] for kind, each in found.items()}
        return Estimates.of({**nats, **answered})

    lab.stage(task, judged)


def _language_model(settings: Recall, kind: str, family: Any) -> Any:
    return nets.LanguageModelConfig(settings.transformer(kind), family.vocabulary, family.length, places="none")


def _judge_regression(lab: Lab, settings: Recall) -> None:
    """Squared errors of the last quarter of targets, beside those of ridge regression on the pairs before each."""
    family = settings.sequences()
    shown, fresh = lab.draw(family, settings.watch_tasks, "watch"), lab.draw(family, settings.tasks, "eval")
    trained = {
        kind: lab.train(
            f"regression-{kind}",
            nets.SequencePredictorConfig(settings.transformer(kind, regresses=True), settings.d + 1), family,
            settings.plan("regression", kind), loss=training.pair_half_mse,
            watch=lambda net: {"mse": 2 * float(training.pair_half_mse(net, shown).detach())},
        )
        for kind in settings.kinds("regression")
    }  # fmt: skip
    inputs, targets = fresh[:, 0::2, :-1], fresh[:, 1::2, :-1]  # without their marks
    last = slice(3 * settings.pairs // 4, settings.pairs)

    def error(guessed: Any) -> np.ndarray:
        return _numbers((guessed - targets[:, last]).square().mean((1, 2)))

    def judged() -> Estimates:
        import torch

        known = learners.LeastSquares(settings.d * settings.noise**2)
        best = [known(tasks.Context(inputs[:, :n], targets[:, :n]), inputs[:, n : n + 1])[:, 0]
                for n in range(last.start, last.stop)]  # fmt: skip
        errors = {
            kind: [error(net(fresh[:, :-1])[:, 0::2][:, last, :-1]) for net in each] for kind, each in trained.items()
        }
        errors |= {"least-squares": [error(torch.stack(best, 1))], "nothing": [error(0.0)]}
        return Estimates.of({("mse", name): each for name, each in errors.items()})

    lab.stage("regression", judged)


def _numbers(tensor: Any) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def _over(names: Sequence[str], read: Callable[[Any, str], Any]) -> Callable[[Any], np.ndarray]:
    """What ``read`` gives for each name, by seed and name."""
    return lambda r: np.stack([read(r, name) for name in names], axis=1)


def _answered(task: str) -> Callable[[Any, str], Any]:
    return lambda r, kind: r[task]["answered", kind]


def _above_log_2(r: Any, kind: str) -> Any:
    """Nats that a network loses more than who knows the automaton."""
    return r["languages"]["nats", kind] - np.log(2)


def _of_least_squares(r: Any, kind: str) -> Any:
    return r["regression"].ratio(kind, "least-squares")


MEAN: dict[str, Any] = {"quantifier": "mean", "at_least": 5}
SOLVED, FOUND = ("solved",), ("solved", "finds")
CLAIMS = (
    Claim(
        "solved", "softmax without a window recalls and copies",
        _over(["recall", "copying"], lambda r, task: r[task]["nats", "softmax"]), below(0.3),
        ours("premise: who sees all can answer"), measures="nats lost an answer: mean over seeds of each task", **MEAN,
    ),
    Claim(
        "chance", "untrained networks do not",
        _over(["recall", "copying"], lambda r, task: _answered(task)(r, "untrained")), below(10.0),
        ours("a null control"), measures="percent answered: mean over seeds of each task", premises=SOLVED, **MEAN,
    ),
    Claim(
        "finds", "layers with a matrix as their state recall more than who names one of the values not yet asked for",
        _over(MATRICES, _answered("recall")), above(25.0), ours("premise"),
        measures="percent answered: mean over seeds of each kind", premises=SOLVED, **MEAN,
    ),
    Claim(
        "regressed", "and err by less than a half of who predicts nothing",
        _over(MATRICES, lambda r, kind: r["regression"].ratio(kind, "nothing")), below(0.5), ours("premise"),
        measures="error / of predicting 0: mean over seeds of each kind", **MEAN,
    ),
    Claim(
        "spoken", "and are much nearer to an unknown automaton than untrained networks",
        _over(MATRICES, lambda r, kind: _above_log_2(r, kind) / _above_log_2(r, "untrained")), below(0.25),
        ours("premise"), measures="nats above log 2 / those of untrained ones: mean over seeds of each kind", **MEAN,
    ),
    Claim(
        "out-of-sight", "softmax layers that see eight tokens recall little: most lies further back than they reach",
        lambda r: _answered("recall")(r, "window"), below(10.0), ours("a control: the task needs a memory"),
        measures="percent answered: mean over seeds", premises=SOLVED, **MEAN,
    ),
    Claim(
        "delta-recalls", "with states of the same size a delta layer recalls more than a linear one",
        stage("recall").difference("delta", "linear", "answered"), above(0.0), ours("Yang et al. (2024)"),
        premises=FOUND, **MEAN,
    ),
    Claim(
        "mesa-recalls", "and so does a mesa layer", stage("recall").difference("mesa", "linear", "answered"),
        above(0.0), ours("von Oswald et al. (2025)"), premises=FOUND, **MEAN,
    ),
    Claim(
        "mesa-solves", "a mesa layer comes near to ridge regression", lambda r: _of_least_squares(r, "mesa"),
        below(1.5), ours("what the layer computes"), measures="error / of ridge regression: mean over seeds",
        premises=("regressed",), **MEAN,
    ),
    Claim(
        "mesa-regresses", "and nearer than a linear or a delta layer",
        _over(["linear", "delta"], lambda r, kind: _of_least_squares(r, kind) - _of_least_squares(r, "mesa")),
        above(0.0), ours("what the layer computes"),
        measures="error over ridge regression's less that of mesa: mean over seeds of each", premises=("regressed",),
        **MEAN,
    ),
    Claim(
        "mesa-languages", "and tells the words of an unknown automaton better",
        _over(["linear", "delta"], lambda r, kind: _above_log_2(r, kind) - _above_log_2(r, "mesa")), above(0.0),
        ours("Akyurek et al. (2024)"), measures="nats less than linear and delta: mean over seeds of each",
        premises=("spoken",), **MEAN,
    ),
)  # fmt: skip


def _shown(y: str, read: Callable[[Any, str], Any], kinds: Mapping[str, str] = KINDS) -> Any:
    return strip(y, kinds, lambda r: {"": {kind: values(read(r, kind)) for kind in kinds}})


FIGURES = (
    Figure(
        "yardstick", "What networks of each kind answer, each seed: percent of what is asked, nats above the least "
        "that a known automaton costs, and errors over those of ridge regression. All but the first have states of one "
        "size.",
        (
            _shown("recall: answered (%)", _answered("recall"), RECALLING),
            _shown("copying: answered (%)", _answered("copying")),
            _shown("languages: nats above log 2", _above_log_2),
            _shown("regression: error / least squares", _of_least_squares),
        ),
        columns=2, size=(11, 6.4), claims=tuple(claim.id for claim in CLAIMS),
    ),
)  # fmt: skip

STUDY = Study(
    name="language-recall",
    source="a yardstick of ours, of tasks by Arora et al. (2023) and Akyurek et al. (2024)",
    presets={
        "quick": Recall(
            plan(60, 5e-3, batch=8, **USUAL), tasks=50, watch_tasks=8, width=16, pairs=4, keys=8, text=6, words=3,
            d=3, seeds=5,
        ),
        "paper": Recall(tuned=True),
    },
    measure=measure,
    trainings=17,
    claims=CLAIMS,
    figures=FIGURES,
)  # fmt: skip
