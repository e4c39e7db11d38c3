"""Random streams: every draw of a run comes from a generator made here.

A run has one integer seed. Step ``i`` of a stream is seeded by hashing (seed, name, i), so a resumed run repeats an
uninterrupted one with no generator state to store, and training, tuning and evaluation never share a draw.
"""

from __future__ import annotations

import hashlib

import torch

from mesascope.errors import ArgumentError, require_count, require_double, require_instance

__all__ = ["generator_on", "stream"]


def stream(seed: int, name: str, step: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of step ``step`` of the stream ``name`` of the run seeded ``seed``.

    Raises:
        ArgumentError: a device that torch does not have here.

    Torch's CPU generator keeps 32 bits of its seed, so two streams coincide with probability 2**-32.

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
    """A generator on ``device``; refuses a device that torch does not have here, and one without float64."""
    require_double(device)
    try:
        return torch.Generator(device=device)
    except (RuntimeError, TypeError, AssertionError):  # the last from a torch that was built without CUDA
        raise ArgumentError(
            f"device must be one that torch can use here, but is {device!r}: pass 'cpu', or look at torch.cuda."
        ) from None
