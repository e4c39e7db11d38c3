"""The claims of the study of small language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mesascope.evidence import Claim, above, below, ours, printed

__all__ = ["ALONE", "CLAIMS", "KINDS", "NUS", "SIZES", "loss", "score"]

SECTION, FIGURE = "section 3.5.3", "Fig. 3.7"
# Kinds of the layers after the first, with a name and a role to show.
KINDS = {
    "softmax": ("softmax", "gd"), "linear": ("linear", "other"), "delta": ("delta", "interpolated"),
    "mesa": ("mesa", "trained"), "mesa-gates": ("mesa with forget gates", 0.8),
}  # fmt: skip
# Networks by their names: layers, and whether they have MLPs.
SIZES = {"two": ("softmax, {0}", False), "four": ("softmax, {0}*3", True)}
ALONE = ("linear", "mesa")
NUS = (0, 1, 2, 3)


def _over(names: Sequence[Any], read: Callable[[Any, Any], Any]) -> Callable[[Any], np.ndarray]:
    """What ``read`` gives for each name, by seed and name."""
    return lambda r: np.stack([read(r, name) for name in names], axis=1)


def _less(kind: str, other: str, band: str = "loss") -> Callable[[Any, str], Any]:
    """By how many nats a kind is below another, at one size."""
    return lambda r, size: r[size][band, other] - r[size][band, kind]


def loss(r: Any, size: str, name: str) -> Any:
    """On the trained context, each seed."""
    return r[size]["loss", name]


def score(r: Any, size: str, name: str) -> Any:
    """The loss late in a context less that early in it."""
    return r[size]["late", name] - r[size]["early", name]


def _fall(r: Any, size: str, name: str, start: str = "early") -> Any:
    """How far the loss falls to the second half of the context."""
    return r[size][start, name] - r[size]["end", name]


def _alone_less(read: Callable[[Any, str, str], Any]) -> Callable[[Any], np.ndarray]:
    """By how much what is read of one mesa layer is below that of a linear one, by seed and nu."""
    return _over(NUS, lambda r, nu: read(r, "alone", f"linear {nu}") - read(r, "alone", f"mesa {nu}"))


ALONE_NAMES = [f"{kind} {nu}" for kind in ALONE for nu in NUS] + ["softmax"]
LEARNED, READ = ("learned",), ("learned", "reads", "early-alike")
EVERY: dict[str, Any] = {"quantifier": "every", "at_least": 3}
CLAIMS = (
    Claim(
        "learned", "networks of two and four layers predict better than the frequencies of tokens",
        "loss / of the frequencies, each seed, kind and size", ours("premise"),
        lambda r: np.stack([loss(r, size, kind) for size in SIZES for kind in KINDS], axis=1)
        / r["unigram"]["frequencies"], below(0.9), **EVERY,
    ),
    Claim(
        "alone-learned", "and so do single layers", "loss / of the frequencies, each seed, kind and nu",
        ours("premise"),
        lambda r: _over(ALONE_NAMES, lambda r, name: loss(r, "alone", name))(r) / r["unigram"]["frequencies"],
        below(0.9), **EVERY,
    ),
    Claim(
        "reads", "networks with mesa layers still gain from what they read after an eighth of the context",
        "nats a token from the second eighth to the second half, each seed and size", ours("premise"),
        _over([*SIZES], lambda r, size: _fall(r, size, "mesa", "middle")), above(0.01), premises=LEARNED, **EVERY,
    ),
    Claim(
        "early-alike", "and are no worse early in a text than those with linear and softmax layers, which would make "
        "their losses fall further", "nats above them around the fiftieth of 1,024 tokens, each seed and size",
        ours("premise"),
        lambda r: -np.concatenate(
            [_over([*SIZES], _less("mesa", other, "early"))(r) for other in ("linear", "softmax")], axis=1
        ), below(0.05), premises=LEARNED, **EVERY,
    ),
    Claim(
        "below-linear", "hybrids with mesa layers lose less than those with linear layers, at each size",
        "nats a token below linear, each seed and size", printed(SECTION), _over([*SIZES], _less("mesa", "linear")),
        above(0.0), premises=LEARNED, **EVERY,
    ),
    Claim(
        "delta-below-linear", "and so do those with delta layers", "nats a token below linear, each seed and size",
        ours("Schlag, Irie and Schmidhuber (2021)"), _over([*SIZES], _less("delta", "linear")), above(0.0),
        premises=LEARNED, **EVERY,
    ),
    Claim(
        "near-softmax", "with two layers they match softmax", "nats a token above softmax, each seed",
        printed(SECTION), lambda r: -_less("mesa", "softmax")(r, "two"), below(0.03), premises=LEARNED, **EVERY,
    ),
    Claim(
        "better-score", "hybrids with mesa layers learn more from what they read than those with linear layers",
        "nats of the in-context score below linear, each seed and size", printed(SECTION),
        _over([*SIZES], lambda r, size: score(r, size, "linear") - score(r, size, "mesa")), above(0.0),
        premises=READ, **EVERY,
    ),
    Claim(
        "forgetting-helps", "a mesa layer with forget gates loses less than one without, both with a constant ridge",
        "nats a token below, each seed and size", ours("the thesis leaves gates to others"),
        _over([*SIZES], _less("mesa-gates", "mesa")), above(0.0), premises=LEARNED, **EVERY,
    ),
    Claim(
        "copies", "a head of the first softmax layer copies the token before",
        "its weight there / that of a head that looks everywhere alike, each seed and kind", printed(SECTION),
        _over([*KINDS], lambda r, kind: r["copying"]["copying", kind]), above(3.0), premises=LEARNED, **EVERY,
    ),
    Claim(
        "untrained-copies", "which no untrained one does", "the same", ours("a null control"),
        lambda r: r["copying"]["copying", "untrained"], below(2.0), premises=LEARNED, **EVERY,
    ),
    Claim(
        "falls-as-far", "the loss falls with the number of tokens read as far as that of softmax, or further",
        "nats further than softmax, from early tokens to the second half, each seed and size",
        ours("what a state of fixed size could cost"),
        _over([*SIZES], lambda r, size: _fall(r, size, "mesa") - _fall(r, size, "softmax")), above(-0.02),
        premises=READ, **EVERY,
    ),
    Claim(
        "alone-below-linear", "behind a shift of keys one mesa layer loses less than a linear one, at each nu",
        "nats a token below linear, each seed and nu", printed(FIGURE), _alone_less(loss), above(0.0),
        premises=("alone-learned",), **EVERY,
    ),
    Claim(
        "alone-better-score", "and learns more from what it reads",
        "nats of the in-context score below linear, each seed and nu", printed(FIGURE), _alone_less(score),
        above(0.0), premises=("alone-learned",), **EVERY,
    ),
    Claim(
        "alone-near-softmax", "with the most features it matches softmax", "nats a token above softmax, each seed",
        printed(FIGURE), lambda r: loss(r, "alone", f"mesa {NUS[-1]}") - loss(r, "alone", "softmax"), below(0.03),
        premises=("alone-learned",), **EVERY,
    ),
)  # fmt: skip
