"""Scale of the tokens after each layer, for messages about diverged layers."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import NumericalError
from mesascope.ops import without_reading_values
from mesascope.shapes import Int, Tensor


@dataclass(frozen=True)
class Scales:
    """Root mean squares of the tokens before the first layer and after each layer, at a training step."""

    step: int
    values: tuple[float, ...]


@torch.no_grad()
def layer_scales(step: int, model: Any, windows: Int[Tensor, "n t"]) -> Scales:
    """Measure a language model's scales on windows of text; nan after a layer that raises an error."""
    names = ["embedded", *(f"layers.{index}" for index in range(model.config.transformer.n_layers))]
    with model.cached(names) as cache, without_reading_values(), contextlib.suppress(NumericalError):
        model(windows[:, :-1])
    found = {name: tokens.float().square().mean().sqrt().item() for name, tokens in cache.items()}
    return Scales(step, tuple(found.get(name, math.nan) for name in names))


def moved(before: Scales | None, now: Scales) -> str:
    """Describe the first layer whose tokens are not finite, or the layer whose tokens grew most.

    >>> moved(Scales(40, (1.0, 1.1, 1.2)), Scales(49, (1.0, 1.1, 60.0)))
    'tokens after layer 1 grew most: their root mean square is 60, and was 1.2 at step 40'
    """
    places = ["embedded tokens", *(f"tokens after layer {index}" for index in range(len(now.values) - 1))]
    for place, value in zip(places, now.values, strict=True):
        if not math.isfinite(value):
            return f"{place} are the first that are not finite"
    if before is None:
        own = max(range(len(places)), key=lambda index: now.values[index])
        return f"{places[own]} are the largest: their root mean square is {now.values[own]:.3g}"
    # Growth per layer, relative to the previous layer, as later layers grow with an earlier one.
    grown = [value / max(old, 1e-30) for value, old in zip(now.values, before.values, strict=True)]
    steps = [grown[0], *(later / earlier for earlier, later in itertools.pairwise(grown))]
    own = max(range(len(places)), key=lambda index: steps[index])
    if steps[own] < 2:
        return f"no layer has doubled its tokens since step {before.step}"
    was, value = before.values[own], now.values[own]
    return f"{places[own]} grew most: their root mean square is {value:.3g}, and was {was:.3g} at step {before.step}"
