"""Linear regression as a sequence: x_1, y_1, x_2, y_2, ... with y = W x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks.draws import STARTS, check_draw, orthogonal
from mesascope.validate import Count, NonNegative

__all__ = ["FewShotSequence"]


@register("family", "few-shot-sequence")
@dataclass(frozen=True)
class FewShotSequence:
    """Pairs (x, W x + noise) as a sequence, W a random orthogonal matrix: few-shot learning for a predictor.

    Elements ``sequence[:, 0::2]`` are inputs and ``sequence[:, 1::2]`` their targets: from an input, a predictor has to
    predict its target. Each of ``tasks`` tasks in a row has its own W and ``pairs`` pairs.

    Args:
        d: width of an element.
        pairs: of each task.
        tasks: in a row.
        x: law of inputs: ``"normal"``, N(0, I), or ``"uniform"``, U(-1, 1).
        noise: standard deviation of the noise of targets, entry by entry.
        marked: append an entry to each element, 1 for inputs and 0 for targets: a predictor without positions cannot
            tell them apart otherwise.

    Source: thesis, section 3.5.2; marks are ours.

    >>> from mesascope.streams import stream
    >>> FewShotSequence(d=3, pairs=4, tasks=2).sample(5, stream(0, "doc")).shape
    torch.Size([5, 16, 3])
    """

    d: Count = 10
    pairs: Count = 20
    tasks: Count = 1
    x: Literal["normal", "uniform"] = "normal"
    noise: NonNegative = 0.0
    marked: bool = False

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        """Draw ``batch`` sequences of ``2 * pairs * tasks`` elements on the generator's device, in float32.

        Elements have ``d`` entries, or ``d + 1`` if they are marked.
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
