"""Random numbers for tasks, drawn from an explicit generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
import torch

from mesascope.errors import require_count, require_instance
from mesascope.shapes import Float, Int, Tensor
from mesascope.tasks.episodes import Context, Episode

# Scales whose products stay within float32's range; larger or smaller ones would silently become inf or 0.
Scale = Annotated[float, msgspec.Meta(ge=1e-15, le=1e15)]
Noise = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


def check_draw(batch: int, generator: torch.Generator) -> None:
    """Raise if the arguments of ``sample`` are wrong."""
    require_count("batch", batch, least=0)
    require_instance("generator", generator, torch.Generator)


def episode_of(x: Float[Tensor, "batch rows dx"], y: Float[Tensor, "batch rows dy"], n_context: int) -> Episode:
    """Make the first ``n_context`` pairs of each task its context, and the others its queries."""
    return Episode(Context(x[:, :n_context], y[:, :n_context]), x[:, n_context:], y[:, n_context:])


def orders(shape: tuple[int, ...], generator: torch.Generator) -> Int[Tensor, "*rows n"]:
    """Numbers 0 to n - 1 in a random order for each row."""
    return torch.rand(shape, generator=generator, device=generator.device).argsort(-1)


def symmetric_uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws from U(-1, 1) in float32, never exactly 0.

    On CPU, two numbers share one 64-bit draw, which takes 60 % of the time of ``Tensor.uniform_`` and keeps float32's
    full resolution. Random numbers take most of the time of training one layer.
    """
    if generator.device.type != "cpu":
        return torch.rand(shape, generator=generator, device=generator.device).sub_(0.5).mul_(2).add_(2**-25)
    count = torch.Size(shape).numel()
    bits = torch.empty((count + 1) // 2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return bits.view(torch.int32)[:count].to(torch.float32).add_(0.5).mul_(2**-31).view(shape)


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws from N(0, 1)."""
    return torch.randn(shape, generator=generator, device=generator.device)


def orthogonal(batch: tuple[int, ...], d: int, generator: torch.Generator) -> Tensor:
    """Orthogonal matrices ``(*batch, d, d)``, uniform on the orthogonal group."""
    q, r = torch.linalg.qr(normal((*batch, d, d), generator))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]  # without these signs Q would not be uniform


def applied(matrix: Float[Tensor, "batch d d"], column: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
    """Product of each matrix with its column vector."""
    return (matrix @ column[..., None]).squeeze(-1)


def unrolled(
    first: Float[Tensor, "batch d"], noise: Float[Tensor, "steps batch d"], step: Callable[[Tensor, Tensor], Tensor]
) -> Float[Tensor, "batch t d"]:
    """Sequence that starts with ``first``; each next element is ``step(last, noise)``."""
    sequence = [first]
    for added in noise:
        sequence.append(step(sequence[-1], added))
    return torch.stack(sequence, 1)


def exponential(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws from the exponential distribution of rate 1 (mean 1, variance 1), by inverse transform sampling."""
    return symmetric_uniform(shape, generator).abs_().log_().neg_()


def laplace(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws from the Laplace distribution of scale 1 (mean 0, variance 2): exponential with a random sign."""
    uniform = symmetric_uniform(shape, generator)
    return uniform.abs().log_().neg_().mul_(uniform.sign_())


def mixture(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws from a normal, exponential or Laplace distribution, chosen uniformly for each task (first axis)."""
    laws = torch.stack([law(shape, generator) for law in (normal, exponential, laplace)])
    choice = torch.randint(3, shape[:1], generator=generator, device=generator.device)
    return laws[choice, torch.arange(shape[0], device=generator.device)]


INPUT_LAWS = {
    "uniform": symmetric_uniform, "normal": normal, "exponential": exponential, "laplace": laplace, "mixture": mixture,
}  # fmt: skip
# Distributions of the first element of a sequence.
STARTS = {"normal": normal, "uniform": symmetric_uniform}
