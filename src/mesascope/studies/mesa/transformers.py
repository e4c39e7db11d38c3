"""The full transformers of the thesis: raw elements, learned projections, and a first layer of softmax attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mesascope import nets
from mesascope.errors import require_count
from mesascope.evidence import Arrays, Claim, below, printed
from mesascope.reports import Figure, Matrices
from mesascope.studies.common import plan
from mesascope.studies.mesa.dynamics import Sequences, times
from mesascope.training import Training

__all__ = [
    "DEVIATIONS",
    "EXTENDED",
    "LAYERS",
    "LONG",
    "SHORT",
    "USUAL",
    "Transformers",
    "copying",
    "in_context",
    "of_each",
    "sensitivity_figure",
    "transformer",
]

# Attention by layer: all softmax, a hybrid of linear layers, and one of a single mesa layer.
LAYERS = {
    "softmax": ("softmax",) * 7,
    "linear": ("softmax", *["linear"] * 6),
    "mesa": ("softmax", "mesa"),
}
WIDTH, HEADS, KEY = 40, 4, 20
# How they train, but for lengths and rates.
USUAL: dict[str, Any] = {"schedule": "cosine", "optimizer": "adamw", "weight_decay": 0.05, "clip": 1.0}


EXTENDED = "extended paper (arXiv 2309.05858)"
LONG = plan(6000, 3e-3, batch=64, warmup_steps=600, **USUAL)
# Settings of the quick presets.
SHORT: dict[str, Any] = {
    "training": plan(120, 3e-3, batch=16, **USUAL),
    "tasks": 500,
    "tune_tasks": 500,
    "watch_tasks": 100,
    "mesa": plan(120, 8e-3, batch=16, **USUAL),
    "averaged_tasks": 2,
    "seeds": 3,
}
DEVIATIONS = (
    "Networks train for 6,000 steps of 64 sequences, in place of 10,000 to 20,000 of 256, at learning rates of 3e-3 "
    "and 5e-3 in place of 7e-4 and 3e-4; weights are averaged.",
    "The norm of gradients of the mean loss is clipped at 1, not the entries of those of the sum over times.",
)
# Elements left out where sensitivities are averaged along the sequence.
BEGINNING = 5


@dataclass(frozen=True)
class Transformers(Sequences):
    """Settings of a study of transformers."""

    mesa: Training = field(default_factory=lambda: plan(6000, 5e-3, batch=64, warmup_steps=600, **USUAL))
    """How hybrids of a softmax and a mesa layer train."""
    averaged_tasks: int = 10
    """Sequences that sensitivities and attention are averaged over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("averaged_tasks", self.averaged_tasks)


def transformer(name: str, d: int = 10, mlp: int | None = None) -> Any:
    """The config of a network of these layers.

    Initial weights of queries, keys and values deviate by 0.05 as in the authors' code, or less where they read more.

    The tokens of linear layers are clipped: otherwise they grow with the third power from layer to layer.
    """
    layers, clip = LAYERS[name], 4.0 if name == "linear" else None
    heads = nets.AttentionConfig(WIDTH, HEADS, key_size=KEY, positions=WIDTH, init_scale=0.05**2 * WIDTH * len(layers))
    body = nets.CausalTransformerConfig(heads, len(layers), layers, mlp=mlp, token_clip=clip)
    return nets.SequencePredictorConfig(body, d)


def copying(maps: np.ndarray, lag: int = 1, beyond: int = 2) -> np.ndarray:
    """How a token depends on the element ``lag`` before over how it does, at most, on one ``beyond`` or more before.

    Args:
        maps: sensitivities ``(seeds, t, t)``; lags of fewer than five tokens are left out.
    """
    means = {
        own: np.diagonal(maps, -own, 1, 2)[:, BEGINNING:].mean(1) for own in range(lag, maps.shape[1] - 2 * BEGINNING)
    }
    return means[lag] / np.max([means[own] for own in means if own >= beyond], axis=0)


def of_each(groups: Mapping[str, Sequence[Any]], sequences: Any, lens: Callable[[Any, Any], Any]) -> Arrays:
    """What a lens gives of every network, ``(seeds, ..., t, t)``."""
    found = {
        name: np.stack([lens(net, sequences).cpu().numpy() for net in members]) for name, members in groups.items()
    }
    axes = {3: "seed t u", 4: "seed head t u"}
    return Arrays(found, **{name: axes[one.ndim] for name, one in found.items()})


def sensitivity_figure(shown: Mapping[str, str], source: str, claims: tuple[str, ...]) -> Figure:
    """The means over seeds of stage ``sensitivity``, of the first 20 elements; label of each group."""

    def read(r: Any) -> dict[str, np.ndarray]:
        means = {label: r["sensitivity"][name].mean(0)[:20, :20] for name, label in shown.items()}
        return {label: one / one.max() for label, one in means.items()}

    return Figure(
        "sensitivity",
        "How tokens after the first layer (rows) depend on elements (columns): norms of derivatives over the largest, "
        f"means over sequences and seeds, of the first 20. {source}.",
        Matrices(read, 1.0),
        claims=claims,
    )


def in_context(*names: str) -> Claim:
    """Of networks that have learned nothing but averages, errors do not fall along a sequence."""
    return Claim(
        "in-context",
        "networks of both kinds learn in context: after 50 elements they err less than half of what they do after 5",
        lambda r: np.stack(
            [np.true_divide(*times(r["by-time"], [5, 50])["mse", name].T[::-1]) for name in names], axis=1
        ),
        below(0.5),
        printed(EXTENDED),
        measures="error at 50 / at 5",
        at_least=3,
        premises=("converged",),
    )
