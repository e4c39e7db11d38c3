"""The claims of the study of small language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mesascope.evidence import Claim, above, below, ours, printed, stage

__all__ = ["ALONE", "CLAIMS", "KINDS", "NUS", "SIZES", "loss", "reach", "score"]

SECTION, FIGURE = "section 3.5.3", "Fig. 3.7"
# Kinds of the layers after the first, with a name and a role to show.
KINDS = {
    "softmax": ("softmax", "gd"), "linear": ("linear", "other"), "delta": ("delta", "interpolated"),
    "mesa": ("mesa", "trained"), "mesa-gates": ("mesa with forget gates", 0.8),
}  # fmt: skip
HYBRIDS = [kind for kind in KINDS if kind != "softmax"]
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


def reach(r: Any, size: str, name: str) -> Any:
    """What the second half of the context gains from what was read further back than an eighth of it."""
    return r[size]["cut", name] - r[size]["end", name]


def _fall(r: Any, size: str, name: str) -> Any:
    """How far the loss falls from early tokens to the second half of the context."""
    return r[size]["early", name] - r[size]["end", name]


def _both(*readings: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
    """Several readings, one beside the other: a claim of all of them."""
    return lambda r: np.concatenate([read(r) for read in readings], axis=1)


def _alone_less(read: Callable[[Any, str, str], Any]) -> Callable[[Any], np.ndarray]:
    """By how much what is read of one mesa layer is below that of a linear one, by seed and nu."""
    return _over(NUS, lambda r, nu: read(r, "alone", f"linear {nu}") - read(r, "alone", f"mesa {nu}"))


def _late(r: Any, size: str, name: str) -> Any:
    return r[size]["late", name]


# All networks, by size and name.
DEEP = [(size, kind) for size in SIZES for kind in KINDS]
SINGLE = [("alone", f"{kind} {nu}") for kind in ALONE for nu in NUS] + [("alone", "softmax")]
LEARNED, ALONE_LEARNED = ("learned", "reads"), ("alone-learned", "alone-reads")
EVERY: dict[str, Any] = {"quantifier": "every", "at_least": 3}


def _learned(name: str, sentence: str, networks: Sequence[tuple[str, str]]) -> Claim:
    return Claim(
        name, sentence, lambda r: _over(networks, lambda r, one: loss(r, *one))(r) / r["pairs"]["frequencies"],
        below(1.0), ours("premise"), measures="loss / of the frequencies of pairs, each network", **EVERY,
    )  # fmt: skip


def _reads(name: str, sentence: str, sizes: Sequence[str], learned: str) -> Claim:
    return Claim(
        name, sentence, _over(sizes, lambda r, size: reach(r, size, "softmax")), above(0.0), ours("premise"),
        measures="nats that a token of the second half of the context loses more where what is read before it " "is cut to the eighth to quarter nearest to it, each network of softmax",
        premises=(learned,), **EVERY,
    )  # fmt: skip


CLAIMS = (
    _learned("learned", "networks of two and four layers predict better than how often a token follows another", DEEP),
    _learned("alone-learned", "and so do single layers", SINGLE),
    _reads(
        "reads", "those of softmax gain from what they read further back than an eighth of the context", [*SIZES],
        "learned",
    ),
    _reads("alone-reads", "and so do single layers of softmax", ["alone"], "alone-learned"),
    Claim(
        "below-linear", "each hybrid with mesa layers loses less than that with linear layers, at each size",
        _over([*SIZES], _less("mesa", "linear")), above(0.0), printed(SECTION),
        measures="nats a token below linear, each seed and size", premises=LEARNED, **EVERY,
    ),
    Claim(
        "delta-below-linear", "and so does each with delta layers", _over([*SIZES], _less("delta", "linear")),
        above(0.0), ours("Schlag, Irie and Schmidhuber (2021)"),
        measures="nats a token below linear, each seed and size", premises=LEARNED, **EVERY,
    ),
    Claim(
        "near-softmax", "with two layers each loses at most 0.03 nats a token more than softmax",
        lambda r: -_less("mesa", "softmax")(r, "two"), below(0.03), printed(SECTION),
        measures="nats a token above softmax, each seed", premises=LEARNED, **EVERY,
    ),
    Claim(
        "better-score", "each hybrid with mesa layers gains more from what it reads than that with linear layers, and "
        "loses less late in a context",
        _both( _over([*SIZES], lambda r, size: score(r, size, "linear") - score(r, size, "mesa")), _over([*SIZES], _less("mesa", "linear", "late")), ),
        above(0.0), printed(SECTION),
        measures="nats below linear of the in-context score, and of late tokens, each seed and " "size",
        premises=LEARNED, **EVERY,
    ),
    Claim(
        "forgetting-helps", "each with forget gates loses less than that without, both with a constant ridge",
        _over([*SIZES], _less("mesa-gates", "mesa")), above(0.0), ours("the thesis leaves gates to others"),
        measures="nats a token below, each seed and size", premises=LEARNED, **EVERY,
    ),
    Claim(
        "copies", "of each hybrid a head of the first layer, softmax, puts more than 0.3 of its weight on the token "
        "before, and less on others near it",
        _both( _over(HYBRIDS, lambda r, kind: r["copying"]["before", kind] - 0.3), _over(HYBRIDS, lambda r, kind: r["copying"]["before", kind] - r["copying"]["elsewhere", kind]), ),
        above(0.0), printed(SECTION),
        measures="its weight there, less 0.3 and less its largest near it elsewhere, " "each seed and kind",
        premises=("learned", "untrained-copies"), **EVERY,
    ),
    Claim(
        "untrained-copies", "where no head of an untrained network puts a tenth",
        stage("copying")["before", "untrained"], below(0.1), ours("a null control"), premises=LEARNED, **EVERY,
    ),
    Claim(
        "falls-as-far",
        "the loss falls with the number of tokens read as far as that of softmax, to the same, within " "0.02 nats",
        _both( _over([*SIZES], lambda r, size: _fall(r, size, "mesa") - _fall(r, size, "softmax")), _over([*SIZES], _less("mesa", "softmax", "end")), ),
        above(-0.02), ours("what a state of fixed size could cost"),
        measures="nats below softmax: of the fall from early tokens to the second half, and of the loss there, " "each seed and size",
        premises=LEARNED, **EVERY,
    ),
    Claim(
        "alone-below-linear", "behind a shift of keys each mesa layer loses less than a linear one, at each nu",
        _alone_less(loss), above(0.0), printed(FIGURE), measures="nats a token below linear, each seed and nu",
        premises=ALONE_LEARNED, **EVERY,
    ),
    Claim(
        "alone-better-score", "and gains more from what it reads, and loses less late in a context",
        _both(_alone_less(score), _alone_less(_late)), above(0.0), printed(FIGURE),
        measures="nats below " "linear of the in-context score, and of late tokens, each seed and nu",
        premises=ALONE_LEARNED, **EVERY,
    ),
    Claim(
        "alone-near-softmax", "with the most features each loses at most 0.03 nats a token more than softmax",
        lambda r: loss(r, "alone", f"mesa {NUS[-1]}") - loss(r, "alone", "softmax"), below(0.03), printed(FIGURE),
        measures="nats a token above softmax, each seed", premises=ALONE_LEARNED, **EVERY,
    ),
)  # fmt: skip
