"""What do softmax, linear, delta and mesa layers recall of what they read, with states of the same size?

Multi-query recall, copying, the words of an unknown automaton, and linear regression with noise. Networks have two
layers of one kind each, with short convolutions and no positions. For regression, keys of the first layer are shifted
by one element in place of the convolutions, elements are marked as inputs or targets, and heads have no output norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mesascope import language, learners, nets, records, study, tasks, training
from mesascope.studies.common import kept_weights, one_pair, plan, returning
from mesascope.study import Claim, Count, Figure, Mutation, Reading, Study, Training, above, below, beside, ours, stage

# Kinds of layers with their labels; for recall also softmax with a window that is too short.
KINDS = {"softmax": "softmax", "linear": "linear", "delta": "delta", "mesa": "mesa"}
RECALLING = {**KINDS, "window": "softmax, window"}
# Sizes of keys and values. The state of a head has 256 numbers: a 16 x 16 matrix; for mesa an 11 x 12 and an 11 x 11
# matrix (253); for softmax with a window, 8 keys and values. Softmax without a window keeps all keys and values.
SIZES = dict.fromkeys(RECALLING, (16, 16)) | {"mesa": (11, 12)}
WINDOW = 8
OTHERS = ("linear", "delta")
MATRICES = (*OTHERS, "mesa")
SOLVED, FOUND = ("solved",), ("solved", "finds")
# Learning rates of the preset `paper` for each kind: the best of those tried on sequences of another seed.
RATES: dict[str, dict[str, float]] = {
    "recall": dict.fromkeys(RECALLING, 0.01),
    "copying": dict.fromkeys(KINDS, 0.01) | {"linear": 0.03},
    "languages": dict.fromkeys(KINDS, 0.01) | {"linear": 0.03, "mesa": 0.03},
    "regression": dict.fromkeys(KINDS, 0.03) | {"mesa": 0.01},
}
# Ridges of ridge regression, relative to the ridge that the task's prior and noise give.
RIDGES = {"least-squares": 1.0, "lower-ridge": 0.2, "higher-ridge": 5.0}
cosine_plan = partial(plan, schedule="cosine", optimizer="adamw", weight_decay=0.01, clip=1.0)

ASKED = {"nats": "loss in nats per answer", "answered": "accuracy in percent"}
recalled, copied = stage("recall", **ASKED, window="softmax, window"), stage("copying", **ASKED)
languages, regression = stage("languages"), stage("regression", mse="error", **{"least-squares": "ridge regression"})


@study.frozen
class Recall:
    training: Training = cosine_plan(1000, 3e-3, batch=32, warmup_steps=100)  # Training of the networks.
    tuned: bool = False  # Train each kind at its own learning rate, tuned on other sequences.
    seeds: Count = 8  # Networks of each kind, one per seed.
    tasks: Count = 500  # Sequences for judging networks.
    watch_tasks: Count = 64  # Sequences for evaluations during training.
    width: Count = 64  # Width of a token.
    n_heads: Count = 2  # Heads of a layer.
    pairs: Count = 24  # Pairs of recall and of regression.
    keys: Count = 64  # Different keys of recall.
    text: Count = 32  # Tokens that are copied.
    words: Count = 8  # Words of a sequence in an unknown language.
    d: Count = 8  # Width of an input of regression.
    noise: study.Positive = 0.1  # Standard deviation of the noise on the targets of regression.

    def plan(self, task: str, kind: str) -> Training:
        return replace(self.training, learning_rate=RATES[task][kind]) if self.tuned else self.training

    def transformer(self, kind: str, regresses: bool = False) -> Any:
        softmax = kind in ("softmax", "window")
        key, value = SIZES[kind]
        heads = nets.AttentionConfig(
            self.width, self.n_heads, key_size=key, value_size=value, convolution=0 if regresses else 4,
            normalise=not softmax, window=WINDOW if kind == "window" else None,
            output_norm=not softmax and not regresses, beta=not softmax,
        )  # fmt: skip
        layers = (replace(heads, key_shift=regresses), heads)
        return nets.CausalTransformerConfig(layers, 2, "softmax" if softmax else kind, mlp=2, layer_norm=True)


def measure(lab: study.Lab, settings: Recall) -> None:
    trained = {
        "recall": _judge_text(lab, settings, "recall", tasks.AssociativeRecall(settings.pairs, settings.keys)),
        "copying": _judge_text(lab, settings, "copying", tasks.Copying(settings.text, 32)),
        "languages": _judge_text(lab, settings, "languages", tasks.Automata(words=settings.words)),
        "regression": _judge_regression(lab, settings),
    }
    lab.stage("kinds", _of_their_kind, trained)
    lab.stage("weights", kept_weights, trained["recall"]["delta"][0])


def _of_their_kind(trained: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Share of each network's layers that have the attention type in the network's name."""
    classes = records.registered("attention")

    def share(kind: str, net: Any) -> float:
        own = classes["softmax" if kind == "window" else kind]
        return float(np.mean([type(layer.attention) is own for layer in net.transformer.layers]))

    return {
        f"{task} {kind}": [share(kind, net) for net in groups[kind]]
        for task, groups in trained.items()
        for kind in groups
        if kind in RECALLING
    }


