"""Random streams: the generators of all random numbers of a run.

A run has one integer seed. Step ``i`` of a stream is seeded by a hash of (seed, name, i). A resumed run therefore draws
the same numbers as an uninterrupted one. Training, tuning and evaluation have different streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mesascope.errors import ArgumentError, require_count, require_double, require_instance

if TYPE_CHECKING:
    import torch

__all__ = ["generator_on", "global_generators", "seeded", "stream"]


def stream(seed: int, name: str, step: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator for a step of the stream ``name`` in a run with seed ``seed``.

    Raises:
        ArgumentError: the seed or step is negative, or the device is unknown or has no float64.

    Torch's CPU generator keeps 32 bits of its seed, so two streams coincide with probability 2**-32.

    >>> import torch
    >>> a, b = stream(0, "train", 7), stream(0, "train", 7)
    >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
    True
    """
    for argument, value in (("seed", seed), ("step", step)):
        require_count(argument, value, least=0)
    require_instance("name", name, str)
    generator = generator_on(device)
    digest = hashlib.sha256(f"{seed}/{name}/{step}".encode()).digest()
    generator.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return generator


def generator_on(device: torch.device | str) -> torch.Generator:
    """Make a generator on ``device``; raise if torch does not find the device, or the device has no float64."""
    import torch

    require_double(device)
    try:
        return torch.Generator(device=device)
    except (RuntimeError, TypeError, AssertionError):  # AssertionError if torch was built without CUDA
        raise ArgumentError(
            f"device must be one that torch can use here, but is {device!r}: pass 'cpu', or look at torch.cuda."
        ) from None


def global_generators(device: torch.device | str = "cpu") -> list[torch.Generator]:
    """Torch's global generators for layers on a device: the CPU's, and the GPU's if the device is a GPU."""
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators in this context, and restore their states afterwards.

    `torch.manual_seed` would also seed all other GPUs. `torch.random.fork_rng` restores these, but by default it
    initialises every GPU and warns if there are several.
    """
    generators = global_generators(device)
    before = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
