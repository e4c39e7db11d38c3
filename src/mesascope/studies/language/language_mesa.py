"""Do layers that solve least squares make better small language models than linear ones?

Thesis: section 3.5.3. A first layer of softmax copies the token before; those after it are softmax, linear, delta or
mesa, with as many parameters. One layer by itself stands behind a shift of its keys, by hand, in place of that copy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mesascope.errors import require_count, require_instance
from mesascope.evidence import Arrays, Claim, above, below, ours, printed
from mesascope.records import register
from mesascope.reports import Figure, Line, Lines
from mesascope.studies.common import by_method
from mesascope.studies.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.language import TextWindows
    from mesascope.studies.lab import Lab

THESIS = "von Oswald's thesis"
SECTION = "section 3.5.3"
# Kinds of the layers after the first, with a name and a role to show.
KINDS = {
    "softmax": ("softmax", "gd"), "linear": ("linear", "other"), "delta": ("delta", "interpolated"),
    "mesa": ("mesa", "trained"),
}  # fmt: skip
# Networks by their names: layers, and whether they have MLPs.
SIZES = {"two": ("softmax, {0}", False), "four": ("softmax, {0}*3", True)}
ALONE = ("linear", "mesa")
NUS = (0, 1, 2, 3)


@dataclass(frozen=True)
class LanguageMesa:
    """Settings of the study."""

    training: Training = field(
        default_factory=lambda: Training(
            1500, 16, learning_rate=2e-3, schedule="cosine", warmup_steps=150, decay_from=0.0, final_rate=0.1,
            optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0, evaluate_every=100,
        )
    )  # fmt: skip
    """How networks train; a batch is of windows."""
    seeds: int = 3
    """Networks trained of each kind, one a seed."""
    corpus: str = ""
    """Folder that mesascope language prepare wrote; the sources of Python's standard library if empty."""
    part: str = ""
    """Folder of the standard library that is read; all if empty."""
    width: int = 64
    """Of a token."""
    n_heads: int = 4
    """Of a layer."""
    context: int = 256
    """Tokens of a window."""
    windows: int = 128
    """Windows of other documents that networks are judged on, twice as long as the context."""
    watch_windows: int = 16
    """Windows of an evaluation while training."""

    def __post_init__(self) -> None:
        for name in ("seeds", "width", "n_heads", "windows", "watch_windows"):
            require_count(name, getattr(self, name))
        require_count("context", self.context, least=20)
        for name in ("corpus", "part"):
            require_instance(name, getattr(self, name), str)

    def text(self, length: int, split: str = "train") -> TextWindows:
        """Windows of the corpus, which is prepared where it is not there."""
        from mesascope.language import TextWindows, open_corpus

        folder = str(Path(self.corpus).resolve()) if self.corpus else _library(self.part)
        return TextWindows(folder, length, split, open_corpus(folder).checksum)

    def network(self, layers: str, vocabulary: int, constant: bool = False, **options: Any) -> Any:
        """A language model whose layers know no places but by turned keys, so that texts may be of any length.

        Args:
            constant: whether ridges do not decay, with gates or without.
        """
        from mesascope.language import layered

        usual: dict[str, Any] = {"width": self.width, "n_heads": self.n_heads, "positions": "rotary", "tied": True}
        config = layered(layers, vocabulary, self.context, **usual | options)
        if not constant:
            return config
        heads = tuple(replace(own, ridge_kind="constant") for own in config.transformer.each_heads)
        return replace(config, transformer=replace(config.transformer, heads=heads))


def _library(part: str) -> str:
    """The folder of the standard library's tokens, in the cache."""
    from mesascope.data.files import cache_folder
    from mesascope.language import prepare
    from mesascope.language.documents import standard_library
    from mesascope.language.shards import INDEX

    version = ".".join(map(str, sys.version_info[:3]))
    folder = cache_folder() / "texts" / "-".join(["python", version, *([part] if part else []), "bytes"])
    if not (folder / INDEX).exists():
        prepare(standard_library(part), folder, validation=0.05)
    return str(folder)


class _Text(NamedTuple):
    """Windows to train on, those of other documents to watch while training, and those to judge by, twice as long."""

    windows: TextWindows
    watched: Any
    judged: Any


