"""The full transformers of von Oswald (2024): raw elements, projections, and a first layer of softmax attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from mesascope import nets, study
from mesascope.studies.common import thesis_plan
from mesascope.studies.mesa.dynamics import Sequences, Shown, adamw_plan, after, labelled
from mesascope.study import Claim, Figure, Reading, Training, below, beside, printed, stage

EXTENDED = "extended paper (arXiv 2309.05858)"
# Attention by layer: all softmax; softmax and then six linear layers; softmax and then one mesa layer.
LAYERS = {"softmax": ("softmax",) * 7, "linear": ("softmax", *["linear"] * 6), "mesa": ("softmax", "mesa")}
WIDTH, HEADS, KEY = 40, 4, 20
# Number of first elements left out of averages of sensitivities and attention along the sequence.
BEGINNING = 5

cosine_plan = partial(adamw_plan, schedule="cosine", weight_decay=0.05, clip=1.0)
LONG = cosine_plan(6000, 3e-3, batch=64, warmup_steps=600)
# Settings of von Oswald (2024), where rates hardly decay: seven softmax layers, and hybrids with a mesa layer.
raw_plan = partial(thesis_plan, weight_decay=0.05, warmup_steps=1000)
AS_PRINTED: dict[str, Any] = {
    "training": raw_plan(10_000, learning_rate=7e-4), "mesa": raw_plan(20_000, learning_rate=3e-4),
}  # fmt: skip
# Settings of the quick presets.
SHORT: dict[str, Any] = {
    "training": cosine_plan(120, 3e-3, batch=16), "mesa": cosine_plan(120, 8e-3, batch=16), "seeds": 3,
    "tasks": 500, "tune_tasks": 500, "watch_tasks": 100, "averaged_tasks": 2,
}  # fmt: skip
_CLIPPED = "The norm of gradients of the mean loss is clipped at 1, not the entries of gradients of the sum over times."
# Deviations of all studies of these networks, by preset.
DEVIATIONS = {
    "paper": (
        "Networks train for 6,000 steps of 64 sequences, in place of 10,000 to 20,000 of 256, at learning rates of "
        "3e-3 and 5e-3 in place of 7e-4 and 3e-4; weights are averaged.",
        _CLIPPED,
    ),
    "thesis": (
        "Learning rates are constant after the warm-up: the cosine of arXiv 2309.05858, over 30,000 steps, lowers them "
        "little.",
        _CLIPPED,
    ),
}


@study.frozen
class Transformers(Sequences):
    added: ClassVar[dict[str, bool]] = {"normalise_keys": True}
    mesa: Training = cosine_plan(6000, 5e-3, batch=64, warmup_steps=600)  # Training of hybrids with a mesa layer.
    normalise_keys: bool = False  # Mesa layers divide keys and queries by their L2 norms.
    averaged_tasks: study.Count = 10  # Sequences for averages of sensitivities and attention.


def transformer(name: str, d: int = 10, mlp: int | None = None, normalise_keys: bool = False) -> Any:
    """Config of the network with the `LAYERS` of ``name``.

    Initial weights of queries, keys and values have standard deviation 0.05 as in the authors' code, or less for wider
    inputs. Tokens of linear layers are clipped: outputs grow with the third power of inputs, layer by layer.
    """
    layers, clip = LAYERS[name], 4.0 if name == "linear" else None
    normalise = None if normalise_keys or "mesa" not in layers else False  # None: mesa layers alone normalise
    heads = nets.AttentionConfig(
        WIDTH, HEADS, key_size=KEY, normalise=normalise, positions=WIDTH, init_scale=0.05**2 * WIDTH * len(layers)
    )
    body = nets.CausalTransformerConfig(heads, len(layers), layers, mlp=mlp, token_clip=clip)
    return nets.SequencePredictorConfig(body, d)


def of_each(groups: Mapping[str, Sequence[Any]], sequences: Any, lens: Callable[[Any, Any], Any]) -> study.Arrays:
    """Maps that a lens returns for every network, ``(seeds, ..., t, t)``."""
    found = {
        name: np.stack([lens(net, sequences).cpu().numpy() for net in members]) for name, members in groups.items()
    }
    axes = {3: "seed t u", 4: "seed head t u"}
    return study.Arrays(found, **{name: axes[one.ndim] for name, one in found.items()})


def copying(name: str, lag: int = 1, beyond: int = 2) -> Reading:
    """Sensitivity of tokens to the element ``lag`` steps back / the largest to one ``beyond`` or more steps back.

    Lags that average fewer than six tokens are left out.
    """

    def relative(maps: np.ndarray) -> np.ndarray:
        lags = range(lag, maps.shape[1] - 2 * BEGINNING)
        means = {own: np.diagonal(maps, -own, 1, 2)[:, BEGINNING:].mean(1) for own in lags}
        return means[lag] / np.max([means[own] for own in means if own >= beyond], axis=0)

    words = f"|d e_t / d s_{{t-{lag}}}| / largest |d e_t / d s_{{t-k}}| of k >= {beyond}, mean over tokens, {name}"
    return stage("sensitivity")[name].map(relative, words)


def copying_of_each(names: Iterable[str], lag: int = 1, beyond: int = 2) -> Reading:
    """Reading `copying` of several kinds of network, ``(seeds, kinds)``."""
    return beside([copying(name, lag, beyond) for name in names], str(copying("each kind", lag, beyond)))


def in_context(names: Iterable[str], shown: Shown) -> Claim:
    """Claim: the error falls along the sequence (a network that predicts averages fails this)."""
    by_time = labelled("by-time", shown, mse="error")
    falls = [after(by_time, 50)["mse", name] / after(by_time, 5)["mse", name] for name in names]
    return Claim("in-context", "after 50 elements the error of networks of both kinds is smaller than after 5",
                 beside(falls, "error after 50 elements / after 5"), below(1.0), printed(EXTENDED),
                 former="< 0.5")  # fmt: skip


def sensitivity_figure(shown: Mapping[str, str], source: str, claims: tuple[Claim, ...]) -> Figure:
    """Mean sensitivities over seeds for the first 20 elements; ``shown`` has the label of each group."""

    def read(r: Any) -> dict[str, np.ndarray]:
        means = {label: r["sensitivity"][name].mean(0)[:20, :20] for name, label in shown.items()}
        return {label: one / one.max() for label, one in means.items()}

    return Figure("sensitivity", "How tokens after the first layer (rows) depend on elements (columns): norms of "
                  f"derivatives over the largest, means over sequences and seeds, of the first 20. {source}.",
                  study.Matrices(read, 1.0), claims=claims)  # fmt: skip
