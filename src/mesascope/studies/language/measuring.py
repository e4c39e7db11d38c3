"""Text, measurements and readings of small language models: losses by band and by token, and heads that copy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mesascope import language
from mesascope.errors import refuse
from mesascope.study import Arrays, Estimates, Reading, nominal, stage

# Number of blocks of adjacent windows; blocks are the independent samples of the judged text, in place of documents.
BLOCKS = 64
# Maximum number of training tokens to count and to search.
COUNTED = 10_000_000
# Number of windows to search for in these tokens, and number of first tokens to match.
SEARCHED, PIECE = 64, 64

# Networks by name, one per seed; and losses of each, ``(windows, tokens)``.
Groups = Mapping[str, Sequence[Any]]
Losses = Callable[[], Mapping[str, Sequence[Any]]]


def library(settings: Any) -> str:
    """Folder of the standard library's tokens in the cache; they are prepared if missing."""
    from mesascope.data.files import cache_folder
    from mesascope.language.documents import standard_library
    from mesascope.language.shards import INDEX
    from mesascope.language.tokenizing import TokenizerKind

    version, kind = ".".join(map(str, sys.version_info[:3])), TokenizerKind(settings.tokenizer).identity
    share = [] if settings.validation == 0.05 else [f"{settings.validation:g}"]
    parts = ["python", version, *([settings.part] if settings.part else []), kind.replace(":", "-"), *share]
    folder = cache_folder() / "texts" / "-".join(parts)
    if not (folder / INDEX).exists():
        language.prepare(standard_library(settings.part), folder, settings.tokenizer, validation=settings.validation)
    return str(folder)


def spread(text: language.TextWindows, count: int) -> Any:
    """``count`` windows, evenly spaced over the text; raise if it is too short for so many."""
    found = text.spread(count)
    if len(found) < count:
        rule = f"be at most the {len(found):,} of {text.length} tokens that the {text.split} text has"
        refuse("windows", rule, count, "lower it")
    return found


def token_losses(groups: Groups, windows: Any) -> dict[str, list[Any]]:
    """Losses of every network on every token of the windows."""
    return {
        name: [language.token_losses(net, windows).double().cpu() for net in members]
        for name, members in groups.items()
    }


def banded(losses: Losses, bands: Mapping[str, slice], groups: Groups, windows: Any, context: int) -> Estimates:
    """Losses on each block by band of tokens, and those of `cut_losses` as band ``cut``."""
    read = {
        (band, name): [_by_block(own)[:, tokens].mean(1) for own in members]
        for name, members in losses().items()
        for band, tokens in bands.items()
    }
    for name, members in groups.items():
        read["cut", name] = [_by_block(cut_losses(net, windows, context)).mean(1) for net in members]
    return Estimates.of(read)


def by_token(losses: Losses) -> dict[str, Any]:
    """Mean losses of each network after 1, 2 to 3, 4 to 7, ... tokens: see `losses_by_octave`."""
    return {
        name: [list(language.losses_by_octave(own.mean(0)).values()) for own in members]
        for name, members in losses().items()
    }


def uniform(net: Any, windows: Any, vocabulary: int) -> Arrays:
    """Set all weights to 0, and return the mean loss divided by the logarithm of the vocabulary's size."""
    for weight in net.parameters():
        weight.data.zero_()
    (losses,) = token_losses({"uniform": [net]}, windows)["uniform"]
    return Arrays({"loss": float(losses.mean()) / np.log(vocabulary)})


def cut_losses(net: Any, windows: Any, context: int) -> Any:
    """Losses in the second half of the context, if only an eighth to a quarter of it is read before each token."""
    import torch

    eighth, half = context // 8, context // 2
    parts = [
        language.token_losses(net, windows[:, start - eighth : start + eighth + 1])[:, eighth:]
        for start in range(half, context, eighth)
    ]
    return torch.cat(parts, dim=1)[:, : context - half].double().cpu()


def _by_block(rows: Any) -> Any:
    """Means over adjacent windows, one row per block."""
    import torch

    return torch.stack([part.mean(0) for part in rows.tensor_split(min(BLOCKS, len(rows)))])


def _training_text(corpus: Any) -> np.ndarray:
    """The first tokens of the training text, at most `COUNTED`."""
    return corpus.windows("train", np.zeros(1, np.int64), min(COUNTED, corpus.tokens("train")))[0]


def pair_frequencies(corpus: Any, windows: Any) -> Arrays:
    """Cross-entropy of the bigram model on the first half of each window, in nats per token, as ``frequencies``.

    Pairs are counted in a part of the training text. The prior has the weight of one token, and the frequencies of
    single tokens.
    """
    size, read = corpus.index.vocabulary, _training_text(corpus)
    pairs, counts = np.unique(read[:-1] * size + read[1:], return_counts=True)
    single = np.bincount(read, minlength=size) + 1
    tokens = windows[:, : windows.shape[1] // 2 + 1].cpu().numpy()
    first, second = tokens[:, :-1].ravel(), tokens[:, 1:].ravel()
    places = np.searchsorted(pairs, first * size + second).clip(max=len(pairs) - 1)
    seen = np.where(pairs[places] == first * size + second, counts[places], 0)
    losses = -np.log((seen + single[second] / single.sum()) / (single[first] + 1))
    return Arrays({"frequencies": losses.mean()})


def seen(corpus: Any, windows: Any) -> Arrays:
    """Percent of a sample of windows whose first `PIECE` tokens occur in the first `COUNTED` training tokens."""
    dtype = corpus.index.dtype
    text = _training_text(corpus).astype(dtype).tobytes()
    pieces = windows[:: max(len(windows) // SEARCHED, 1), :PIECE].cpu().numpy().astype(dtype)
    return Arrays({"percent": 100 * np.mean([one.tobytes() in text for one in pieces])})


def copying(groups: Groups, windows: Any) -> Estimates:
    """Attention weights of the first-layer head that attends most to the previous token.

    ``before`` is its weight on the previous token, and ``elsewhere`` the largest of its weights on the token itself and
    on those two and three before it. Each is a mean over the first window of a block.
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


def loss(size: str, name: str, band: str = "loss") -> Reading:
    """Loss on the trained context, or on another band of tokens."""
    return stage(size)[band, name]


def score(size: str, name: str) -> Reading:
    """In-context score: loss late in a context minus loss early in it."""
    return loss(size, name, "late") - loss(size, name, "early")


def reach(size: str, name: str) -> Reading:
    """Increase of the loss in the second half of the context if only an eighth to a quarter of it is read before."""
    return loss(size, name, "cut") - loss(size, name, "end")


def over_octave(size: str, name: str) -> Reading:
    """Loss after an eighth to a quarter of the context: in cut texts / at the beginnings of texts."""
    beginning = stage(f"{size} by token")[name]
    return loss(size, name, "cut").map(nominal, "") / beginning.map(lambda losses: losses[:, -4], "")
