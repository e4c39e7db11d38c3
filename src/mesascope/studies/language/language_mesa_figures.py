"""The figures of the study of small language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mesascope.reports import Figure, Line, Lines
from mesascope.studies.common import values
from mesascope.studies.language.language_mesa_claims import ALONE, KINDS, NUS, SIZES, loss, reach, score
from mesascope.study import strip

__all__ = ["FIGURES"]


def _training(size: str) -> Any:
    def lines(r: Any) -> list[Line]:
        names = {kind: f"{size}-{kind}" for kind in KINDS}
        return [
            Line(r[own]["step"][1:], r[own]["loss"][:, 1:], KINDS[kind][1], KINDS[kind][0])
            for kind, own in names.items()
        ]

    return lines


def _along(size: str) -> Any:
    def lines(r: Any) -> list[Line]:
        parts = {kind: r[f"{size} by token"][kind] for kind in KINDS}
        middles = 2.0 ** (np.arange(parts["mesa"].shape[1]) + 0.5)
        return [Line(middles, own, KINDS[kind][1], KINDS[kind][0]) for kind, own in parts.items()]

    return lines


def _by_nu(read: Callable[[Any, str, str], Any]) -> Any:
    def lines(r: Any) -> list[Line]:
        softmax = Line(
            NUS, np.repeat(values(read(r, "alone", "softmax"))[:, None], len(NUS), 1), *KINDS["softmax"][::-1]
        )
        return [softmax] + [
            Line(NUS, values(np.stack([read(r, "alone", f"{kind} {nu}") for nu in NUS], axis=1)), KINDS[kind][1], kind,
                 marks="o-")
            for kind in ALONE
        ]  # fmt: skip

    return lines


FIGURES = (
    Figure(
        "losses", "Validation loss while training, of two layers without and four layers with MLPs, after the first "
        "steps; line and band: mean and range over seeds. Thesis: section 3.5.3.",
        (
            Lines("two layers", "training step", "nats a token", _training("two")),
            Lines("four layers", "training step", "nats a token", _training("four")),
        ),
        columns=2, shared_legend=True,
        claims=("learned", "below-linear", "delta-below-linear", "near-softmax", "forgetting-helps"),
    ),
    Figure(
        "context", "Loss by the number of tokens read, up to twice the trained context; line and band: mean and range "
        "over seeds.",
        (
            Lines("two layers", "tokens read", "nats a token", _along("two"), "x"),
            Lines("four layers", "tokens read", "nats a token", _along("four"), "x"),
        ),
        columns=2, shared_legend=True, claims=("better-score", "falls-as-far"),
    ),
    Figure(
        "reach", "What the second half of the context gains from what was read further back than an eighth of it; each "
        "seed.",
        (
            strip(
                "nats a token gained", {kind: kind for kind in KINDS},
                lambda r: {
                    f"{size} layers": {kind: values(reach(r, size, kind)) for kind in KINDS} for size in SIZES
                },
            ),
        ),
        size=(6.5, 3.2), claims=("reads",),
    ),
    Figure(
        "copying", "Of the head of the first layer that looks most at the token before, on text: that weight, and the "
        "largest of those on the token itself and on tokens two and three before, by the kind of the second layer; "
        "each seed.",
        tuple(
            strip(
                f"weight {shown}", {kind: kind for kind in (*KINDS, "untrained")},
                lambda r, where=where: {
                    "": {kind: values(r["copying"][where, kind]) for kind in (*KINDS, "untrained")}
                },
            )
            for where, shown in (("before", "on the token before"), ("elsewhere", "near it elsewhere"))
        ),
        columns=2, size=(11, 3.2), claims=("copies", "untrained-copies"),
    ),
    Figure(
        "alone", "Loss and in-context score of one layer behind a shift of its keys, by nu of its features; line and "
        "band: mean and range over seeds. Thesis: Fig. 3.7.",
        (
            Lines("", "nu", "nats a token", _by_nu(loss), limits={"xticks": NUS}),
            Lines("", "nu", "in-context score (nats)", _by_nu(score), limits={"xticks": NUS}),
        ),
        columns=2, shared_legend=True,
        claims=("alone-learned", "alone-reads", "alone-below-linear", "alone-better-score", "alone-near-softmax"),
    ),
)  # fmt: skip