def measure(lab: Lab, settings: LanguageMesa) -> None:
    """Train every network on the same windows, and judge them on the same other documents."""
    text = _Text(
        settings.text(settings.context + 1),
        settings.text(settings.context + 1, "validation").first(settings.watch_windows).to(lab.device),
        settings.text(2 * settings.context + 1, "validation").first(settings.windows).to(lab.device),
    )
    lab.stage("unigram", lambda: Arrays({"frequencies": _unigram(text)}, frequencies=""))
    by_size = {
        size: {
            kind: _trained(lab, settings, text, f"{size}-{kind}", layers.format(kind), mlp=4 if with_mlps else None)
            for kind in KINDS
        }
        for size, (layers, with_mlps) in SIZES.items()
    }
    gated = {
        name: _trained(lab, settings, text, f"mesa-{name}", "softmax, mesa", forget=name == "forget", constant=True)
        for name in ("forget", "constant")
    }
    alone = {
        f"{kind} {nu}": _trained(lab, settings, text, f"alone-{kind}-{nu}", kind, key_shift=True, dpfp=nu)
        for kind in ALONE
        for nu in NUS
    }
    for stage, groups in {**by_size, "gates": gated, "alone": alone}.items():
        lab.stage(stage, lambda groups=groups: _judged(settings, groups, text))
    untrained = [
        settings.network("softmax, mesa", text.windows.corpus.index.vocabulary).build(lab.stream("untrained", index))
        for index in range(settings.seeds)
    ]
    lab.stage("copying", lambda: _copying({**by_size["two"], "untrained": untrained}))


def _trained(lab: Lab, settings: LanguageMesa, text: _Text, name: str, layers: str, **options: Any) -> list[Any]:
    from mesascope.language import next_token_loss, token_losses

    return lab.train(
        name, settings.network(layers, text.windows.corpus.index.vocabulary, **options), text.windows,
        settings.training, loss=next_token_loss,
        watch=lambda net: {"loss": float(token_losses(net, text.watched).mean())},
    )  # fmt: skip