def _judge_text(lab: study.Lab, settings: Recall, task: str, family: Any) -> dict[str, Any]:
    shown, fresh = lab.draw(family, settings.watch_tasks, "watch"), lab.draw(family, settings.tasks, "eval")

    def network(kind: str) -> Any:
        return nets.LanguageModelConfig(settings.transformer(kind), family.vocabulary, family.length, places="none")

    trained = {
        kind: lab.train(
            f"{task}-{kind}", network(kind), family, settings.plan(task, kind), loss=language.recall_loss,
            watch=lambda net: {"loss": float(language.recall_loss(net, shown).detach())},
        )
        for kind in (RECALLING if task == "recall" else KINDS)
    }  # fmt: skip
    trained["untrained"] = lab.untrained(network("softmax"))

    def judged() -> study.Estimates:
        found = {kind: [language.recall_by_sequence(net, fresh) for net in each] for kind, each in trained.items()}
        nats = {("nats", kind): [loss for loss, _ in each] for kind, each in found.items()}
        answered = {("answered", kind): [100 * right.double() for _, right in each] for kind, each in found.items()}
        return study.Estimates.of({**nats, **answered})

    lab.stage(task, judged)
    return trained


def _judge_regression(lab: study.Lab, settings: Recall) -> dict[str, Any]:
    """Squared errors of networks on the last quarter of targets, and of ridge regression on the pairs before each."""
    family = tasks.FewShotSequence(settings.d, settings.pairs, noise=settings.noise, marked=True)
    shown, fresh = lab.draw(family, settings.watch_tasks, "watch"), lab.draw(family, settings.tasks, "eval")
    trained = {
        kind: lab.train(
            f"regression-{kind}",
            nets.SequencePredictorConfig(settings.transformer(kind, regresses=True), settings.d + 1), family,
            settings.plan("regression", kind), loss=training.pair_half_mse,
            watch=lambda net: {"mse": 2 * float(training.pair_half_mse(net, shown).detach())},
        )
        for kind in KINDS
    }  # fmt: skip
    inputs, targets = fresh[:, 0::2, :-1], fresh[:, 1::2, :-1]  # without their marks
    last = slice(3 * settings.pairs // 4, settings.pairs)

    def error(guessed: Any) -> Any:
        return (guessed - targets[:, last]).square().mean((1, 2))

    def judged() -> study.Estimates:
        import torch

        def ridge_regression(factor: float) -> list[Any]:
            known = learners.LeastSquares(factor * settings.d * settings.noise**2)
            found = [known(tasks.Context(inputs[:, :n], targets[:, :n]), inputs[:, n : n + 1])[:, 0]
                     for n in range(last.start, last.stop)]  # fmt: skip
            return [error(torch.stack(found, 1))]

        errors = {
            kind: [error(net(fresh[:, :-1])[:, 0::2][:, last, :-1]) for net in each] for kind, each in trained.items()
        }
        errors |= {name: ridge_regression(factor) for name, factor in RIDGES.items()} | {"nothing": [error(0.0)]}
        return study.Estimates.of({("mse", name): each for name, each in errors.items()})

    lab.stage("regression", judged)
    return trained


def above_log_2(kind: str) -> Reading:
    """Nats above log 2, the optimal loss of a known automaton."""
    return languages["nats", kind] - np.log(2)


def over_ridge(kind: str) -> Reading:
    """Error / error of ridge regression."""
    return regression.ratio(kind, "least-squares")


def _shown(y: str, read: Callable[[str], Reading], kinds: Mapping[str, str] = KINDS) -> study.Lines:
    return study.strip(y, kinds, lambda r: {"": {kind: read(kind)(r) for kind in kinds}})


def _exchanged(transformer: Callable[..., Any]) -> Any:
    """Transformers of the next kind in place of the named one."""
    following = dict(zip(KINDS, [*KINDS][1:] + [*KINDS][:1], strict=True))
    return lambda self, kind, *given, **named: transformer(self, following.get(kind, kind), *given, **named)


def _of_others(drawn: Any) -> Any:
    """Sequences whose targets belong to another sequence."""
    drawn[:, 1::2] = drawn[:, 1::2].roll(1, dims=0)
    return drawn


def _mixed(drawn: Any) -> Any:
    """Words with symbols of many automata: each position comes from another sequence."""
    for place in range(drawn.shape[-1]):
        drawn[:, 0, place] = drawn[:, 0, place].roll(place, 0)
    return drawn


def _all_asked(recall_by_sequence: Callable[..., Any]) -> Any:
    """Losses of all tokens, not of answers alone."""

    def wrong(network: Any, tasks: Any) -> Any:
        every = tasks.clone()
        every[:, 1] = 1
        return recall_by_sequence(network, every)

    return wrong


STUDY = Study(
    name="language-recall",
    source="a yardstick of ours, of tasks by Arora et al. (2023) and Akyurek et al. (2024)",
    presets={
        "quick": Recall(
            cosine_plan(60, 5e-3, batch=8), tasks=50, watch_tasks=8, width=16, pairs=4, keys=8, text=6, words=3, d=3,
            seeds=5,
        ),
        "paper": Recall(tuned=True),
    },
    measure=measure, trainings=17, quantifier="median", claims=(),
    figures=(
        Figure("yardstick", "Networks of each kind, one mark a seed: percent of questions answered, nats above the "
               "optimal loss of a known automaton, and errors over those of ridge regression. All kinds but the first "
               "have states of one size.", (
            _shown("recall: answered (%)", lambda kind: recalled["answered", kind], RECALLING),
            _shown("copying: answered (%)", lambda kind: copied["answered", kind]),
            _shown("languages: nats above log 2", above_log_2),
            _shown("regression: error / least squares", over_ridge),
        ), columns=2, size=(11, 6.4), claims=(
            Claim("solved", "softmax without a window has a loss below 0.3 nats per answer on recall and copying",
                  beside([recalled["nats", "softmax"], copied["nats", "softmax"]], "nats per answer, each task"),
                  below(0.3), ours("premise: a network that attends to all tokens can answer")),
            Claim("chance", "untrained networks have an accuracy below 10 % on recall and copying",
                  beside([recalled["answered", "untrained"], copied["answered", "untrained"]],
                         "percent answered, each task"), below(10.0), ours("a null control"), premises=SOLVED),
            Claim("finds", "layers with a matrix state have an accuracy above 25 % on recall, where the best guess "
                  "among values not yet asked for has 20 %",
                  beside([recalled["answered", kind] for kind in MATRICES], "percent answered, each kind"), above(25.0),
                  ours("premise"), premises=SOLVED),
            Claim("regressed", "the error of layers with a matrix state is less than half of that of predicting 0",
                  beside([regression.ratio(kind, "nothing") for kind in MATRICES], "error / of predicting 0, each "
                         "kind"), below(0.5), ours("premise")),
            Claim("spoken", "on unknown automata, layers with a matrix state have less than a quarter of the excess "
                  "loss of untrained networks over log 2, the optimum for a known automaton",
                  beside([above_log_2(kind) / above_log_2("untrained") for kind in MATRICES],
                         "nats above log 2 / those of untrained networks, each kind"), below(0.25), ours("premise")),
            Claim("symbols", "on unknown automata, layers of each kind have a smaller loss than uniform guesses of a "
                  "symbol, log 8 = 2.08 nats",
                  beside([languages["nats", kind] for kind in KINDS], "loss in nats per answer, each kind"),
                  below(float(np.log(8))), ours("control: symbols of an automaton recur")),
            Claim("ridge", "the squared error of ridge regression is larger than the variance of the noise, 0.01, and "
                  "smaller than half of the variance of targets, 1", regression["mse", "least-squares"],
                  study.Bound(0.01, 0.5), ours("control: targets can be learned and are not in the context"),
                  quantifier="every", over="algorithms"),
            Claim("ridge-at-its-optimum", "ridge regression with a fifth and with five times the ridge has at least "
                  "0.995 times its error",
                  beside([regression.ratio(name, "least-squares") for name in [*RIDGES][1:]],
                         "error with each other ridge / of ridge regression"), above(0.995), ours("premise"),
                  quantifier="every", over="algorithms"),
            Claim("own-kind", "control: all layers of each network are of the kind that it is judged as",
                  beside([stage("kinds")[f"{task} {kind}"] for task in RATES for kind in KINDS],
                         "share of layers of the network's kind, each task and kind"), above(0.999),
                  ours("control: names of networks"), quantifier="exact", exact_because="layers are counted",
                  about="algorithms"),
            Claim("out-of-sight", "softmax layers with a window of eight tokens have an accuracy below 10 % on recall",
                  recalled["answered", "window"], below(10.0), ours("a control: the task needs a memory"),
                  premises=SOLVED),
            Claim("delta-recalls", "a delta layer has a higher accuracy on recall than a linear layer with a state of "
                  "the same size",
                  recalled.difference("delta", "linear", "answered"), above(0.0), ours("Yang et al. (2024)"),
                  premises=FOUND),
            Claim("mesa-recalls", "a mesa layer has a higher accuracy on recall than a linear layer with a state of "
                  "the same size",
                  recalled.difference("mesa", "linear", "answered"), above(0.0), ours("von Oswald et al. (2025)"),
                  premises=FOUND),
            Claim("mesa-solves", "a mesa layer's error is less than 1.5 times that of ridge regression",
                  over_ridge("mesa"), below(1.5), ours("what the layer computes"),
                  premises=("regressed", "ridge-at-its-optimum")),
            Claim("mesa-regresses", "a mesa layer's error is smaller than that of a linear and of a delta layer",
                  beside([over_ridge(kind) - over_ridge("mesa") for kind in OTHERS], "error / ridge regression's: each "
                         "kind - mesa"), above(0.0), ours("what the layer computes"),
                  premises=("regressed",)),
            Claim("mesa-languages", "on unknown automata, a mesa layer has a smaller loss than a linear and a delta "
                  "layer",
                  beside([above_log_2(kind) - above_log_2("mesa") for kind in OTHERS], "nats less than linear and "
                         "delta, each kind"), above(0.0), ours("Akyurek et al. (2024)"), premises=("spoken",)),
        )),
    ),
    mutations=(
        Mutation("kinds of layers are exchanged", f"{__name__}:Recall.transformer", _exchanged, anew=True),
        Mutation("targets are those of other sequences", "mesascope.tasks:FewShotSequence.sample",
                 returning(_of_others)),
        Mutation("pairs of a sequence are equal", "mesascope.tasks:FewShotSequence.sample", one_pair),
        Mutation("ridges of ridge regression are a thousand times as large", f"{__name__}:RIDGES",
                 lambda ridges: {name: 1000 * factor for name, factor in ridges.items()}),
        Mutation("all tokens are judged", "mesascope.language:recall_by_sequence", _all_asked),
        Mutation("words are of many automata", "mesascope.tasks:Automata.sample", returning(_mixed)),
    ),
    mutated={"training": cosine_plan(60, 1e-2, batch=8), "seeds": 8, "tasks": 100, "pairs": 6},
)  # fmt: skip
