"""Rotated and permuted digits: streams of tasks for continual learning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from mesascope.data import Images, images
from mesascope.errors import refuse
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks.draws import check_draw
from mesascope.tasks.episodes import Context, Episode
from mesascope.validate import Count

__all__ = ["PermutedDigits", "RotatedDigits"]


@dataclass(frozen=True)
class _Digits:
    """Ten-class tasks, each with its own transformation of the images."""

    samples: Count = 1000
    queries: Count = 400
    dataset: str = "digits"
    size: Count | None = None

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        """Draw ``batch`` tasks in their order, on the generator's device, in float32."""
        check_draw(batch, generator)
        parts, sets = [], {part: images(self.dataset, part, self.size) for part in ("train", "test")}
        if sets["train"].classes != sets["test"].classes:
            refuse("dataset", "have the same classes to train and to test", self.dataset, "pass mnist, say")
        for name, part in (("samples", "train"), ("queries", "test")):
            found, count = sets[part], getattr(self, name)
            if count > len(found.labels):
                refuse(name, f"be at most the {len(found.labels)} images of {self.dataset}", count, "lower it")
            parts.append([_drawn(found, count, generator) for _ in range(batch)])
        pairs = []
        for task, (learned, asked) in enumerate(zip(*parts, strict=True)):
            pixels = self._changed(torch.cat([learned[0], asked[0]]), task, batch, generator).flatten(1)
            pairs.append((*pixels.split([self.samples, self.queries]), learned[1], asked[1]))
        if not pairs:
            return self.sample(1, generator).map(lambda tensor: tensor[:0])
        x, xq, y, yq = map(torch.stack, zip(*pairs, strict=True))
        return Episode(Context(x, y), xq, yq)

    def _changed(
        self, pixels: Float[Tensor, "n channels size size"], task: int, tasks: int, generator: torch.Generator
    ) -> Tensor:
        raise NotImplementedError


@register("family", "rotated-digits")
@dataclass(frozen=True)
class RotatedDigits(_Digits):
    """Digits rotated by one angle a task: that of task t of T is drawn from [180 t / T, 180 (t + 1) / T] degrees.

    A batch is a stream: its tasks come in order. Inputs are rows of pixels from 0 to 1, targets one-hot classes.

    Args:
        samples: images of a context, from the training part.
        queries: images to classify, from the test part.
        dataset, size: see `mesascope.data.images`; "mnist" is the benchmark.

    Source: Lopez-Paz and Ranzato (2017); thesis, section 4.4.1.

    >>> from mesascope.streams import stream
    >>> episode = RotatedDigits(samples=50, queries=20).sample(3, stream(0, "doc"))
    >>> episode.context.x.shape, episode.yq.shape
    (torch.Size([3, 50, 64]), torch.Size([3, 20, 10]))
    """

    def _changed(self, pixels: Tensor, task: int, tasks: int, generator: torch.Generator) -> Tensor:
        share = torch.rand((), generator=generator, device=generator.device).item()
        angle = math.pi * (task + share) / tasks
        turn = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
        grid = functional.affine_grid(turn.to(pixels).expand(len(pixels), -1, -1), list(pixels.shape), False)
        return functional.grid_sample(pixels, grid, align_corners=False)


@register("family", "permuted-digits")
@dataclass(frozen=True)
class PermutedDigits(_Digits):
    """Digits whose pixels are in one random order for each task. Otherwise as `RotatedDigits`.

    Source: Goodfellow et al. (2013), Lopez-Paz and Ranzato (2017); thesis, section 4.4.1.

    >>> from mesascope.streams import stream
    >>> PermutedDigits(samples=50, queries=20).sample(3, stream(0, "doc")).context.x.shape
    torch.Size([3, 50, 64])
    """

    def _changed(self, pixels: Tensor, task: int, tasks: int, generator: torch.Generator) -> Tensor:
        rows = pixels.flatten(1)
        return rows[:, torch.randperm(rows.shape[1], generator=generator, device=generator.device)]


def _drawn(found: Images, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pixels and targets of images drawn without replacement, in random order."""
    device = generator.device
    chosen = torch.randperm(len(found.labels), generator=generator, device=device)[:count].cpu()
    pixels = found.pixels[chosen].to(device).float() / 255
    return pixels, torch.eye(len(found.classes), device=device)[found.labels[chosen].to(device)]
