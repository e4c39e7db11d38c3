"""Do layers that solve least squares make better small language models than linear ones?

Thesis: section 3.5.3. A first layer of softmax copies the token before; those after it are softmax, linear, delta or
mesa, with as many parameters but for gates, ridges and scales. One layer by itself stands behind a shift of its keys,
by hand, in place of that copy.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mesascope.errors import require_count, require_instance
from mesascope.evidence import Arrays, Estimates
from mesascope.studies.language.language_mesa_claims import ALONE, CLAIMS, KINDS, NUS, SIZES
from mesascope.studies.language.language_mesa_figures import FIGURES
from mesascope.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.language import TextWindows
    from mesascope.studies.lab import Lab

# Learning rates of the preset `small`, each kind's own, and each single layer's: the best of those tried, on other
# windows, after 300 to 400 steps. Forget gates train at the rate of the layer that they are of.
RATES: dict[str, dict[str, float]] = {
    "two": {"softmax": 0.024, "linear": 0.024, "delta": 0.012, "mesa": 0.012, "mesa-gates": 0.012},
    "four": {"softmax": 0.024, "linear": 0.024, "delta": 0.024, "mesa": 0.012, "mesa-gates": 0.012},
    "alone": {
        "softmax": 0.024,
        "linear 0": 0.096,
        "linear 1": 0.192,
        "linear 2": 0.192,
        "linear 3": 0.192,
        "mesa 0": 0.096,
        "mesa 1": 0.192,
        "mesa 2": 0.192,
        "mesa 3": 0.096,
    },
}
# Pieces of the text that networks are judged on, each of windows beside each other, in place of documents.
BLOCKS = 64
# Tokens of the training text that pairs are counted in.
COUNTED = 10_000_000


@dataclass(frozen=True)
class LanguageMesa:
    """Settings of the study."""

    training: Training = field(
        default_factory=lambda: Training(
            700, 16, learning_rate=6e-3, schedule="cosine", warmup_steps=70, decay_from=0.0, final_rate=0.1,
            optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0, evaluate_every=100,
        )
    )  # fmt: skip
    """How networks train; a batch is of windows."""
    tuned: bool = False
    """Whether each kind trains at a rate of its own, found on other windows, in place of training's."""
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
    dpfp: int = 1
    """Nu of the features of keys and queries of all layers but softmax, where they do not stand alone."""
    windows: int = 1024
    """Windows of other documents that networks are judged on, twice as long as the context."""
    watch_windows: int = 32
    """Windows of an evaluation while training."""

    def __post_init__(self) -> None:
        for name in ("seeds", "width", "n_heads", "windows", "watch_windows"):
            require_count(name, getattr(self, name))
        require_count("context", self.context, least=32)
        require_count("dpfp", self.dpfp, least=0)
        require_instance("tuned", self.tuned, bool)
        for name in ("corpus", "part"):
            require_instance(name, getattr(self, name), str)

    def text(self, length: int, split: str = "train") -> TextWindows:
        """Windows of the corpus, which is prepared where it is not there."""
        from mesascope.language import TextWindows, open_corpus

        folder = str(Path(self.corpus).resolve()) if self.corpus else _library(self.part)
        return TextWindows(folder, length, split, open_corpus(folder).checksum)

    def network(self, layers: str, vocabulary: int, **options: Any) -> Any:
        """A language model for texts of any length: softmax layers know places, by turned keys, if not told otherwise.

        Ridges do not decay, with gates or without.
        """
        from mesascope.language import layered

        usual: dict[str, Any] = {
            "width": self.width, "n_heads": self.n_heads, "dpfp": self.dpfp, "tied": True, "positions": "rotary",
        }  # fmt: skip
        config = layered(layers, vocabulary, self.context, **usual | options)
        heads = tuple(replace(own, ridge_kind="constant") for own in config.transformer.each_heads)
        return replace(config, transformer=replace(config.transformer, heads=heads))

    def plan(self, size: str, kind: str) -> Training:
        """How networks of this size and kind train."""
        return replace(self.training, learning_rate=RATES[size][kind]) if self.tuned else self.training

    def bands(self) -> dict[str, slice]:
        """Tokens that losses are told of, by name; early and late ones lie around those of the in-context score."""
        whole = self.context
        return {
            "loss": slice(whole), "early": slice(whole // 32, whole // 16),
            "late": slice(3 * whole // 8, 5 * whole // 8), "end": slice(whole // 2, whole),
        }  # fmt: skip


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
        settings.text(settings.context + 1, "validation").spread(settings.watch_windows).to(lab.device),
        settings.text(2 * settings.context + 1, "validation").spread(settings.windows).to(lab.device),
    )
    lab.stage("pairs", lambda: Arrays({"frequencies": _of_pairs(text)}, frequencies=""))

    def trained(size: str, kind: str, name: str, layers: str, **options: Any) -> list[Any]:
        return _trained(lab, settings.plan(size, kind), name, settings.network(layers, *vocabulary, **options), text)

    vocabulary = (text.windows.corpus.index.vocabulary,)
    groups = {
        size: {
            kind: trained(
                size, kind, f"{size}-{kind}", layers.format(kind.removesuffix("-gates")), mlp=4 if with_mlps else None,
                forget=kind.endswith("-gates"),
            )
            for kind in KINDS
        }
        for size, (layers, with_mlps) in SIZES.items()
    }  # fmt: skip
    single: dict[str, Any] = {"key_shift": True, "positions": "none"}
    groups["alone"] = {
        f"{kind} {nu}": trained("alone", f"{kind} {nu}", f"alone-{kind}-{nu}", kind, dpfp=nu, **single)
        for kind in ALONE
        for nu in NUS
    }
    groups["alone"]["softmax"] = trained("alone", "softmax", "alone-softmax", "softmax", **single)
    for size, members in groups.items():
        _judge(lab, settings, size, members, text)
    untrained = [
        settings.network("softmax, mesa", *vocabulary).build(lab.stream("untrained", index))
        for index in range(settings.seeds)
    ]
    lab.stage(
        "copying", lambda: _copying({**groups["two"], "untrained": untrained}, text.judged[:, : settings.context])
    )


def _trained(lab: Lab, plan: Training, name: str, network: Any, text: _Text) -> list[Any]:
    from mesascope.language import next_token_loss, token_losses

    return lab.train(
        name, network, text.windows, plan, loss=next_token_loss,
        watch=lambda net: {"loss": float(token_losses(net, text.watched).mean())},
    )  # fmt: skip


def _judge(lab: Lab, settings: LanguageMesa, size: str, groups: Mapping[str, Sequence[Any]], text: _Text) -> None:
    """Losses on each piece of text by band of tokens, and by token up to twice the trained context."""
    from mesascope.language import losses_by_octave, token_losses

    @functools.cache
    def losses() -> dict[str, list[Any]]:
        return {
            name: [token_losses(net, text.judged).double().cpu() for net in members] for name, members in groups.items()
        }

    def banded() -> Estimates:
        read = {
            (band, name): [_by_block(own)[:, tokens].mean(1).numpy() for own in members]
            for name, members in losses().items()
            for band, tokens in settings.bands().items()
        }
        cut = {
            ("cut", name): [
                _by_block(cut_losses(net, text.judged, settings.context)).mean(1).numpy() for net in members
            ]
            for name, members in groups.items()
        }
        return Estimates.of(read | cut)

    lab.stage(size, banded)
    lab.stage(f"{size} by token", lambda: {
        name: [list(losses_by_octave(own.mean(0)).values()) for own in members] for name, members in losses().items()
    })  # fmt: skip


def cut_losses(net: Any, windows: Any, context: int) -> Any:
    """Losses on the second half of a context by who has read an eighth to a quarter of it before each token."""
    import torch

    from mesascope.language import token_losses

    eighth, half = context // 8, context // 2
    parts = [
        token_losses(net, windows[:, start - eighth : start + eighth + 1])[:, eighth:]
        for start in range(half, context, eighth)
    ]
    return torch.cat(parts, dim=1)[:, : context - half].double().cpu()


def _by_block(rows: Any) -> Any:
    """Means over windows that lie beside each other, one row a block."""
    import torch

    return torch.stack([part.mean(0) for part in rows.tensor_split(min(BLOCKS, len(rows)))])


def _of_pairs(text: _Text) -> np.ndarray:
    """What who knows how often a token follows another loses on the tokens of judged contexts, in nats each.

    Counts are of a part of the training text, with a prior of one token by the frequencies of all.
    """
    corpus, judged = text.windows.corpus, text.judged.cpu().numpy()
    size, counted = corpus.index.vocabulary, min(COUNTED, corpus.tokens("train"))
    read = corpus.windows("train", np.zeros(1, np.int64), counted)[0]
    pairs, counts = np.unique(read[:-1] * size + read[1:], return_counts=True)
    single = np.bincount(read, minlength=size) + 1
    tokens = judged[:, : judged.shape[1] // 2 + 1]
    first, second = tokens[:, :-1].ravel(), tokens[:, 1:].ravel()
    places = np.searchsorted(pairs, first * size + second).clip(max=len(pairs) - 1)
    seen = np.where(pairs[places] == first * size + second, counts[places], 0)
    return np.array(-np.log((seen + single[second] / single.sum()) / (single[first] + 1)).mean())


def _copying(groups: Mapping[str, Sequence[Any]], windows: Any) -> Estimates:
    """Of the head of the first layer that looks most at the token before: that weight, and its largest elsewhere near.

    Elsewhere are the token itself and those two and three before it; on the first window of each piece of text.
    """
    read, name = windows[:: max(len(windows) // BLOCKS, 1)], "layers.0.attention.pattern"

    def weights(net: Any) -> np.ndarray:
        pattern = net.run_with_cache(read, last=1, names=name)[1][name].detach()
        near = np.stack([pattern.diagonal(-far, -2, -1).mean(-1).double().cpu().numpy() for far in range(4)])
        own = near[:, :, near[1].mean(0).argmax()]  # (distances, windows)
        return np.stack([own[1], own[[0, 2, 3]][own[[0, 2, 3]].mean(1).argmax()]])

    found = {kind: [weights(net) for net in members] for kind, members in groups.items()}
    return Estimates.of({
        (where, kind): [own[index] for own in each]
        for index, where in enumerate(("before", "elsewhere"))
        for kind, each in found.items()
    })  # fmt: skip


STUDY = Study(
    name="language-mesa",
    source="von Oswald's thesis, section 3.5.3",
    presets={
        "quick": LanguageMesa(
            Training(60, 4, learning_rate=1e-2, schedule="cosine", clip=1.0, optimizer="adamw", evaluate_every=30),
            part="asyncio", width=16, n_heads=2, windows=64, watch_windows=8,
        ),
        "paper": LanguageMesa(
            Training(
                100_000, 256, learning_rate=3e-4, schedule="cosine", warmup_steps=8000, decay_from=0.0,
                final_rate=2 / 3, optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, clip=1.0,
                evaluate_every=1000, checkpoint_every=1000,
            ),
            corpus="pile", width=768, n_heads=12, context=1024, dpfp=3, watch_windows=64,
        ),
        "small": LanguageMesa(tuned=True),
    },
    measure=measure,
    trainings=19,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Softmax layers know places by turned keys, others and single layers none but their order, where the "
        "thesis adds learned places to tokens: texts longer than those trained on can be read.",
        "What a head of a layer other than softmax reads is divided by its norm.",
        "Preset small: features of nu = 1 in place of 3, but for single layers, which have each nu.",
        "The in-context score compares means over the tokens around the two that the thesis compares.",
        "Logits are products with the embedding, and nothing is dropped out.",
        "Kinds have as many parameters, and states of different size: that of mesa holds three times the numbers.",
    ),
)  # fmt: skip
