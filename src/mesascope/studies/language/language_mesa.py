"""Are small language models better with layers that solve least squares than with linear attention?

Thesis: section 3.5.3. The first layer is softmax attention, which can copy the previous token. The layers after it are
softmax, linear, delta or mesa. All have equal parameter counts, except for gates, ridges and scales. Single-layer
networks have no such first layer; their keys are computed from the previous token instead (`key_shift`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from mesascope import language, study
from mesascope.errors import refuse
from mesascope.studies.language import bugs, measuring
from mesascope.studies.language.measuring import loss, over_octave, reach, score
from mesascope.study import Claim, Count, Figure, Line, Lines, Reading, Study, Training, above, below, beside, ours

SECTION, FIGURE = study.printed("section 3.5.3"), study.printed("Fig. 3.7")
# Kinds of the layers after the first, with a role and a name to show.
KINDS = {
    "softmax": ("gd", "softmax"), "linear": ("other", "linear"), "delta": ("interpolated", "delta"),
    "mesa": ("trained", "mesa"), "mesa-gates": (0.8, "mesa with forget gates"),
}  # fmt: skip
HYBRIDS = [kind for kind in KINDS if kind != "softmax"]
# Networks by name: layers, and width of the MLP relative to the token, or None without MLPs.
SIZES = {"two": ("softmax, {0}", None), "four": ("softmax, {0}*3", 4)}
ALONE = ("linear", "mesa")
NUS = (0, 1, 2, 3)
FORMER = "undecided, while its premise reads was about all kinds"  # narrowed to softmax with results known
ALONE_LEARNED = ("alone-learned", "alone-reads")
# Learning rates for each kind at width 64, and for single layers by nu: the best of those tried on other windows, after
# 300 to 400 steps. Forget gates train at the rate of their layer.
RATES: dict[str, dict[str, float]] = {
    "two": {"softmax": 0.024, "linear": 0.024, "delta": 0.012, "mesa": 0.012, "mesa-gates": 0.012},
    "four": {"softmax": 0.024, "linear": 0.024, "delta": 0.024, "mesa": 0.012, "mesa-gates": 0.012},
    "alone": {
        "softmax": 0.024, "linear 0": 0.096, "linear 1": 0.192, "linear 2": 0.192, "linear 3": 0.192,
        "mesa 0": 0.096, "mesa 1": 0.192, "mesa 2": 0.192, "mesa 3": 0.096,
    },
}  # fmt: skip


@study.frozen
class LanguageMesa:
    training: Training = Training(
        700, 16, learning_rate=6e-3, schedule="cosine", warmup_steps=70, decay_from=0.0, final_rate=0.1,
        optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0, evaluate_every=100,
    )  # fmt: skip
    """Training of the networks; the batch size is in windows."""
    accumulate: Count = 1  # Parts of a batch that run one after the other.
    autocast: Literal["none", "bfloat16"] = "none"  # Precision of activations while training.
    tuned: bool = False  # Train each kind at its own learning rate, tuned at width 64, times 64 / width.
    seeds: Count = 3  # Networks of each kind, one per seed.
    corpus: str = ""  # Folder that mesascope language prepare wrote; the sources of Python's standard library if empty.
    part: str = ""  # Folder of the standard library to read; all if empty.
    tokenizer: str = "bytes"  # Tokens of the standard library: bytes, or bpe:VOCABULARY to train byte pairs on it.
    validation: study.Share = 0.05  # Share of the standard library's files for validation.
    width: Count = 64  # Width of a token.
    n_heads: Count = 4  # Heads of a layer.
    context: Annotated[int, msgspec.Meta(ge=32)] = 256  # Tokens of a window.
    dpfp: study.Whole = 1  # Nu of the features of keys and queries, except in softmax and single layers.
    windows: Count = 1024  # Validation windows for judging networks, twice as long as the context.
    watch_windows: Count = 32  # Windows for evaluations during training.

    def __post_init__(self) -> None:
        if self.training.batch % self.accumulate:
            refuse("accumulate", f"divide the batch of {self.training.batch}", self.accumulate, "pass a divisor")

    def text(self, length: int, split: Literal["train", "validation"] = "train") -> language.TextWindows:
        """Windows of the corpus; tokens of the standard library are prepared if missing."""
        folder = str(Path(self.corpus).resolve()) if self.corpus else measuring.library(self)
        return language.TextWindows(folder, length, split, language.open_corpus(folder).checksum)

    def network(self, layers: str, vocabulary: int, **options: Any) -> Any:
        """Config of a language model whose ridges do not decay; rotary positions are the default."""
        sizes = {"width": self.width, "n_heads": self.n_heads, "dpfp": self.dpfp}
        usual: dict[str, Any] = {**sizes, "tied": True, "positions": "rotary"}
        config = language.language_model_config(layers, vocabulary, self.context, **usual | options)
        heads = tuple(replace(own, ridge_kind="constant") for own in config.transformer.each_heads)
        return replace(config, transformer=replace(config.transformer, heads=heads))

    def plan(self, size: str, kind: str) -> Training:
        rate = RATES[size][kind] * 64 / self.width
        return replace(self.training, learning_rate=rate) if self.tuned else self.training

    def bands(self) -> dict[str, slice]:
        """Ranges of tokens for mean losses, by name; early and late surround the tokens of the in-context score."""
        whole = self.context
        return {
            "loss": slice(whole), "early": slice(whole // 32, whole // 16),
            "late": slice(3 * whole // 8, 5 * whole // 8), "end": slice(whole // 2, whole),
        }  # fmt: skip


def measure(lab: study.Lab, settings: LanguageMesa) -> None:
    from mesascope.language.learning import AUTOCAST

    length = settings.context + 1
    windows = settings.text(length)
    watched = settings.text(length, "validation").spread(settings.watch_windows).to(lab.device)
    judged = measuring.spread(settings.text(2 * length - 1, "validation"), settings.windows).to(lab.device)
    vocabulary = windows.corpus.index.vocabulary
    network = functools.partial(settings.network, vocabulary=vocabulary)
    lab.stage("pairs", measuring.pair_frequencies, windows.corpus, judged)
    lab.stage("seen", measuring.seen, windows.corpus, judged)
    silent = network("softmax").build(lab.stream("silent")).to(lab.device)
    lab.stage("uniform", measuring.uniform, silent, judged[:8], vocabulary)

    parts: dict[str, Any] = {"accumulate": settings.accumulate, "autocast": AUTOCAST[settings.autocast]}
    groups: dict[str, dict[str, list[Any]]] = {size: {} for size in (*SIZES, "alone")}

    def train(size: str, kind: str, layers: str, **options: Any) -> None:
        name, plan = f"{size}-{kind.replace(' ', '-')}", settings.plan(size, kind)
        groups[size][kind] = lab.train(
            name, network(layers, **options), windows, plan, loss=language.next_token_loss,
            watch=lambda net: {"loss": float(language.token_losses(net, watched).mean())}, **parts,
        )  # fmt: skip

    for size, (layers, mlp) in SIZES.items():
        for kind in KINDS:
            train(size, kind, layers.format(kind.removesuffix("-gates")), mlp=mlp, forget=kind.endswith("-gates"))
    shifted: dict[str, Any] = {"key_shift": True, "positions": "none"}
    for kind, nu in itertools.product(ALONE, NUS):
        train("alone", f"{kind} {nu}", kind, dpfp=nu, **shifted)
    train("alone", "softmax", "softmax", **shifted)
    for size, members in groups.items():
        losses = functools.cache(functools.partial(measuring.token_losses, members, judged))
        lab.stage(size, measuring.banded, losses, settings.bands(), members, judged, settings.context)
        lab.stage(f"{size} by token", measuring.by_token, losses)
    copying = {**groups["two"], "untrained": lab.untrained(network("softmax, mesa"))}
    lab.stage("copying", measuring.copying, copying, judged[:, : settings.context])


# Readings of networks by their size and name


def _fall(size: str, name: str) -> Reading:
    """Fall of the loss from early tokens to the second half of the context."""
    return loss(size, name, "early") - loss(size, name, "end")


def _less(kind: str, other: str, band: str = "loss") -> list[Reading]:
    """Loss of ``other`` minus loss of ``kind`` (nats), one reading per size."""
    return [loss(size, other, band) - loss(size, kind, band) for size in SIZES]


def _alone_less(read: Callable[..., Reading], *band: str) -> list[Reading]:
    """A reading of one linear layer minus that of one mesa layer, one per nu."""
    return [read("alone", f"linear {nu}", *band) - read("alone", f"mesa {nu}", *band) for nu in NUS]


def _head(where: str, kind: str) -> Reading:
    """Attention weight ``where`` of the first-layer head that attends most to the previous token."""
    return study.stage("copying", before="weight on the token before")[where, kind]


def _copies(id: str, sentence: str, kinds: Iterable[str]) -> Claim:
    """Claim that a head of the first layer attends to the previous token, in two-layer networks of these kinds."""
    beyond = [_head("before", kind) - 0.3 for kind in kinds]
    beyond += [_head("before", kind) - _head("elsewhere", kind) for kind in kinds]
    words = "weight on the previous token - 0.3; - the largest on the token itself and those two and three before"
    return Claim(id, f"{sentence} gives the previous token more than 0.3 of its attention, and more than the token "
                 "itself or those two and three before",
                 beside(beyond, words), above(0.0), ours("Fig. 3.9 shows heads of several offsets"),
                 premises=("learned", "untrained-copies"), former="printed, failed")  # fmt: skip


SCORES = [score(size, "linear") - score(size, "mesa") for size in SIZES]
FALLS = [_fall(size, "mesa") - _fall(size, "softmax") for size in SIZES]
ON_WINDOWS: dict[str, Any] = {
    "quantifier": "exact", "exact_because": "losses on the same windows are compared", "premises": (),
    "about": "algorithms",
}  # fmt: skip
BELOW_LINEAR = "nats per token below linear"
SCORE_AND_LATE = "linear - mesa, nats per token: of the in-context score, and of the loss at 3/8 to 5/8 of the context"


def _of_bigrams(networks: Iterable[tuple[str, str]]) -> Reading:
    frequencies = study.stage("pairs")["frequencies"]
    return beside([loss(*one) / frequencies for one in networks], "loss / of the bigram model, each network")


def _learned(id: str, sentence: str, networks: Iterable[tuple[str, str]]) -> Claim:
    return Claim(id, sentence, _of_bigrams(networks), below(1.0), ours("premise"), premises=())


FORMER_READS = "of every network, and of later tokens beside earlier ones: undecided"


def _reads(id: str, sentence: str, sizes: Iterable[str], learned: str) -> Claim:
    words = "loss with the shortened context - with the whole, nats per token, each network of softmax"
    gains = beside([reach(size, "softmax") for size in sizes], words)
    return Claim(id, sentence, gains, above(0.0), ours("premise"), premises=(learned,), former=FORMER_READS)


# Panels


def _training(size: str) -> list[Line]:
    """Losses while training, after the first evaluation."""
    runs, later = {kind: study.stage(f"{size}-{kind}") for kind in KINDS}, (..., slice(1, None))
    return [Line(run["step"].at(later, ""), run["loss"].at(later, ""), *KINDS[kind]) for kind, run in runs.items()]


def _by_token(size: str) -> list[Line]:
    found = study.stage(f"{size} by token")
    middles = found["mesa"].map(lambda losses: 2.0 ** (np.arange(losses.shape[1]) + 0.5), "tokens read")
    return [Line(middles, found[kind], *shown) for kind, shown in KINDS.items()]


def _by_nu(read: Callable[..., Reading], y: str) -> Lines:
    softmax = read("alone", "softmax").map(lambda numbers: np.repeat(numbers[:, None], len(NUS), 1), "softmax")
    each = {kind: beside([read("alone", f"{kind} {nu}") for nu in NUS], kind) for kind in ALONE}
    lines = [Line(NUS, own, *KINDS[kind], marks="o-") for kind, own in each.items()]
    return Lines("", "nu", y, [Line(NUS, softmax, *KINDS["softmax"]), *lines], limits={"xticks": NUS})


def _heads(where: str, y: str) -> Lines:
    kinds = {kind: kind for kind in (*KINDS, "untrained")}
    return study.strip(y, kinds, lambda r: {"": {kind: _head(where, kind)(r) for kind in kinds}})


OTHER_SOFTMAX = ours("Fig. 3.7, whose softmax has learned positions, is another claim")
BOTH_SIZES = [(size, kind) for size in SIZES for kind in KINDS]


NARROW = "Features have nu = 1 in place of 3, but in single layers, which have each nu."
# Deviations of every preset.
ALWAYS = (
    "Softmax layers have rotary positions, and other layers and single layers have none, where the thesis adds learned "
    "positions to tokens: the networks can read texts longer than those that they were trained on.",
    "The output of each head of a layer other than softmax is divided by its norm.",
    "The in-context score compares means over the tokens around the two that the thesis compares.",
    "Logits are products with the embedding, and there is no dropout. MLPs have GELU in place of ReLU.",
    "All kinds of layer have as many parameters, but states of different sizes: a mesa layer's has three times the "
    "numbers.",
)
UNLIKE = dict.fromkeys(
    ("quick", "small", "medium"), "100,000 steps of 256 windows of 1,024 tokens of the Pile at width 768"
)
STUDY = Study(
    name="language-mesa",
    source="von Oswald's thesis, section 3.5.3",
    presets={
        "quick": LanguageMesa(
            Training(60, 4, learning_rate=1e-2, schedule="cosine", clip=1.0, optimizer="adamw", evaluate_every=30),
            part="asyncio", validation=0.25, width=16, n_heads=2, windows=64, watch_windows=8,
        ),
        "paper": LanguageMesa(
            Training(
                100_000, 256, learning_rate=3e-4, schedule="cosine", warmup_steps=8000, decay_from=0.0,
                final_rate=2 / 3, optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0,
                evaluate_every=1000, checkpoint_every=1000,
            ),
            accumulate=32, autocast="bfloat16", corpus="pile", width=768, n_heads=12, context=1024, dpfp=3,
            watch_windows=64,
        ),
        "small": LanguageMesa(tuned=True, windows=2500),
        # With byte pairs, two softmax layers gain 0.05 nats per token from beyond the last 1/8 to 1/4 of the context.
        "medium": LanguageMesa(
            Training(
                1200, 16, schedule="cosine", warmup_steps=120, decay_from=0.0, final_rate=0.1, optimizer="adamw",
                betas=(0.9, 0.95), weight_decay=0.1, clip=1.0, evaluate_every=120,
            ),
            tuned=True, tokenizer="bpe:1024", validation=0.2, width=128, windows=3600,
        ),
    },
    measure=measure, trainings=19, premises=("learned", "reads"), at_least=3, claims=(),
    figures=(
        Figure("losses", "Validation loss while training, of two layers without and four layers with MLPs, after the "
               "first steps; line and band: mean and range over seeds. Thesis: section 3.5.3.", (
            Lines("two layers", "training step", "nats per token", _training("two")),
            Lines("four layers", "training step", "nats per token", _training("four")),
        ), shared_legend=True, claims=(
            _learned("learned", "networks of two and four layers have a smaller loss than the bigram model",
                     BOTH_SIZES),
            Claim("plausible", "the loss of each network of two and four layers is 0.4 to 1.7 times that of the bigram "
                  "model", _of_bigrams(BOTH_SIZES), study.Bound(0.4, 1.7),
                  ours("control: losses are in nats, of next tokens"), premises=()),
            Claim("uniform-loss", "control: a network whose weights are all 0 has a loss within 0.1 % of the "
                  "logarithm of the vocabulary's size",
                  study.stage("uniform")["loss"], study.two_sided(1e-3, around=1.0),
                  ours("control: losses are in nats"), **ON_WINDOWS | {"over": "algorithms", "at_least": 1}),
            Claim("unseen-text", "control: fewer than a quarter of a sample of 64 judged windows begin with 64 "
                  "tokens that occur in the first 10 million of the training text",
                  study.stage("seen", percent="percent of windows")["percent"],
                  study.below(25.0), ours("control: judged texts are new"),
                  **ON_WINDOWS | {"over": "algorithms", "at_least": 1}),
            Claim("below-linear", "each hybrid with mesa layers has a smaller loss than that with linear layers, at "
                  "each size", beside(_less("mesa", "linear"), BELOW_LINEAR), above(0.0), SECTION, former=FORMER),
            Claim("delta-below-linear", "each hybrid with delta layers has a smaller loss than that with linear "
                  "layers, at each size", beside(_less("delta", "linear"), BELOW_LINEAR), above(0.0),
                  ours("Schlag, Irie and Schmidhuber (2021)"), former=FORMER),
            Claim("near-softmax", "with two layers the loss of each mesa network is at most 0.03 nats per token above "
                  "that of softmax", loss("two", "mesa") - loss("two", "softmax"), below(0.03), SECTION, former=FORMER),
            Claim("forgetting-helps", "each network with forget gates has a smaller loss than that without, both with "
                  "a constant ridge", beside(_less("mesa-gates", "mesa"), "nats per token below mesa"), above(0.0),
                  ours("gates, which the thesis does not study"), former=FORMER),
        )),
        Figure("context", "Loss by the number of tokens read, up to twice the trained context; line and band: mean and "
               "range over seeds.", (
            Lines("two layers", "tokens read", "nats per token", _by_token("two"), "x"),
            Lines("four layers", "tokens read", "nats per token", _by_token("four"), "x"),
        ), shared_legend=True, claims=(
            Claim("better-score", "the loss at 3/8 to 5/8 of the context, and its excess over the loss at 1/32 to "
                  "1/16 (in-context score), are smaller for each hybrid with mesa layers than for that with linear "
                  "layers", beside([*SCORES, *_less("mesa", "linear", "late")], SCORE_AND_LATE), above(0.0), SECTION,
                  former=FORMER),
            Claim("late-below-early", "control: softmax has a smaller loss at 3/8 to 5/8 of the context than at 1/32 "
                  "to 1/16",
                  beside([score(size, "softmax").map(study.nominal, "") for size in SIZES], "in-context score (nats)"),
                  below(0.0), ours("control: sign of the in-context score"), **ON_WINDOWS),
            Claim("cut-as-long", "control: losses on tokens after an eighth to a quarter of the context are within 3 % "
                  "of each other in cut texts and at the beginnings of texts",
                  beside([over_octave(*one) for one in BOTH_SIZES], "loss in cut texts / at the beginning, each "
                         "network"), study.two_sided(0.03), ours("control: all losses have one scale"), **ON_WINDOWS),
            Claim("falls-as-far", "hybrids with mesa layers are at most 0.02 nats per token worse than softmax, in the "
                  "loss on the second half of the context and in its fall from early tokens to that half",
                  beside([*FALLS, *_less("mesa", "softmax", "end")], "nats below softmax: of the fall from early "
                         "tokens to the second half of the context, and of the loss there"), above(-0.02),
                  ours("what a state of fixed size could cost"), former=FORMER),
            Claim("gap-remains", "softmax has a smaller loss on the second half of the context than hybrids with mesa "
                  "layers, at each size",
                  beside([loss(size, "mesa", "end") - loss(size, "softmax", "end") for size in SIZES],
                         "nats per token of mesa above softmax"), above(0.0), study.printed("Fig. 3.6, caption")),
        )),
        Figure("reach", "Gain of the second half of the context from text further back than an eighth of it; one mark "
               "per seed.", (
            study.strip("nats per token gained", {kind: kind for kind in KINDS},
                        lambda r: {f"{size} layers": {kind: reach(size, kind)(r) for kind in KINDS} for size in SIZES}),
        ), size=(6.5, 3.2), claims=(
            _reads("reads", "with two and four layers, the loss of softmax on the second half of the context is "
                   "larger if each token reads only the preceding eighth to quarter of the context", SIZES, "learned"),
        )),
        Figure("copying", "Attention, on text, of the first layer's head that looks most at the token before. Left: "
               "weight on that token; right: the largest weight on the token itself or on those two and three before "
               "it; by the kind of the second layer, one mark a seed.", (
            _heads("before", "weight on the token before"),
            _heads("elsewhere", "weight near it elsewhere"),
        ), size=(11, 3.2), claims=(
            _copies("copies", "in each network of two softmax layers, a head of the first layer", ["softmax"]),
            _copies("hybrids-copy", "in each hybrid, a head of the first layer (softmax)", HYBRIDS),
            Claim("untrained-copies", "in untrained networks no head gives the token before a tenth of its attention",
                  _head("before", "untrained"), below(0.1), ours("a null control"), former=FORMER),
        )),
        Figure("alone", "Loss and in-context score of one layer behind a shift of its keys, by nu of its features; "
               "line and band: mean and range over seeds. Thesis: Fig. 3.7.", (
            _by_nu(loss, "nats per token"),
            _by_nu(score, "in-context score (nats)"),
        ), shared_legend=True, claims=(
            _learned("alone-learned", "networks of one layer have a smaller loss than the bigram model",
                     [*(("alone", f"{kind} {nu}") for kind in ALONE for nu in NUS), ("alone", "softmax")]),
            _reads("alone-reads", "the loss of a single softmax layer on the second half of the context is larger if "
                   "each token reads only the preceding eighth to quarter of the context", ["alone"], "alone-learned"),
            Claim("alone-below-linear", "behind shifted keys, a single mesa layer has a smaller loss than a linear "
                  "one, at each nu",
                  beside(_alone_less(loss), BELOW_LINEAR), above(0.0), FIGURE, premises=ALONE_LEARNED,
                  former="undecided with -0.022, before learning rates were searched again"),
            Claim("alone-better-score", "behind shifted keys, the loss at 3/8 to 5/8 of the context, and its excess "
                  "over the loss at 1/32 to 1/16 (in-context score), are smaller for a single mesa layer than for a "
                  "linear one", beside([*_alone_less(score), *_alone_less(loss, "late")], SCORE_AND_LATE), above(0.0),
                  FIGURE, premises=ALONE_LEARNED),
            Claim("features-help", "behind shifted keys, single linear and mesa layers have a smaller loss with the "
                  "largest features than with the smallest",
                  beside([loss("alone", f"{kind} {NUS[0]}") - loss("alone", f"{kind} {NUS[-1]}") for kind in ALONE],
                         "nats per token by which features lower the loss"), above(0.0), SECTION,
                  premises=ALONE_LEARNED, former="derived, of mesa layers alone, undecided"),
            Claim("alone-catches-up", "with most features, the in-context score of a single mesa layer is at most 0.03 "
                  "nats a token above that of softmax", score("alone", f"mesa {NUS[-1]}") - score("alone", "softmax"),
                  below(0.03), OTHER_SOFTMAX, premises=ALONE_LEARNED, former="printed, failed"),
            Claim("alone-near-softmax", "with most features, the loss of a single mesa layer is at most 0.03 nats a "
                  "token above that of softmax",
                  loss("alone", f"mesa {NUS[-1]}") - loss("alone", "softmax"), below(0.03), OTHER_SOFTMAX,
                  premises=ALONE_LEARNED, former="printed, and undecided with 0.485 [0.447, 0.522] beside softmax with "
                  "learned positions"),
        )),
    ),
    unlike=UNLIKE,
    deviations={
        "small": (NARROW, *ALWAYS),
        "medium": (NARROW, "Learning rates are those tuned at width 64, halved at twice the width.", *ALWAYS),
        "paper": ALWAYS,
    },
    mutations=(bugs.BITS, bugs.LOW, bugs.RAW, bugs.SUMMED, bugs.OPPOSITE, bugs.UNSHIFTED, bugs.TRAINING_TEXT),
    mutated={
        "training": Training(30, 4, learning_rate=2e-2, schedule="cosine", clip=1.0, optimizer="adamw"),
        "validation": 0.4, "context": 64, "windows": 600, "watch_windows": 2,
    },
)  # fmt: skip
