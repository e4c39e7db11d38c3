"""Sine waves: a family of nonlinear regression tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mesascope.errors import ArgumentTypeError, refuse, require_count, require_instance, require_number, shown
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.tasks.draws import check_draw, require_scale, symmetric_uniform
from mesascope.tasks.episodes import Context, Episode

__all__ = ["SineWaves"]


@register("family", "sine-waves")
@dataclass(frozen=True)
class SineWaves:
    """Targets y = a sin(x + p): an amplitude a ~ U(amplitude) and a phase p ~ U(phase) of each task.

    Inputs are x ~ U(-x_scale, x_scale), for context and queries alike; x and y have width 1, and there is no noise.
    Amplitude and phase are drawn apart, or, where ``tied``, from one number, so that one tells the other: the family of
    the authors' code.

    Source: ICML paper, appendix A.7, after Finn et al. (2017).

    >>> from mesascope.streams import stream
    >>> episode = SineWaves(n_context=4).sample(2, stream(0, "doc"))
    >>> [tuple(t.shape) for t in (episode.context.x, episode.context.y, episode.xq, episode.yq)]
    [(2, 4, 1), (2, 4, 1), (2, 1, 1), (2, 1, 1)]
    """

    n_context: int = 10
    amplitude: tuple[float, float] = (0.1, 5.0)
    phase: tuple[float, float] = (0.0, math.pi)
    x_scale: float = 5.0
    n_query: int = 1
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("n_context", "n_query"):
            require_count(name, getattr(self, name))
        require_scale("x_scale", self.x_scale)
        require_instance("tied", self.tied, bool)
        for name in ("amplitude", "phase"):
            value = getattr(self, name)
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ArgumentTypeError(f"{name} must be (low, high), but is {shown(value)}: pass two numbers.")
            for end in value:
                require_number(name, end, least=-1e15, most=1e15)
            if value[0] > value[1]:
                refuse(name, "be (low, high)", value, "pass two numbers in order")
            object.__setattr__(self, name, tuple(value))

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        """Draw ``batch`` tasks on the generator's device, in float32."""
        check_draw(batch, generator)
        x = symmetric_uniform((batch, self.n_context + self.n_query, 1), generator).mul_(self.x_scale)
        first = symmetric_uniform((batch, 1, 1), generator)
        second = first if self.tied else symmetric_uniform((batch, 1, 1), generator)
        amplitude, phase = _between(self.amplitude, first), _between(self.phase, second)
        y = amplitude * torch.sin(x + phase)
        sizes = [self.n_context, self.n_query]
        (context_x, xq), (context_y, yq) = x.split(sizes, dim=1), y.split(sizes, dim=1)
        return Episode(Context(context_x, context_y), xq, yq)


def _between(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    """U(-1, 1) stretched to the bounds."""
    low, high = bounds
    return (low + high) / 2 + (high - low) / 2 * uniform
