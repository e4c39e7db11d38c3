"""Random draws inside a model, such as dropout, from torch's global generators or the model's own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn

from mesascope.errors import ArgumentError
from mesascope.shapes import Tensor
from mesascope.streams import seeded, stream


def drawing_from(seed: int, name: str, step: int, device: torch.device) -> AbstractContextManager[None]:
    """Seed torch's global generators in this context for a step of the stream ``name``; see `mesascope.streams`.

    A model's draws at a step then depend only on the seed and the step, so a resumed training repeats them.
    """
    return seeded(stream(seed, name, step).initial_seed(), device)


def generator_states(module: nn.Module) -> dict[str, Tensor]:
    """States of the generators that ``module`` and its parts hold as attributes, for a checkpoint."""
    return {f"generators/{name}": generator.get_state() for name, generator in _own_generators(module).items()}


def load_generators(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set ``module``'s own generators to the states of `generator_states`."""
    for name, generator in _own_generators(module).items():
        state = tensors.get(f"generators/{name}")
        if state is None:
            raise ArgumentError(
                f"a checkpoint must hold the state of each generator of the model, but not that of {name}: start a new "
                "run."
            )
        generator.set_state(state.cpu())


def _own_generators(module: nn.Module) -> dict[str, torch.Generator]:
    return {
        f"{path}.{name}": value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Generator)
    }