def _judged(settings: LanguageMesa, groups: Mapping[str, Sequence[Any]], text: _Text) -> dict[str, Any]:
    """Losses up to the trained context, in-context scores, and losses by token up to twice that context."""
    from mesascope.language import in_context_score, losses_by_octave, token_losses

    arrays: dict[str, Any] = {}
    for name, members in groups.items():
        losses = [token_losses(net, text.judged).double().cpu() for net in members]
        inside = [own[:, : settings.context] for own in losses]
        arrays[name] = [float(own.mean()) for own in inside]
        arrays[f"{name} score"] = [in_context_score(own).value for own in inside]
        arrays[f"{name} early"] = [float(own[:, 3:7].mean()) for own in inside]
        arrays[f"{name} late"] = [float(own[:, settings.context // 2 :].mean()) for own in inside]
        arrays[f"{name} by token"] = [list(losses_by_octave(own.mean(0)).values()) for own in losses]
    return arrays


def _unigram(text: _Text) -> np.ndarray:
    """What who knows the frequencies of tokens alone loses on the tokens that networks are judged on, in nats each."""
    corpus, judged = text.windows.corpus, text.judged.cpu().numpy()
    parts = [np.bincount(part, minlength=corpus.index.vocabulary) for part in corpus["train"]]
    shares = np.sum(parts, axis=0) + 1
    held = np.bincount(judged[:, 1 : judged.shape[1] // 2 + 1].ravel(), minlength=len(shares))
    return np.array(-(held * np.log(shares / shares.sum())).sum() / held.sum())


def _copying(groups: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The largest weight that a head of the first layer puts on the token before, over that of one that looks alike."""
    from mesascope.language import head_scores

    scores = {name: [head_scores(net) for net in members] for name, members in groups.items()}
    return {name: [float(own.copying[0].max()) / own.uniform[0] for own in each] for name, each in scores.items()}


def _less(kind: str, other: str, suffix: str = "") -> Any:
    """By how much one is below another, by seed and size."""
    return lambda r: np.stack([r[size][f"{other}{suffix}"] - r[size][f"{kind}{suffix}"] for size in SIZES], axis=1)


def _fall(r: Any, size: str, kind: str) -> np.ndarray:
    """From the fourth to the seventh token to the second half of the trained context."""
    return r[size][f"{kind} early"] - r[size][f"{kind} late"]


def _all(r: Any) -> np.ndarray:
    """Losses of all networks, by seed and network."""
    return np.stack([r[size][kind] for size in SIZES for kind in KINDS], axis=1)


def _alone(r: Any) -> np.ndarray:
    return np.stack([r["alone"][f"{kind} {nu}"] for kind in ALONE for nu in NUS], axis=1)


LEARNED = ("learned",)
ALIKE = ("learned", "early-alike")
CLAIMS = (
    Claim(
        "learned", "networks of two and four layers predict better than the frequencies of tokens",
        "loss / of the frequencies: mean over seeds of each kind and size", ours("premise"),
        lambda r: _all(r) / r["unigram"]["frequencies"], below(0.9), quantifier="mean", at_least=3,
    ),
    Claim(
        "alone-learned", "and so do single layers", "loss / of the frequencies: mean over seeds of each kind and nu",
        ours("premise"), lambda r: _alone(r) / r["unigram"]["frequencies"], below(0.97), quantifier="mean", at_least=3,
    ),
    Claim(
        "early-alike", "mesa is no worse early in a text than linear and softmax, where its loss would fall further",
        "nats above them at tokens 4 to 7: mean over seeds of each size", ours("premise"),
        lambda r: -np.concatenate([_less("mesa", other, " early")(r) for other in ("linear", "softmax")], axis=1),
        below(0.05), quantifier="mean", at_least=3, premises=LEARNED,
    ),
    Claim(
        "below-linear", "hybrids with mesa layers lose less than those with linear layers, at each size",
        "nats a token below linear: mean over seeds of each size", printed(SECTION), _less("mesa", "linear"),
        above(0.0), quantifier="mean", at_least=3, premises=LEARNED,
    ),
    Claim(
        "better-score", "and learn more from what they read", "nats of the in-context score below linear: mean over "
        "seeds of each size", printed(SECTION), _less("mesa", "linear", " score"), above(0.0), quantifier="mean",
        at_least=3, premises=ALIKE,
    ),
    Claim(
        "forgetting-helps", "a mesa layer with forget gates loses less than one without, both with a constant ridge",
        "nats a token below: mean over seeds", printed(SECTION),
        lambda r: r["gates"]["constant"] - r["gates"]["forget"], above(0.0), quantifier="mean", at_least=3,
        premises=LEARNED,
    ),
    Claim(
        "copies", "a head of the first softmax layer copies the token before",
        "its weight there / that of a head that looks everywhere alike: mean over seeds of each kind", printed(SECTION),
        lambda r: np.stack([r["copying"][kind] for kind in KINDS], axis=1), above(3.0), quantifier="mean", at_least=3,
        premises=LEARNED,
    ),
    Claim(
        "untrained-copies", "which no untrained one does", "the same", ours("a null control"),
        lambda r: r["copying"]["untrained"], below(2.0), quantifier="mean", at_least=3, premises=LEARNED,
    ),
    Claim(
        "falls-as-far", "the loss falls with the number of tokens read as far as that of softmax, or further",
        "nats further than softmax, from tokens 4 to 7 to the second half: mean over seeds of each size",
        ours("what a state of fixed size could cost"),
        lambda r: np.stack([_fall(r, size, "mesa") - _fall(r, size, "softmax") for size in SIZES], axis=1),
        above(-0.02), quantifier="mean", at_least=3, premises=ALIKE,
    ),
    Claim(
        "alone-below-linear", "behind a shift of keys one mesa layer loses less than a linear one, at each nu",
        "nats a token below linear: mean over seeds of each nu", printed(SECTION),
        lambda r: np.stack([r["alone"][f"linear {nu}"] - r["alone"][f"mesa {nu}"] for nu in NUS], axis=1), above(0.0),
        quantifier="mean", at_least=3, premises=("alone-learned",),
    ),
)  # fmt: skip


def _training(size: str) -> Any:
    def lines(r: Any) -> list[Line]:
        names = {kind: f"{size}-{kind}" for kind in KINDS}
        return [Line(r[own]["step"], r[own]["loss"], KINDS[kind][1], KINDS[kind][0]) for kind, own in names.items()]

    return lines


def _along(size: str) -> Any:
    def lines(r: Any) -> list[Line]:
        parts = {kind: r[size][f"{kind} by token"] for kind in KINDS}
        middles = 2.0 ** (np.arange(parts["mesa"].shape[1]) + 0.5)
        return [Line(middles, own, KINDS[kind][1], KINDS[kind][0]) for kind, own in parts.items()]

    return lines


def _by_nu(r: Any) -> list[Line]:
    return [
        Line(NUS, np.stack([r["alone"][f"{kind} {nu}"] for nu in NUS], axis=1), KINDS[kind][1], kind, marks="o-")
        for kind in ALONE
    ]


def _gates(r: Any) -> list[Line]:
    both = np.stack([r["gates"]["constant"], r["gates"]["forget"]], axis=1)
    return [Line([0, 1], both, "trained", each=True, marks="o-")]


FIGURES = (
    Figure(
        "losses", "Validation loss while training, of two layers without and four layers with MLPs; line and band: "
        "mean and range over seeds. Thesis: section 3.5.3.",
        (
            Lines("two layers", "training step", "nats a token", _training("two")),
            Lines("four layers", "training step", "nats a token", _training("four")),
        ),
        columns=2, shared_legend=True, claims=("learned", "below-linear"),
    ),
    Figure(
        "context", "Loss by the number of tokens read, up to twice the trained context; line and band: mean and range "
        "over seeds.",
        (
            Lines("two layers", "tokens read", "nats a token", _along("two"), "x"),
            Lines("four layers", "tokens read", "nats a token", _along("four"), "x"),
        ),
        columns=2, shared_legend=True, claims=("early-alike", "better-score", "falls-as-far"),
    ),
    Figure(
        "heads", "Left: loss of a mesa layer behind a softmax layer, with forget gates and without, each seed. Right: "
        "the largest weight of a head of the first layer on the token before, over that of one that looks everywhere "
        "alike, by the kind of the second layer, each seed.",
        (
            Lines("", "", "nats a token", _gates, limits={"xticks": [0, 1], "xticklabels": ["no gates", "gates"]}),
            by_method("weight over uniform", {kind: kind for kind in (*KINDS, "untrained")},
                      lambda r: {"": r["copying"]}),
        ),
        columns=2, claims=("forgetting-helps", "copies", "untrained-copies"),
    ),
    Figure(
        "alone", "Loss of one layer behind a shift of its keys, by nu of its features; line and band: mean and range "
        "over seeds.",
        (Lines("", "nu", "nats a token", _by_nu, limits={"xticks": NUS}),), columns=1,
        claims=("alone-learned", "alone-below-linear"),
    ),
)  # fmt: skip

STUDY = register("study", "language-mesa")(
    Study(
        name="language-mesa",
        question="Do mesa layers make better small language models than linear ones?",
        source=f"{THESIS}, {SECTION}",
        presets={
            "quick": LanguageMesa(
                Training(30, 4, learning_rate=5e-3, schedule="cosine", clip=1.0, optimizer="adamw", evaluate_every=30),
                part="asyncio", width=16, n_heads=2, context=32, windows=16, watch_windows=4,
            ),
            "paper": LanguageMesa(
                Training(
                    100_000, 256, learning_rate=3e-4, schedule="cosine", warmup_steps=8000, decay_from=0.0,
                    final_rate=2 / 3, optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0,
                    evaluate_every=1000, checkpoint_every=1000,
                ),
                corpus="pile", width=768, n_heads=12, context=1024, windows=1024, watch_windows=64,
            ),
            "small": LanguageMesa(),
        },
        measure=measure,
        claims=CLAIMS,
        figures=FIGURES,
        deviations=(
            "Keys and queries of softmax layers are turned by their places, where the thesis has learned places: texts "
            "longer than those trained on can be read.",
            "Logits are products with the embedding, and nothing is dropped out.",
        ),
    )
)  # fmt: skip
