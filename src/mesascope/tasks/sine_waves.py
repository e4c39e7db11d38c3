"""Sine waves: a family of nonlinear regression tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch

from mesascope.errors import refuse
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.tasks.draws import Scale, check_draw, episode_of, symmetric_uniform
from mesascope.tasks.episodes import Episode
from mesascope.validate import Count

_End = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]


@register("family", "sine-waves")
@dataclass(frozen=True)
class SineWaves:
    """Targets y = a sin(x + p) with an amplitude a ~ U(amplitude) and a phase p ~ U(phase) for each task.

    Inputs of context and queries are x ~ U(-x_scale, x_scale). x and y have width 1, and there is no noise. Amplitude
    and phase are independent; with ``tied``, one draw sets both, as in the authors' code.

    Source: von Oswald et al. (ICML 2023), appendix A.7, after Finn et al. (2017).

    >>> from mesascope.streams import stream
    >>> episode = SineWaves(n_context=4).sample(2, stream(0, "doc"))
    >>> [tuple(t.shape) for t in (episode.context.x, episode.context.y, episode.xq, episode.yq)]
    [(2, 4, 1), (2, 4, 1), (2, 1, 1), (2, 1, 1)]
    """

    n_context: Count = 10
    amplitude: tuple[_End, _End] = (0.1, 5.0)
    phase: tuple[_End, _End] = (0.0, math.pi)
    x_scale: Scale = 5.0
    n_query: Count = 1
    tied: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in (("amplitude", self.amplitude), ("phase", self.phase)):
            if low > high:
                refuse(name, "be (low, high)", (low, high), "pass two numbers in order")

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        """Draw ``batch`` tasks on the generator's device, in float32."""
        check_draw(batch, generator)
        x = symmetric_uniform((batch, self.n_context + self.n_query, 1), generator).mul_(self.x_scale)
        first = symmetric_uniform((batch, 1, 1), generator)
        second = first if self.tied else symmetric_uniform((batch, 1, 1), generator)
        amplitude, phase = _between(self.amplitude, first), _between(self.phase, second)
        return episode_of(x, amplitude * torch.sin(x + phase), self.n_context)


def _between(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    """Rescale U(-1, 1) draws to the bounds."""
    low, high = bounds
    return (low + high) / 2 + (high - low) / 2 * uniform
