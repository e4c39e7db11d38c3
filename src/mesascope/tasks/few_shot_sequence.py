"""Regression told one element after another: x_1, y_1, x_2, y_2, ... with y = W x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mesascope.errors import require_choice, require_count, require_instance, require_number
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks.draws import STARTS, check_draw, orthogonal

__all__ = ["FewShotSequence"]


@register("family", "few-shot-sequence")
@dataclass(frozen=True)
class FewShotSequence:
    """Pairs (x, W x + noise) as a sequence, W a random orthogonal matrix: few-shot learning for a predictor.

    Elements ``sequence[:, 0::2]`` are inputs and ``sequence[:, 1::2]`` their targets, so that a predictor that has read
    an input answers with the next element. Where ``tasks`` follow one another, each has a W of its own and ``pairs``
    pairs.

    Args:
        d: width of an element.
        pairs: of each task.
        tasks: in a row.
        x: law of inputs: ``"normal"``, N(0, I), or ``"uniform"``, U(-1, 1).
        noise: standard deviation of what is added to targets, entry by entry.
        marked: whether elements have an entry more, the last, 1 of inputs and 0 of targets: a predictor knows no places
            but those that its layers do.

    Source: thesis, section 3.5.2; marks are ours.

    >>> from mesascope.streams import stream
    >>> FewShotSequence(d=3, pairs=4, tasks=2).sample(5, stream(0, "doc")).shape
    torch.Size([5, 16, 3])
    """

    d: int = 10
    pairs: int = 20
    tasks: int = 1
    x: Literal["normal", "uniform"] = "normal"
    noise: float = 0.0
    marked: bool = False

    def __post_init__(self) -> None:
        for name in ("d", "pairs", "tasks"):
            require_count(name, getattr(self, name))
        require_choice("x", self.x, STARTS)
        require_number("noise", self.noise, least=0)
        require_instance("marked", self.marked, bool)

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        """Draw ``batch`` sequences of ``2 * pairs * tasks`` elements on the generator's device, in float32.

        Elements have ``d`` entries, and one more if they are marked.
        """
        check_draw(batch, generator)
        matrix = orthogonal((batch, self.tasks), self.d, generator)
        x = STARTS[self.x]((batch, self.tasks, self.pairs, self.d), generator)
        y = x @ matrix.mT
        if self.noise:
            y = y + self.noise * torch.randn(y.shape, generator=generator, device=generator.device)
        if self.marked:
            x, y = torch.cat([x, torch.ones_like(x[..., :1])], -1), torch.cat([y, torch.zeros_like(y[..., :1])], -1)
        return torch.stack([x, y], 3).flatten(1, 3)
