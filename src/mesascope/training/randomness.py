"""What is random inside a model: dropout and the like, which draw from torch's global generators."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn

from mesascope.shapes import Tensor
from mesascope.streams import seeded, stream

__all__ = ["drawing_from", "generator_states", "load_generators"]


def drawing_from(seed: int, name: str, step: int, device: torch.device) -> AbstractContextManager[None]:
    """Have torch's global generators be step ``step`` of a stream of `mesascope.streams`, then as they were.

    So what a model draws at a step depends on the seed and the step alone, and a resumed training repeats it.
    """
    return seeded(stream(seed, name, step).initial_seed(), device)


def generator_states(module: nn.Module) -> dict[str, Tensor]:
    """The states of the generators that ``module`` and its parts hold as attributes, for a checkpoint."""
    return {f"generators/{name}": generator.get_state() for name, generator in _own_generators(module).items()}


def load_generators(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set ``module``'s own generators to what `generator_states` gave."""
    for name, generator in _own_generators(module).items():
        generator.set_state(tensors[f"generators/{name}"].cpu())


def _own_generators(module: nn.Module) -> dict[str, torch.Generator]:
    return {
        f"{path}.{name}": value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Generator)
    }
